"""Streams of `Swarm` that are dropped half read, wherever it happens: they are closed, and nothing is printed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from aswarm import Agent, Swarm
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.blocking.plain_client import BlockingClient


def test_a_stream_needs_no_name_for_its_swarm() -> None:
    """`for event in Swarm(...).run(...)` is enough; what is dropped is gone without the garbage collector."""
    stream = Swarm(BlockingClient("Hello")).run(Agent(), "Go", stream=True)
    gc.disable()
    try:
        assert next(stream) == {"delim": "start"}
        assert "response" in list(stream)[-1]
        gone = weakref.ref(stream)
        del stream
        assert gone() is None
    finally:
        gc.enable()


def test_dropped_inside_a_function_of_another_run() -> None:
    """A stream dropped on the event loop, or in a function, is closed as well."""
    model = ScriptedModel(
        [ScriptedAnswer("Hello", pause=0.001)] * 2 + [[call("drop"), call("drop_here")], "Done"], cut=1
    )

    async def drop() -> str:
        streams.pop()
        return "dropped"

    def drop_here() -> str:
        streams.pop()
        return "dropped"

    with Swarm(model.client()) as swarm:
        streams = [swarm.run(Agent(), "Go", stream=True) for _ in range(2)]
        for stream in streams:
            next(stream)
        del stream
        assert model.open_streams == 2
        swarm.run(Agent(functions=[drop, drop_here]), "Go")
        assert model.open_streams == 0


def test_dropped_while_a_plain_function_runs() -> None:
    """A blocking client of the dropped one is closed at once, in the thread of the function, which dropped it."""
    closed: list[int] = []

    class Noting(BlockingClient):
        def _streamed(self, answer: ScriptedAnswer) -> Iterator[Any]:
            try:
                yield from super()._streamed(answer)
            finally:
                closed.append(threading.get_ident())

    def drop() -> str:
        streams.clear()
        return f"closed {len(closed)}"

    with Swarm(Noting("Hello")) as swarm:
        streams = [swarm.run(Agent(), "Go", stream=True)]
        next(streams[0])
        swarm.client = BlockingClient(call("drop"), "Done")
        response = swarm.run(Agent(functions=[drop]), "Go")
    assert response.messages[1]["content"] == "closed 1"
    assert closed == [threading.get_ident()]


def test_dropped_in_a_cycle() -> None:
    """The garbage collector closes what refers to itself."""
    model = ScriptedModel([ScriptedAnswer("Hello", pause=0.001)], cut=1)
    swarm = Swarm(model.client())
    holder: dict[str, Any] = {}
    holder["stream"] = swarm.run(Agent(), "Go", stream=True)
    holder["self"] = holder
    next(holder["stream"])
    del holder, swarm
    assert model.open_streams == 1
    gc.collect()
    assert model.open_streams == 0


def test_a_cleanup_that_fails_in_a_dropped_stream(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged: no caller is left that could be told."""

    class Source:
        async def complete(self, request: Any) -> Any:
            try:
                yield {"choices": [{"delta": {"role": "assistant", "content": "Hello"}}]}
            finally:
                raise OSError("cannot close")

    with Swarm(Source()) as swarm:
        stream = swarm.run(Agent(), "Go", stream=True)
        next(stream)
        del stream
        gc.collect()
    assert "could not be closed cleanly" in caplog.text
