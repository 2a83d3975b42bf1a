"""Cancelling at every step of the event loop, and going on from what is left: nothing lost, nothing run twice."""

from __future__ import annotations

import asyncio
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
from tests.support.sampling import every

pytestmark = pytest.mark.slow

FACES = ("run", "run(stream=True)", "stream")
FIRST = ("quick", "slow", "write", "look", "note")
SECOND = ("quick_too", "transfer_to_other", "last")


class World:
    """A scripted conversation of three turns with a handoff, and what its tools did."""

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
        """What the model says follows from the history alone, so that it says the same to a resumed run."""
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


Keep = Callable[[Any], None]


async def travel(world: World, face: str, keep: Keep) -> None:
    """Consume the run to its end; `keep` gets what has `.response`."""
    if face == "run":
        try:
            keep(_Ended(await world.swarm.run(world.agent, [USER], {"kept": True})))
        except BaseException as error:
            keep(error)
            raise
    elif face == "run(stream=True)":
        stream = world.swarm.run(world.agent, [USER], {"kept": True}, stream=True)
        keep(stream)
        async for _ in stream:
            pass
    else:
        async with world.swarm.stream(world.agent, [USER], {"kept": True}) as run:
            keep(run)
            async for _ in run:
                pass


class _Ended:
    def __init__(self, response: Response) -> None:
        self.response = response


async def check_end(world: World, left: Any) -> None:
    """The history is valid; resumed, it comes to the same end; what had finished is not run again."""
    assert world.in_threads == 0
    assert world.model.open_streams == 0
    # A task that was cancelled before its first step never began the run.
    response: Response = left.response if left is not None else Response(agent=world.agent)
    check_history([USER, *response.messages], allow_open=True)
    answers = {message["tool_name"]: message["content"] for message in response.messages if message["role"] == "tool"}
    for name in set(world.finished) - {name for name, content in answers.items() if content == f"{name} done"}:
        pytest.fail(f"{name} has finished, but its result is lost: {answers.get(name)!r}")
    unknown = {name for name, content in answers.items() if content == UNKNOWN}
    assert unknown == set(world.started) - set(world.finished)
    assert response.agent is not None
    history = [USER, *response.messages]
    context = response.context_variables if left is not None else {"kept": True}
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


Leave = Callable[[World, str, Keep, int], Awaitable[bool]]


async def cancel_task(world: World, face: str, keep: Keep, step: int) -> bool:
    """A plain `task.cancel()` after so many steps of the loop; whether the run had not ended by then."""
    task = asyncio.ensure_future(travel(world, face, keep))
    for _ in range(step):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def cancel_task_ever_after(world: World, face: str, keep: Keep, step: int) -> bool:
    """`task.cancel()` after so many steps, and again at every step from then on."""
    task = asyncio.ensure_future(travel(world, face, keep))
    for _ in range(step):
        await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    return task.cancelled()


async def cancel_task_twice(world: World, face: str, keep: Keep, step: int) -> bool:
    """`task.cancel()` after so many steps, and once more a few steps later, in the middle of the leaving."""
    task = asyncio.ensure_future(travel(world, face, keep))
    for _ in range(step):
        await asyncio.sleep(0)
    task.cancel()
    for _ in range(step % 5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


async def cancel_scope(world: World, face: str, keep: Keep, step: int) -> bool:
    """The scope around the run is cancelled after so many steps."""
    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        has_ended = False

        async def run() -> None:
            nonlocal has_ended
            with scope:
                await travel(world, face, keep)
            has_ended = True

        group.start_soon(run)
        for _ in range(step):
            await anyio.lowlevel.checkpoint()
        was_running = not has_ended
        scope.cancel()
    return was_running


async def check_every_step(leave: Leave, face: str, part: int, parts: int) -> None:
    """Leave after `part`, `part + parts`, … steps, until the run ends before it is left."""
    step, ended = part, 0
    threads = threading.active_count()
    while ended < 2:  # threads make the number of steps vary
        world = World()
        left: list[Any] = []
        async with nothing_left_behind():
            ended += not await leave(world, face, left.append, step)
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
    every(4, [cancel_task, cancel_task_twice, cancel_task_ever_after], FACES, range(PARTS)),
)
async def test_a_task_is_cancelled_at_any_step(leave: Leave, face: str, part: int) -> None:
    """A cancellation may come at any await: what is left is valid, and comes to the same end."""
    await check_every_step(leave, face, part, PARTS)


@pytest.mark.anyio
@pytest.mark.parametrize(("face", "part", "anyio_backend"), every(4, FACES, range(PARTS), ["asyncio", "trio"]))
async def test_a_scope_is_cancelled_at_any_step(face: str, part: int) -> None:
    """The same with a cancel scope, on both backends."""
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
