"""What a run that is left does with its tools: which results are kept, what is waited for, what leaves as itself."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from threading import Event
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, Result, RunError, ToolFailure, tool
from aswarm.testing import Answer, Request, ScriptedModel, Step, call, check_history
from test_leaving import UNKNOWN, USER, nothing_left_behind, settle, until

FACES = ("run", "run(stream=True)", "stream")


def calls_then_done(*names: str) -> Callable[[Request], Step]:
    """A model that calls these functions and then says "done"."""

    def answer(request: Request) -> Step:
        has_called = any(message["role"] == "assistant" for message in request.messages)
        return "done" if has_called else Answer(calls=[call(name) for name in names])

    return answer


def swarm_of(*names: str, **options: Any) -> AsyncSwarm:
    """A swarm whose model calls these functions."""
    return AsyncSwarm(ScriptedModel(calls_then_done(*names)).client(), **options)


async def consume(swarm: AsyncSwarm, agent: Agent, face: str, left: list[Response], **options: Any) -> None:
    """Consume a run to its end; `left` gets the response, however it ends."""
    run: Any
    if face == "run":
        try:
            left.append(await swarm.run(agent, [USER], **options))
        except BaseException as error:
            left.append(error.response)  # type: ignore[attr-defined]
            raise
        return
    try:
        if face == "stream":
            async with swarm.stream(agent, [USER], **options) as run:
                async for _ in run:
                    pass
        else:
            run = swarm.run(agent, [USER], stream=True, **options)
            async for _ in run:
                pass
    finally:
        left.append(run.response)


def answers(response: Response) -> dict[str, str]:
    """What each function was answered with."""
    return {message["tool_name"]: message["content"] for message in response.messages if message["role"] == "tool"}


async def cancel_when(
    condition: Callable[[], object], swarm: AsyncSwarm, agent: Agent, face: str, **options: Any
) -> Response:
    """The response of a run whose scope is cancelled once the condition holds."""
    left: list[Response] = []
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: consume(swarm, agent, face, left, **options))
        await until(condition)
        await settle()
        group.cancel_scope.cancel()
    assert left[0].stop == "cancelled"
    check_history([USER, *left[0].messages], allow_open=True)
    return left[0]


# --- plain functions --------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_cancelled_run_waits_for_a_plain_function(face: str) -> None:
    """A function in a thread cannot be interrupted: it is waited for, its result and its writes are kept."""
    begun, ended = Event(), Event()

    def work(context_variables: dict[str, Any]) -> Result:
        begun.set()
        time.sleep(0.05)
        context_variables["written"] = True
        ended.set()
        return Result(value="worked", context_variables={"merged": True})

    async with nothing_left_behind():
        response = await cancel_when(begun.is_set, swarm_of("work"), Agent(functions=[work]), face)
        assert ended.is_set()
        assert answers(response) == {"work": "worked"}
        assert response.context_variables == {"written": True, "merged": True}


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_an_error_of_a_plain_function_is_kept_too(face: str) -> None:
    """A function that fails while the run is being cancelled has failed: that is its real outcome."""
    begun = Event()

    def work() -> str:
        begun.set()
        time.sleep(0.03)
        raise ValueError("broken")

    response = await cancel_when(begun.is_set, swarm_of("work"), Agent(functions=[work]), face)
    assert answers(response) == {"work": "Error: ValueError: broken"}


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_coroutine_from_a_plain_function_is_cancelled_like_any(face: str) -> None:
    """What a plain function returns to be awaited is not awaited to its end by a cancelled run."""
    begun = Event()

    async def rest() -> str:
        begun.set()
        await anyio.sleep_forever()
        return "never"

    def work() -> Any:
        return rest()

    response = await cancel_when(begun.is_set, swarm_of("work"), Agent(functions=[work]), face)
    assert answers(response) == {"work": UNKNOWN}


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_an_abandoned_function_is_not_awaited_and_holds_its_token(face: str) -> None:
    """`abandon_on_cancel=True`: the caller goes on at once; the token of threads comes back when the thread ends."""
    begun, gate, second = Event(), Event(), Event()

    @tool(abandon_on_cancel=True)
    def work(context_variables: dict[str, Any]) -> str:
        begun.set()
        context_variables["written"] = True
        gate.wait(5)
        return "worked"

    def work_too() -> str:
        second.set()
        return "worked too"

    swarm = swarm_of("work", max_threads=1)
    agent = Agent(functions=[work])
    try:
        async with nothing_left_behind():
            response = await cancel_when(begun.is_set, swarm, agent, face)
            assert answers(response)["work"].startswith(UNKNOWN)
            assert "may still be running" in answers(response)["work"]
            assert response.context_variables == {}, "it worked on a copy, which is merged only if it returns in time"
            other = AsyncSwarm(ScriptedModel(calls_then_done("work_too")).client())
            other._threads = swarm._threads
            async with anyio.create_task_group() as group:
                group.start_soon(other.run, Agent(functions=[work_too]), [USER])
                await anyio.sleep(0.03)
                assert not second.is_set(), "the token was given away while the thread still ran"
                gate.set()
            assert second.is_set()
    finally:
        gate.set()


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_function_that_waits_for_a_thread_never_started(face: str) -> None:
    """A call that waits for a token of the threads has not started: it stays open, and is run when resumed."""
    begun, gate = Event(), Event()
    ran: list[str] = []

    def hold() -> str:
        begun.set()
        gate.wait(5)
        return "held"

    def work() -> str:
        ran.append("work")
        return "worked"

    # One model for both: it calls what the agent offers.
    model = ScriptedModel(lambda request: calls_then_done(*request.tool_names)(request))
    swarm = AsyncSwarm(model.client(), max_threads=1)
    agent = Agent(functions=[work])
    async with anyio.create_task_group() as group:
        group.start_soon(swarm.run, Agent(functions=[hold]), [USER])
        await until(begun.is_set)
        try:
            response = await cancel_when(lambda: len(model.requests) == 2, swarm, agent, face)
        finally:
            gate.set()
    assert answers(response) == {}
    assert ran == []
    resumed = await swarm.run(agent, [USER, *response.messages], resume=True)
    assert answers(resumed) == {"work": "worked"}
    assert ran == ["work"]


@pytest.mark.anyio
async def test_plain_instructions_are_awaited_too() -> None:
    """A cancelled run waits for plain instructions, which run in a thread as well."""
    begun, ended = Event(), Event()

    def instructions() -> str:
        begun.set()
        time.sleep(0.03)
        ended.set()
        return "Be brief."

    await cancel_when(begun.is_set, swarm_of(), Agent(instructions=instructions), "run")
    assert ended.is_set()


# --- what leaves as itself --------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("face", FACES)
async def test_exit_and_interrupt_leave_as_themselves(face: str, in_thread: bool, kind: type[BaseException]) -> None:
    """KeyboardInterrupt and SystemExit of a tool are not its failure: they leave, and its siblings are ended."""
    ended: list[str] = []

    async def sibling() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("sibling")
        return ""

    @tool(concurrent=True, thread=in_thread)
    def leave() -> str:
        raise kind("out")

    left: list[Response] = []
    async with nothing_left_behind():
        with pytest.raises(kind, match="out") as caught:
            await consume(swarm_of("sibling", "leave"), Agent(functions=[sibling, leave]), face, left)
        assert type(caught.value) is kind
        assert ended == ["sibling"]
        check_history([USER, *left[0].messages], allow_open=True)
        assert answers(left[0]) == {"sibling": UNKNOWN, "leave": UNKNOWN}


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_tool_error_hook_that_raises_ends_the_run(face: str) -> None:
    """What the hook raises ends the run as a RunError with the partial response; siblings are cancelled."""
    ended: list[str] = []

    async def sibling() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("sibling")
        return ""

    async def fail() -> str:
        raise ValueError("broken")

    def hook(failure: ToolFailure) -> str:
        raise LookupError("no more")

    left: list[Response] = []
    async with nothing_left_behind():
        with pytest.raises(RunError, match="no more") as caught:
            await consume(swarm_of("sibling", "fail", tool_error=hook), Agent(functions=[sibling, fail]), face, left)
        assert isinstance(caught.value.__cause__, LookupError)
        assert ended == ["sibling"]
        assert caught.value.response is not None
        assert caught.value.response.stop == "error"
        check_history([USER, *caught.value.response.messages], allow_open=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
async def test_the_hook_also_ends_a_run_of_a_task_that_was_once_cancelled(face: str) -> None:
    """A task may have swallowed a cancellation (a failed asyncio.TaskGroup does on 3.11): its runs are as any other."""

    async def fail() -> str:
        raise ValueError("broken")

    def hook(failure: ToolFailure) -> str:
        raise LookupError("no more")

    swallow_a_cancellation()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    with pytest.raises(RunError, match="no more"):
        await consume(swarm_of("fail", tool_error=hook), Agent(functions=[fail]), face, [])


def swallow_a_cancellation() -> None:
    """Ask for the cancellation of the calling task."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
async def test_a_run_of_a_task_that_was_once_cancelled_is_as_any_other(face: str) -> None:
    """Cleanup after a swallowed cancellation may run agents, with threads and with calls that time out."""

    @tool(timeout=0.01)
    async def slow() -> None:
        await anyio.sleep_forever()

    def plain() -> str:
        return "plain done"

    left: list[Response] = []
    swallow_a_cancellation()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    await consume(swarm_of("slow", "plain"), Agent(functions=[slow, plain]), face, left)
    assert answers(left[0]) == {"slow": "Error: slow timed out after 0.01 s.", "plain": "plain done"}
    assert left[0].text == "done"


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
async def test_a_tool_that_raises_cancelled_error_has_failed(face: str) -> None:
    """Awaiting something that somebody else has cancelled is a failure of the tool, not the end of the run."""

    async def work() -> str:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return str(await future)

    left: list[Response] = []
    await consume(swarm_of("work"), Agent(functions=[work]), face, left)
    assert answers(left[0])["work"].startswith("Error: CancelledError")
    assert left[0].text == "done"


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
async def test_a_tool_that_was_once_cancelled_may_raise_it_too(face: str) -> None:
    """The same where the tool's own task has swallowed a cancellation before."""

    async def work() -> str:
        swallow_a_cancellation()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        raise asyncio.CancelledError

    left: list[Response] = []
    await consume(swarm_of("work"), Agent(functions=[work]), face, left)
    assert answers(left[0])["work"].startswith("Error: CancelledError")
    assert left[0].text == "done"


# --- runs in tools, runs beside runs ----------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("outer", FACES)
@pytest.mark.parametrize("inner", FACES)
async def test_a_run_inside_a_tool_is_left_with_it(inner: str, outer: str) -> None:
    """An agent that is asked by a tool ends when the run around it is cancelled: its response is closed."""
    model = ScriptedModel(lambda _: Answer("Hello", pause=0.01 if inner != "run" else 0, delay=30 * (inner == "run")))
    slow = ScriptedModel(lambda _: Answer("Hello, world" * 100, delay=0, pause=0.01), cut=1)
    asked = slow if inner != "run" else model
    left: list[Response] = []

    async def ask() -> str:
        await consume(AsyncSwarm(asked.client()), Agent(name="inner"), inner, left)
        return "never"

    async with nothing_left_behind():
        response = await cancel_when(lambda: asked.requests, swarm_of("ask"), Agent(functions=[ask]), outer)
        assert answers(response) == {"ask": UNKNOWN}
        assert left[0].messages == []
        assert asked.open_streams == 0


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_neighbour_does_not_notice(face: str) -> None:
    """Leaving one run of a swarm and an agent does not touch another; limiter and threads are as before."""
    token = anyio.CapacityLimiter(1)
    gate = anyio.Event()
    holds: list[str] = []

    @tool(limiter=token)
    async def work() -> str:
        holds.append("work")
        await gate.wait()
        return "worked"

    swarm, agent = swarm_of("work"), Agent(functions=[work])
    left: list[Response] = []
    async with anyio.create_task_group() as group:
        await cancel_when(lambda: holds, swarm, agent, face)
        assert token.available_tokens == 1
        group.start_soon(consume, swarm, agent, face, left)
        await until(lambda: len(holds) == 2)
        await cancel_when(lambda: token.statistics().tasks_waiting, swarm, agent, face)
        gate.set()
    assert left[0].text == "done"
    assert answers(left[0]) == {"work": "worked"}
    assert token.available_tokens == 1


# --- edges of streams -------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_stream_that_never_began_leaves_nothing() -> None:
    """Made, and dropped or closed without a step: no request, no task, an empty response."""
    model = ScriptedModel([])
    swarm, agent = AsyncSwarm(model.client()), Agent()
    async with nothing_left_behind():
        swarm.stream(agent, [USER])
        swarm.run(agent, [USER], stream=True)
        closed = swarm.run(agent, [USER], stream=True)
        await closed.aclose()
        async with swarm.stream(agent, [USER]) as run:
            pass
        gc.collect()
        assert closed.response.messages == run.response.messages == []
        assert closed.response.stop == run.response.stop == "cancelled"
        with pytest.raises(StopAsyncIteration):
            await anext(closed)
    assert model.requests == []


@pytest.mark.anyio
async def test_a_stream_read_to_its_end_is_not_cancelled_by_being_left() -> None:
    """Leaving after the last event changes nothing."""
    swarm = AsyncSwarm(ScriptedModel(["done"]).client())
    async with swarm.stream(Agent(), [USER]) as run:
        async for _ in run:
            pass
    await run.aclose()
    assert run.response.stop == "answer"
    assert run.partial == ""


@pytest.mark.asyncio
async def test_each_step_may_have_a_timeout_of_its_own() -> None:
    """`asyncio.wait_for` around single steps moves the run from task to task; a timeout ends the run."""
    model = ScriptedModel([Answer("Hello", pause=0.03), "never"], cut=1)
    stream = AsyncSwarm(model.client()).run(Agent(), [USER], stream=True)
    async with nothing_left_behind():
        with pytest.raises(TimeoutError):  # noqa: PT012 - some step times out
            while True:
                seconds = 0.001 if stream.partial == "He" else 5
                await asyncio.wait_for(anext(stream), seconds)
        assert (stream.partial, stream.response.messages, stream.response.stop) == ("He", [], "cancelled")
        assert model.open_streams == 0
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.parametrize("face", FACES[1:])
def test_the_event_loop_may_end_around_a_stream(face: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`asyncio.run` that returns while a stream is held closes it, and has nothing to complain of."""
    ended: list[str] = []
    kept: list[Any] = []

    async def work() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("work")
        return ""

    async def own() -> AsyncIterator[Any]:
        async with swarm_of("work").stream(Agent(functions=[work]), [USER]) as run:
            async for event in run:
                yield event

    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        kept.append(reported)
        source = own() if face == "stream" else swarm_of("work").run(Agent(functions=[work]), [USER], stream=True)
        kept.append(source)
        async for event in source:
            if event == {"delim": "end"} or type(event).__name__ == "ToolCallStarted":
                break
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert kept[0] == []
    assert ended == (["work"] if face == "stream" else [])
    assert capfd.readouterr().err == ""


@pytest.mark.anyio
async def test_a_configuration_error_after_a_handoff_ends_everything_too() -> None:
    """An agent that is broken is met in a handoff: the error carries a valid response."""
    broken = Agent(name="broken", functions=[42])
    swarm = AsyncSwarm(ScriptedModel([call("transfer_to_broken")]).client())
    with pytest.raises(ConfigurationError) as caught:
        await swarm.run(Agent(functions=[broken]), [USER])
    assert caught.value.response is not None
    check_history([USER, *caught.value.response.messages])
    assert caught.value.response.agent is broken
