"""Concurrent where safe: context, active agent and history are those of running the calls one after another."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, RunError, ToolCallFinished, ToolFailure, tool
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.run.one_turn import contents, run_turn

pytestmark = pytest.mark.anyio


class Together:
    """Counts how many calls are inside at once; with `parties`, each waits until so many are."""

    def __init__(self, parties: int = 0) -> None:
        self._parties = parties
        self._inside = 0
        self._all_here = anyio.Event()
        self.most = 0
        self.order: list[str] = []

    async def meet(self, who: str = "") -> None:
        self._inside += 1
        self.most = max(self.most, self._inside)
        if self._inside == self._parties:
            self._all_here.set()
        if self._parties:
            await self._all_here.wait()
        for _ in range(3):
            await anyio.sleep(0)
        self._inside -= 1
        self.order.append(who)


async def test_async_tools_of_one_turn_overlap() -> None:
    """A barrier of eight is passed by eight calls of one turn, which no order of single calls would pass."""
    together = Together(parties=8)

    async def meet(number: int) -> int:
        await together.meet()
        return number

    response = await run_turn([meet], [call("meet", number=number) for number in range(8)])
    assert contents(response) == [str(number) for number in range(8)]


async def test_messages_are_in_call_order_whatever_finishes_first() -> None:
    """Later calls finish first, and live events say so; the tool messages are in call order all the same."""
    done = [anyio.Event() for _ in range(4)]
    done[3].set()

    async def wait(number: int) -> int:
        await done[min(number + 1, 3)].wait() if number < 3 else None
        done[number].set()
        return number

    calls = [call("wait", number=number) for number in range(4)]
    swarm = AsyncSwarm(client=ScriptedModel([calls, "Done"]).client())
    with anyio.fail_after(60):
        done[3] = anyio.Event()
        async with swarm.stream(Agent(functions=[wait]), "Go") as run:
            finished = [event.index async for event in run if isinstance(event, ToolCallFinished)]
    assert finished == [3, 2, 1, 0]
    assert contents(run.response) == ["0", "1", "2", "3"]


def _writer(together: Together) -> Callable[..., Awaitable[str]]:
    async def probe(context_variables: dict[str, Any]) -> str:
        await together.meet()
        return "ok"

    return probe


def _unannotated(together: Together) -> Callable[..., Awaitable[str]]:
    async def probe(context_variables) -> str:  # type: ignore[no-untyped-def]
        await together.meet()
        return "ok"

    return probe


def _reader(together: Together) -> Callable[..., Awaitable[str]]:
    async def probe(context_variables: Mapping[str, Any]) -> str:
        await together.meet()
        return "ok"

    return probe


def _annotated_reader(together: Together) -> Callable[..., Awaitable[str]]:
    async def probe(context_variables: Annotated[Mapping[str, Any], "seen"]) -> str:
        await together.meet()
        return "ok"

    return probe


def _plain_async(together: Together) -> Callable[..., Awaitable[str]]:
    async def probe() -> str:
        await together.meet()
        return "ok"

    return probe


def _unsure(together: Together) -> Callable[..., Awaitable[Any]]:
    async def probe(context_variables: Mapping[str, Any]) -> Any:
        await together.meet()
        return "ok"

    return probe


def _in_partial(together: Together) -> Callable[..., Any]:
    async def probe(bound: int) -> str:
        await together.meet()
        return "ok"

    return functools.partial(probe, bound=1)


def _method(together: Together) -> Callable[..., Any]:
    class Owner:
        async def probe(self) -> str:
            await together.meet()
            return "ok"

    return Owner().probe


def _declared_safe(together: Together) -> Any:
    return tool(concurrent=True)(_writer(together))


def _declared_unsafe(together: Together) -> Any:
    return tool(concurrent=False)(_plain_async(together))


@pytest.mark.parametrize(
    ("make", "overlaps"),
    [
        (_plain_async, True),
        (_reader, True),
        (_annotated_reader, True),
        (_in_partial, True),
        (_method, True),
        (_writer, False),
        (_unannotated, False),
        (_unsure, False),  # a reader after a call that may return a Result
        (_declared_safe, True),
        (_declared_unsafe, False),
    ],
)
async def test_which_tools_run_together(make: Callable[[Together], Any], overlaps: bool) -> None:
    """The table of section 5, row by row: calls overlap exactly where that is safe or declared to be."""
    together = Together()
    response = await run_turn([make(together)], [call("probe") for _ in range(3)])
    assert contents(response) == ["ok"] * 3
    assert together.most == (3 if overlaps else 1)


async def test_concurrent_tools_false_runs_one_after_another() -> None:
    """`AsyncSwarm(concurrent_tools=False)` turns it off, for everything, whatever a tool says."""
    together = Together()
    functions = [_plain_async(together)]
    await run_turn(functions, [call("probe") for _ in range(3)], concurrent_tools=False)
    await run_turn([_declared_safe(together)], [call("probe") for _ in range(3)], concurrent_tools=False)
    assert together.most == 1


async def test_plain_functions_never_overlap() -> None:
    """Plain functions run alone and in order, also between async calls that would run together."""
    running: list[str] = []
    log: list[tuple[str, ...]] = []

    def plain(name: str) -> str:
        running.append(name)
        log.append(tuple(running))
        running.remove(name)
        return name

    async def quick(name: str) -> str:
        running.append(name)
        for _ in range(5):
            await anyio.sleep(0)
        log.append(tuple(running))
        running.remove(name)
        return name

    order = [("quick", "a"), ("quick", "b"), ("plain", "c"), ("plain", "d"), ("quick", "e")]
    response = await run_turn([plain, quick], [call(function, name=name) for function, name in order])
    assert contents(response) == ["a", "b", "c", "d", "e"]
    assert [entry for entry in log if entry[-1] in "cd"] == [("c",), ("d",)]
    assert log[-1] == ("e",)


async def test_tool_error_rewrites_the_text() -> None:
    """`tool_error` gets what went wrong and returns what the model is told instead."""
    failures: list[ToolFailure] = []

    def hide(failure: ToolFailure) -> str:
        failures.append(failure)
        return "Error: something went wrong"

    async def fail(secret: str) -> str:
        raise ValueError(secret)

    response = await run_turn([fail], [call("fail", secret="s3cret", call_id="c1")], tool_error=hide)
    assert contents(response) == ["Error: something went wrong"]
    (failure,) = failures
    assert isinstance(failure.error, ValueError)
    assert (failure.text, failure.id, failure.name) == ("Error: ValueError: s3cret", "c1", "fail")
    assert (failure.arguments, failure.agent.name) == ('{"secret": "s3cret"}', "A")


@pytest.mark.parametrize("face", ["run", "classic", "stream"])
async def test_tool_error_may_end_the_run(face: str) -> None:
    """A `tool_error` that raises ends the run as a RunError with that cause, and its siblings are cancelled."""
    sibling = anyio.Event()
    ended: list[str] = []

    def strict(failure: ToolFailure) -> str:
        raise failure.error

    async def fail() -> str:
        await sibling.wait()
        raise ValueError("fatal")

    async def wait() -> str:
        sibling.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("sibling")
        return "never"

    swarm = AsyncSwarm(client=ScriptedModel([[call("fail"), call("wait")], "never"]).client(), tool_error=strict)
    with anyio.fail_after(60), pytest.raises(RunError, match="fatal") as caught:
        await _consume(swarm, face, Agent(functions=[fail, wait]))
    assert isinstance(caught.value.__cause__, ValueError)
    assert ended == ["sibling"]
    assert caught.value.response is not None and caught.value.response.stop == "error"
    check_history(caught.value.response.messages, allow_open=True)
    assert contents(caught.value.response)[-1].startswith("cancelled; its outcome is unknown")


async def _consume(swarm: AsyncSwarm, face: str, agent: Agent) -> None:
    if face == "run":
        await swarm.run(agent, "Go")
    elif face == "classic":
        async for _ in swarm.run(agent, "Go", stream=True):
            pass
    else:
        async with swarm.stream(agent, "Go") as run:
            async for _ in run:
                pass
