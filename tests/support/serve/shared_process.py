"""A service for `service_process`, whose processes share their runs. A function ends when the test creates a file.

"pay 7" calls a function that needs an approval, "work 7" a function that needs none. The environment has the store: the path of a
file for `LocalRuns`, or a URL for `DurableRuns`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, tool
from aswarm.runs import Limits, LocalRuns
from aswarm.serve import Service, bearer
from aswarm.testing import Request, ScriptedModel, call


def make_app() -> Any:
    """Return the service, from the environment."""
    store = os.environ["SERVICE_STORE"]
    folder = Path(store.partition("://")[2] or store).parent

    async def work(number: int) -> str:
        """Note the number, and end when its file exists."""
        with (folder / "done").open("a", encoding="utf-8") as notes:
            notes.write(f"{number}\n")
        while not (folder / f"go-{number}").exists():
            await anyio.sleep(0.01)
        return "done"

    @tool(approve=True)
    async def pay(number: int) -> str:
        """Pay."""
        return await work(number)

    def script(request: Request) -> Any:
        last = request.body["messages"][-1]
        if last["role"] != "user":
            return "Done."
        name, number = last["content"].split()
        return call(name, number=int(number), call_id=f"c{number}")

    swarm = AsyncSwarm(ScriptedModel(script).client())
    agent = Agent(name="Clerk", functions=[pay, work])
    if "://" not in store:
        return Service(LocalRuns(swarm, agents=agent, store=store, limits=Limits.web()), auth=bearer("token"))
    from aswarm.durable import DurableRuns

    return Service(
        DurableRuns(swarm, agents=agent, store=store, version="1", limits=Limits.web()), auth=bearer("token")
    )
