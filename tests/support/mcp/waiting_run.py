"""A run whose call of a server waits for an approval, in a process that is killed.

    python -m tests.support.mcp.waiting_run STORE JOURNAL [approve]

Starts the run, or approves its call; prints the reason of the waiting call, or the answer; then it does nothing until its end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from aswarm import Agent, AsyncSwarm
from aswarm.mcp import MCPServer
from aswarm.runs import LocalRuns, NewRun
from aswarm.testing import ScriptedModel, call
from tests.support.mcp.mcp_servers import stdio


async def main(store: str, journal: str, *approve: str) -> None:
    """Start the run, or approve its call."""
    model = ScriptedModel([*([] if approve else [call("write", call_id="a")]), "Done."])
    async with MCPServer(stdio(Path(journal)), approve={"write"}) as server, AsyncSwarm(model.client()) as swarm:
        agent = Agent(functions=[*server.functions])
        async with LocalRuns(swarm, store=store, agents=[agent]) as runs:
            if approve:
                [last, *_] = await runs.list(user="ann", conversation="c")
                run = await (await runs.get_run(last.id, user="ann")).answer({"a": True})
            else:
                run = await runs.start(NewRun("ann", "c", "Go"))
            response = await run.result()
            print(response.waiting[0].reason if response.waiting else response.text, flush=True)
            await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
