"""Leaving a batch: running items are cancelled and awaited, and iterators and responses are closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import nullcontext
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aswarm import Agent
from aswarm.batch import Batch, BatchResult, _item
from tests.support.batch.batches import AGENT, Counted, Echo, Scene, answer, call, idle


async def drain(outcomes: Batch) -> list[BatchResult]:
    return [outcome async for outcome in outcomes]


async def leave(scene: Scene, way: str) -> None:
    """Read an outcome of the batch, and leave the batch in this way."""
    async with scene.batch() as outcomes:
        async for _ in outcomes:
            await idle()
            if way == "break":
                break
            if way == "exception":
                raise ZeroDivisionError
            if way == "cancelled with an outcome":
                await anyio.sleep_forever()


@pytest.mark.parametrize("way", ["break", "exception", "cancelled in a read", "cancelled with an outcome", "timeout"])
async def test_leaving_a_batch_stops_its_items(way: str) -> None:
    """All items have stopped at the end of the block, and the exception of the body leaves as itself."""
    scene = Scene()
    if way in ("break", "exception"):
        with pytest.raises(ZeroDivisionError) if way == "exception" else nullcontext():
            await leave(scene, way)
    elif way == "timeout":
        with pytest.raises(TimeoutError), anyio.fail_after(0.05):
            await leave(scene, way)
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(leave, scene, way)
            await idle()
            await idle()
            group.cancel_scope.cancel()
    scene.check()


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_plain_generator_of_items_is_closed(taken: int) -> None:
    """The generator of the items is closed at the end of the block, not by the garbage collector."""
    closed: list[str] = []

    def items() -> Iterator[str]:
        try:
            while True:
                yield "x"
        finally:
            closed.append("items")

    generator = items()
    async with Echo().swarm().batch(AGENT, generator, concurrency=1) as outcomes:
        await idle()
        for _ in range(taken):
            await anext(outcomes)
    assert closed == ["items"]


async def test_a_batch_may_be_left_before_it_has_started() -> None:
    """A batch whose tasks have not started is closed without an error."""
    async with Echo().swarm().batch(AGENT, iter("abc")):
        pass


async def test_an_iterator_that_hangs_when_it_is_closed_gets_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch waits only some seconds for the end of its iterator."""
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
    """The scopes of the iterator are closed in order, and the tasks of its task group have stopped."""
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
    """A task that reads a batch which another task leaves gets no further outcome."""
    taken: list[BatchResult] = []

    async def read(outcomes: Batch) -> None:
        taken.extend([outcome async for outcome in outcomes])

    source = Echo(lambda _: anyio.sleep_forever())
    async with anyio.create_task_group() as group, source.swarm().batch(AGENT, Counted()) as outcomes:
        group.start_soon(read, outcomes)
        await idle()
    assert taken == []


async def test_an_error_of_the_iterator_after_leaving_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The error of the iterator is logged for a reader that leaves early."""

    def items() -> Iterator[str]:
        yield "a"
        raise OSError("gone")

    async with Echo().swarm().batch(AGENT, items()) as outcomes:
        await idle()
        assert (await anext(outcomes)).id == "0"
    assert "gone" in caplog.text


# --- base exceptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, type("Other", (BaseException,), {})])
async def test_a_base_exception_stops_the_batch(kind: type[BaseException]) -> None:
    """A base exception leaves the block as itself, after the other items have stopped."""
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


@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_base_exception_is_raised_at_the_end_of_the_block(has_failed: bool) -> None:
    """A reader that takes no outcome gets the base exception too, in place of the error of its body."""

    async def gate(text: str) -> None:
        raise SystemExit(3)

    async def leave_early() -> None:
        async with Echo(gate).swarm().batch(AGENT, ["x"]):
            await idle()
            if has_failed:
                raise ZeroDivisionError

    with pytest.raises(SystemExit) as raised:
        await leave_early()
    assert isinstance(raised.value.__context__, ZeroDivisionError) is has_failed


async def test_a_base_exception_of_the_iterator_stops_the_batch() -> None:
    """A KeyboardInterrupt of the iterator leaves the block as itself."""

    def items() -> Iterator[str]:
        yield "0"
        raise KeyboardInterrupt

    scene = Scene()
    with pytest.raises(KeyboardInterrupt):
        async with scene.source.swarm().batch(AGENT, items()) as outcomes:
            await drain(outcomes)


# --- no scope in the reader's frames ----------------------------------------------------------------------------------


async def test_a_generator_around_a_batch_may_be_dropped() -> None:
    """Another task may close a generator with an open batch, and no task is cancelled (PEP 789)."""
    scene = Scene()

    async def read() -> AsyncGenerator[BatchResult, None]:
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
