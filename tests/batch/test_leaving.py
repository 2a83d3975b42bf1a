"""Leaving a batch: items that run are cancelled and awaited, and everything is closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.batch import Batch, Outcome, _item
from aswarm.testing import ScriptedAnswer, ScriptedModel
from tests.support.batch.batches import AGENT, Counted, Echo, Scene, answer, call, idle

pytestmark = pytest.mark.anyio


async def drain(outcomes: Batch) -> list[Outcome]:
    return [outcome async for outcome in outcomes]


async def fail(outcomes: Batch) -> None:
    await anext(outcomes)
    await idle()
    raise ZeroDivisionError


async def test_break_ends_the_items_that_run() -> None:
    """All of them have ended when the block is left."""
    scene = Scene()
    async with scene.batch() as outcomes:
        async for _ in outcomes:
            await idle()
            break
    scene.check()


async def test_an_exception_of_the_body_leaves_as_itself() -> None:
    """It is never in a group, and it comes after all items have ended."""
    scene = Scene()
    with pytest.raises(ZeroDivisionError):
        async with scene.batch() as outcomes:
            await fail(outcomes)
    scene.check()


@pytest.mark.parametrize("reading", [True, False])
async def test_cancelling_the_reader_ends_the_items_that_run(reading: bool) -> None:
    """While it waits for an outcome, and while it holds one."""
    scene = Scene()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_when_idle, scope)
            async with scene.batch() as outcomes:
                async for _ in outcomes:
                    if not reading:
                        await anyio.sleep_forever()
    assert scope.cancelled_caught
    scene.check()


async def _cancel_when_idle(scope: anyio.CancelScope) -> None:
    await idle()
    scope.cancel()


async def test_a_timeout_around_a_batch_ends_it() -> None:
    """It works as around any other block."""
    scene = Scene()
    with pytest.raises(TimeoutError), anyio.fail_after(0.05):
        async with scene.batch() as outcomes:
            await drain(outcomes)
    scene.check()


async def test_leaving_before_anything_was_read_closes_the_items() -> None:
    """However many items had begun by then."""
    closed: list[str] = []

    def items() -> Iterator[str]:
        try:
            yield from "abc"
        finally:
            closed.append("items")

    async with Echo().swarm().batch(AGENT, items()):
        pass
    async with Echo().swarm().batch(AGENT, items(), concurrency=1):
        await idle()
    assert closed in (["items"], ["items", "items"])  # a generator that was never begun has nothing to close


async def test_a_plain_generator_is_closed_when_the_batch_is_left() -> None:
    """It is closed at once, not when it is collected."""
    closed: list[str] = []

    def items() -> Iterator[str]:
        try:
            while True:
                yield "x"
        finally:
            closed.append("items")

    generator = items()
    async with Echo().swarm().batch(AGENT, generator) as outcomes:
        await anext(outcomes)
    assert closed == ["items"]


async def test_an_iterator_that_hangs_when_it_is_closed_gets_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then the batch ends without it."""
    monkeypatch.setattr(_item, "CLOSE_SECONDS", 0.01)

    class Hanging:
        def __aiter__(self) -> Hanging:
            return self

        async def __anext__(self) -> str:
            return "x"

        async def aclose(self) -> None:
            await anyio.sleep_forever()

    async with Echo().swarm().batch(AGENT, Hanging()) as outcomes:
        await anext(outcomes)


@pytest.mark.parametrize("kind", ["scope", "group"])
async def test_items_may_have_scopes_open_while_they_yield(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The scopes are closed innermost first, and tasks that a task group has started have ended."""
    ended: list[str] = []

    async def pulse() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("pulse")

    async def scoped() -> AsyncGenerator[str, None]:
        with anyio.fail_after(60):
            while True:
                yield "Hi"

    async def grouped() -> AsyncGenerator[str, None]:
        async with anyio.create_task_group() as group:
            group.start_soon(pulse)
            while True:
                yield "Hi"

    async with Echo().swarm().batch(AGENT, scoped() if kind == "scope" else grouped(), concurrency=2) as outcomes:
        async for _ in outcomes:
            await idle()
            break
    assert not caplog.records and (kind == "scope" or ended == ["pulse"])


async def test_the_iteration_ends_in_another_task_too() -> None:
    """That task gets no further outcome, and does not wait for ever."""
    taken: list[Outcome] = []

    async def read(outcomes: Batch) -> None:
        taken.extend([outcome async for outcome in outcomes])

    source = Echo(lambda _: anyio.sleep_forever())
    async with anyio.create_task_group() as group, source.swarm().batch(AGENT, Counted()) as outcomes:
        group.start_soon(read, outcomes)
        await idle()
    assert taken == []


async def test_what_reading_the_items_raises_after_leaving_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A reader that leaves early needs no further items."""

    def items() -> Iterator[str]:
        yield "a"
        raise OSError("gone")

    async with Echo().swarm().batch(AGENT, items()) as outcomes:
        await idle()
        assert (await anext(outcomes)).id == "0"
    assert "gone" in caplog.text


async def test_tools_are_cancelled_and_awaited() -> None:
    """An async function that runs ends with its run."""
    ended: list[str] = []

    async def wait() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("wait")
        return ""

    async def gate(_: str) -> Any:
        return answer("", [call("wait")])

    async with Echo(gate).swarm().batch(Agent(functions=[wait]), ["x", "y"]):
        await idle()
    assert ended == ["wait", "wait"]


async def test_open_responses_are_closed() -> None:
    """No HTTP request stays open."""
    model = ScriptedModel(lambda _: ScriptedAnswer("late", delay=60))
    async with AsyncSwarm(client=model.client()).batch(AGENT, Counted(), concurrency=3):
        while len(model.requests) < 3:
            await anyio.sleep(0.001)
    assert model.open_streams == 0


# --- what ends everything ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, type("Other", (BaseException,), {})])
async def test_a_base_exception_ends_everything(kind: type[BaseException]) -> None:
    """It leaves the block as itself; the other items have ended by then."""
    scene = Scene()

    def fatal() -> str:
        raise kind("enough")

    async def gate(text: str) -> Any:
        return answer("", [call("fatal")]) if text == "0" else await anyio.sleep_forever()

    scene.source.gate = gate
    with pytest.raises(kind, match="enough"):
        async with scene.source.swarm().batch(Agent(functions=[fatal]), scene.items()) as outcomes:
            await drain(outcomes)
    assert scene.events == ["items"]
    assert scene.source.running == 0


async def test_a_base_exception_is_raised_where_the_block_is_left_too() -> None:
    """Also to a reader that has taken all outcomes that it needs."""

    async def gate(text: str) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        async with Echo(gate).swarm().batch(AGENT, ["x"]):
            await idle()


async def test_a_base_exception_is_raised_in_place_of_an_error_of_the_body() -> None:
    """The error of the body is its context."""

    async def gate(text: str) -> Any:
        raise SystemExit(3)

    async def leave() -> None:
        async with Echo(gate).swarm().batch(AGENT, ["x"]):
            await idle()
            raise ZeroDivisionError

    with pytest.raises(SystemExit) as raised:
        await leave()
    assert isinstance(raised.value.__context__, ZeroDivisionError)


async def test_a_base_exception_of_the_items_ends_the_batch() -> None:
    """Ctrl-C may come anywhere."""

    def items() -> Iterator[str]:
        yield "0"
        raise KeyboardInterrupt

    scene = Scene()
    with pytest.raises(KeyboardInterrupt):
        async with scene.source.swarm().batch(AGENT, items()) as outcomes:
            await drain(outcomes)


# --- no scope in the reader's frames ----------------------------------------------------------------------------------


async def test_a_generator_around_a_batch_may_be_dropped() -> None:
    """PEP 789: whichever task closes it, no task is cancelled."""
    scene = Scene()

    async def read() -> AsyncGenerator[Outcome, None]:
        async with scene.batch() as outcomes:
            async for outcome in outcomes:
                yield outcome

    reader = read()
    await anext(reader)
    await idle()

    async def close() -> None:
        await reader.aclose()

    async with anyio.create_task_group() as group:
        group.start_soon(close)
    await anyio.lowlevel.checkpoint()
    scene.check()
