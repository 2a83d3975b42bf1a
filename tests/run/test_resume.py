"""Cancelling at every step of the event loop, and continuing from the response: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aswarm import Agent, AsyncSwarm, Response, Result
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, Step, call, check_history
from tests.support.leaving.run_scenes import INTERRUPTED, UNKNOWN, USER, answered, made_calls, nothing_left_behind
from tests.support.run.ways_to_run import FACES, consume
from tests.support.sampling import every

pytestmark = pytest.mark.slow

FIRST = ("quick", "slow", "write", "look", "note")
SECOND = ("quick_too", "transfer_to_other", "last")


class World:
    """A scripted conversation of three turns with a handoff, and the calls of its functions."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.finished: list[str] = []
        self.in_threads = 0
        self.model = ScriptedModel(self._answer, cut=4)
        self.swarm = AsyncSwarm(self.model.client())
        self.other = Agent(name="other", instructions="You are other.")
        self.agent = Agent(name="first", instructions=self._instructions, functions=self._tools())

    async def _instructions(self) -> str:
        await anyio.lowlevel.checkpoint()
        return "You are first."

    @staticmethod
    def _answer(request: Request) -> Step:
        """Return the answer that follows from the history alone, so that it is the same for a resumed run."""
        if request.messages[0]["content"] == "You are other.":
            return ScriptedAnswer("done")
        turn = sum(message["role"] == "assistant" for message in request.messages)
        return ScriptedAnswer("I look.", calls=[call(name) for name in (FIRST, SECOND)[turn]]) if turn < 2 else "stuck"

    def _tools(self) -> list[Any]:
        async def doing(name: str, steps: int) -> str:
            self.started.append(name)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            self.finished.append(name)
            return f"{name} done"

        async def quick() -> str:
            return await doing("quick", 0)

        async def quick_too() -> str:
            return await doing("quick_too", 1)

        async def slow() -> str:
            return await doing("slow", 4)

        def write(context_variables: dict[str, Any]) -> str:
            self.started.append("write")
            self.in_threads += 1
            context_variables["written"] = context_variables.get("written", 0) + 1
            self.in_threads -= 1
            self.finished.append("write")
            return "write done"

        def look() -> str:
            self.started.append("look")
            self.finished.append("look")
            return "look done"

        async def note(context_variables: dict[str, Any]) -> Result:
            return Result(value=await doing("note", 2), context_variables={"noted": context_variables["written"]})

        async def last() -> str:
            return await doing("last", 2)

        return [quick, quick_too, slow, write, look, note, last, self.other]


async def run(world: World, face: str, left: list[Any]) -> None:
    """Consume the run to its end; `left` gets its response."""
    await consume(world.swarm, world.agent, face, left, context_variables={"kept": True})


async def check_end(world: World, left: Any) -> None:
    """The history is valid; the resumed run comes to the same end, and no finished call runs again."""
    assert world.in_threads == 0
    assert world.model.open_streams == 0
    # A task that was cancelled before its first step has not started the run.
    response: Response = left or Response(agent=world.agent)
    check_history([USER, *response.messages], allow_open=True)
    answers = {message["tool_name"]: message["content"] for message in response.messages if message["role"] == "tool"}
    for name in set(world.finished) - {name for name, content in answers.items() if content == f"{name} done"}:
        pytest.fail(f"{name} has finished, but its result is lost: {answers.get(name)!r}")
    unknown = {name for name, content in answers.items() if content == UNKNOWN}
    assert unknown == set(world.started) - set(world.finished)
    assert response.agent is not None
    history = [USER, *response.messages]
    context = response.context_variables if left else {"kept": True}
    end = await world.swarm.run(response.agent, history, context, resume=True)
    assert (end.text or response.text) == "done"
    assert end.agent is world.other
    check_history([*history, *end.messages])
    calls = made_calls([*history, *end.messages])
    assert calls == [*FIRST, *SECOND]
    assert answered([*history, *end.messages]) == calls
    assert max(Counter(world.started).values(), default=1) == 1, "a call was run twice"
    interrupted = {message["tool_name"] for message in response.messages if message.get("content") == INTERRUPTED}
    assert set(world.started) == set(calls) - interrupted - {"transfer_to_other"}
    assert interrupted <= {"quick_too", "last"}, "only a handoff of the same turn leaves a call unrun"
    assert end.context_variables == {"kept": True, "written": 1} | ({} if "note" in unknown else {"noted": 1})


Leave = Callable[[World, str, list[Any], int], Awaitable[bool]]


async def cancel_task(world: World, face: str, left: list[Any], step: int, *, times: str = "once") -> bool:
    """Call `task.cancel()` after so many steps of the loop, perhaps again later. Returns whether the run had not finished."""
    task = asyncio.ensure_future(run(world, face, left))
    for _ in range(step):
        await asyncio.sleep(0)
    task.cancel()
    if times == "twice":
        for _ in range(step % 5):
            await asyncio.sleep(0)
        task.cancel()
    while times == "always" and not task.done():
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    return task.cancelled()


cancel_twice, cancel_always = (functools.partial(cancel_task, times=times) for times in ("twice", "always"))


async def cancel_scope(world: World, face: str, left: list[Any], step: int) -> bool:
    """Cancel the scope around the run after so many steps."""
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        has_ended = False

        async def run_in_scope() -> None:
            nonlocal has_ended
            with scope:
                await run(world, face, left)
            has_ended = True

        group.start_soon(run_in_scope)
        for _ in range(step):
            await anyio.lowlevel.checkpoint()
        was_running = not has_ended
        scope.cancel()
    return was_running


async def check_every_step(leave: Leave, face: str, part: int, parts: int) -> None:
    """Leave after `part`, `part + parts`, … steps, until the run finishes first."""
    step, ended = part, 0
    threads = threading.active_count()
    while ended < 2:  # threads make the number of steps vary
        world = World()
        left: list[Any] = []
        async with nothing_left_behind():
            ended += not await leave(world, face, left, step)
            try:
                await check_end(world, left[-1] if left else None)
            except BaseException as error:
                error.add_note(f"left after step {step}; {json.dumps([world.started, world.finished])}")
                raise
        # Over all steps, because how many threads wait for work after one of them depends on how busy the machine is.
        assert threading.active_count() <= threads + 4, "threads pile up"
        step += parts


PARTS = 8


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("leave", "face", "part"),
    every(4, [cancel_task, cancel_twice, cancel_always], FACES, range(PARTS)),
)
async def test_a_task_is_cancelled_at_any_step(leave: Leave, face: str, part: int) -> None:
    """After a cancellation at any await, the response is valid and comes to the same end."""
    await check_every_step(leave, face, part, PARTS)


@pytest.mark.parametrize(("face", "part", "anyio_backend"), every(4, FACES, range(PARTS), ["asyncio", "trio"]))
async def test_a_scope_is_cancelled_at_any_step(face: str, part: int) -> None:
    await check_every_step(cancel_scope, face, part, PARTS)


@pytest.mark.asyncio
async def test_arguments_that_came_as_an_object_are_run_and_replayed_as_text() -> None:
    """A history from a server that sends arguments as an object resumes like any other."""

    def f(x: int) -> str:
        return f"got {x}"

    asked = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [asked]}]
    model = ScriptedModel(["ok"])
    response = await AsyncSwarm(client=model.client()).run(Agent(functions=[f]), history, resume=True)
    assert response.messages[0]["content"] == "got 1"
    assert model.requests[0].messages[2]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
