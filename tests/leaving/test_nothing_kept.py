"""After many runs, however they end, the process has no more objects of aswarm than before."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, RunError, tool
from aswarm.conversations import SQLiteStore
from aswarm.middleware import retry
from aswarm.runs import LocalRuns, NewRun
from aswarm.testing import Failure, Request, ScriptedModel, call

FIRST, MORE = 5, 40
End = Callable[[AsyncSwarm, Agent], Awaitable[object]]


async def look_up(order: int, context_variables: dict[str, Any]) -> str:
    """Look up an order."""
    context_variables["order"] = order
    await anyio.sleep(0)
    return "found"


@tool(approve=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return "refunded"


async def hang() -> None:
    """Never end."""
    await anyio.sleep_forever()


def reply(request: Request) -> Any:
    """Call the function that the user names; then answer."""
    said = request.messages[-1]
    if said["role"] != "user" or said["content"] == "answer":
        return "Done."
    if said["content"] == "fail":
        return Failure(400)
    return call("hang") if said["content"] == "hang" else call(said["content"], order=7)


def objects() -> Counter[str]:
    """Return the number of objects of each class of aswarm."""
    gc.collect()
    counts = Counter(map(type, gc.get_objects()))
    return Counter(
        {f"{kind.__module__}.{kind.__qualname__}": number for kind, number in counts.items() if is_own(kind)}
    )


def is_own(kind: type) -> bool:
    return f"{kind.__module__}.".startswith("aswarm.")


async def answered(swarm: AsyncSwarm, agent: Agent) -> None:
    await swarm.run(agent, "look_up")


async def waiting(swarm: AsyncSwarm, agent: Agent) -> None:
    assert (await swarm.run(agent, "refund")).stop == "waiting"


async def failed(swarm: AsyncSwarm, agent: Agent) -> None:
    with suppress(RunError):
        await swarm.run(agent, "fail")


async def cancelled(swarm: AsyncSwarm, agent: Agent) -> None:
    with anyio.move_on_after(0.01):
        await swarm.run(agent, "hang")


async def left(swarm: AsyncSwarm, agent: Agent) -> None:
    async with swarm.stream(agent, "look_up") as run:
        async for _ in run:
            break


async def left_in_a_tool(swarm: AsyncSwarm, agent: Agent) -> None:
    async with swarm.stream(agent, "hang") as run:
        async for event in run:
            if type(event).__name__ == "ToolCallStarted":
                break


async def dropped(swarm: AsyncSwarm, agent: Agent) -> None:
    async for _ in swarm.run(agent, "look_up", stream=True):
        break
    await anyio.sleep(0.001)


async def grown(function: Callable[[], Awaitable[object]]) -> Counter[str]:
    """Call the function some times, and then more. Returns the classes with a new object for each call.

    Fewer objects are no leak: the thread of a database keeps its last transactions, for example the 19 entries of one run.
    """
    for _ in range(FIRST):
        await function()
    before = objects()
    for _ in range(MORE):
        await function()
    await anyio.sleep(0.01)  # dropped streams are closed in the background
    return Counter({name: number for name, number in (objects() - before).items() if number >= MORE})


@pytest.mark.parametrize("end", [answered, waiting, failed, cancelled, left, left_in_a_tool, dropped])
async def test_a_run_leaves_no_object(end: End) -> None:
    """The swarm and the agent keep nothing of a run, and no registry of a module does."""
    model = ScriptedModel(reply, cut=2)
    swarm = AsyncSwarm(model.client(), middleware=[retry(attempts=1)])
    agent = Agent(functions=[look_up, refund, hang])

    async def run() -> None:
        await end(swarm, agent)
        model.requests.clear()

    assert await grown(run) == Counter()


async def test_a_conversation_leaves_no_object(tmp_path: Path) -> None:
    """A store keeps the conversations in its file."""
    model, agent, numbers = ScriptedModel(reply), Agent(functions=[look_up, refund]), count()
    async with SQLiteStore(tmp_path / "chats.sqlite") as store:

        async def run() -> None:
            chat = store.conversation(f"c{next(numbers)}", AsyncSwarm(model.client()), agent=agent)
            await chat.run("refund")
            await chat.run("look_up")
            model.requests.clear()

        assert await grown(run) == Counter()


@pytest.mark.parametrize(("text", "stop"), [("look_up", "answer"), ("refund", "waiting")])
async def test_a_run_of_a_service_leaves_no_object(tmp_path: Path, text: str, stop: str) -> None:
    """The runs that ended, and those that wait for an approval, are in the file; a reader that left is gone."""
    model, numbers = ScriptedModel(reply, cut=2), count()
    agent = Agent(functions=[look_up, refund])
    async with LocalRuns(AsyncSwarm(model.client()), agents=agent, store=tmp_path / "runs.sqlite") as runs:

        async def run() -> None:
            said = {"role": "user", "content": text}
            started = await runs.start(NewRun("ann", f"c{next(numbers)}", messages=[said]))
            async with aclosing(started.entries()) as entries:
                async for _ in entries:
                    break
            assert (await started.result()).stop == stop
            model.requests.clear()

        assert await grown(run) == Counter()
