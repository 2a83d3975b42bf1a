"""A stream of `Swarm` that its reader leaves or drops: a call that has not started stays open, and the stream is closed."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aswarm import Agent, Swarm, ToolCallStarted
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from aswarm.types import SyncEventStream
from tests.support.blocking.blocking import CLIENTS, PLACES
from tests.support.blocking.plain_client import BlockingClient
from tests.support.run.one_turn import contents

every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
every_place = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
Place = Callable[[Callable[[], Any]], Any]


def read_until(run: SyncEventStream, kind: type, name: str) -> None:
    for event in run:
        if isinstance(event, kind) and event.name == name:  # type: ignore[attr-defined]
            break


def leave_by_break(swarm: Swarm, agent: Agent, name: str) -> SyncEventStream:
    with swarm.stream(agent, "Go") as run:
        read_until(run, ToolCallStarted, name)
    return run


def leave_by_an_error(swarm: Swarm, agent: Agent, name: str) -> SyncEventStream:
    run = swarm.stream(agent, "Go")

    def fail() -> None:
        with run:
            read_until(run, ToolCallStarted, name)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    return run


def leave_by_close(swarm: Swarm, agent: Agent, name: str) -> SyncEventStream:
    run = swarm.stream(agent, "Go").__enter__()
    read_until(run, ToolCallStarted, name)
    run.close()
    return run


def leave_by_closing_the_swarm(swarm: Swarm, agent: Agent, name: str) -> SyncEventStream:
    run = swarm.stream(agent, "Go").__enter__()
    read_until(run, ToolCallStarted, name)
    swarm.close()
    return run


@every_client
@every_place
@pytest.mark.parametrize("leave", [leave_by_break, leave_by_an_error, leave_by_close, leave_by_closing_the_swarm])
def test_a_plain_function_does_not_begin_once_its_reader_has_left(leave: Any, place: Place, client: Any) -> None:
    """Left at its `ToolCallStarted`: the function is not called, and its call stays open, so that it can be resumed."""
    called: list[str] = []

    def first() -> str:
        called.append("first")
        return "done"

    def second() -> str:
        called.append("second")
        return "done"

    agent = Agent(functions=[first, second])
    with Swarm(client([call("first"), call("second")], "Done")) as swarm:
        run = place(lambda: leave(swarm, agent, "second"))
        assert called == ["first"]
        assert contents(run.response) == ["done"]
        assert run.response.stop == "cancelled"
        history = [{"role": "user", "content": "Go"}, *run.response.messages]
        response = swarm.run(agent, history, resume=True)
    assert called == ["first", "second"]
    assert contents(response) == ["done"]
    check_history([*history[1:], *response.messages])


def test_a_plain_function_does_not_begin_once_its_stream_was_dropped() -> None:
    """The same without `with`: the last reference goes away while the function waits for its turn."""
    called: list[str] = []

    def work() -> str:
        called.append("work")
        return "done"

    with Swarm(BlockingClient(call("work"))) as swarm:
        run = swarm.stream(Agent(functions=[work]), "Go").__enter__()
        read_until(run, ToolCallStarted, "work")
        del run
        gc.collect()
    assert called == []


def test_a_handoff_of_the_same_turn_answers_a_call_that_did_not_begin() -> None:
    """The new agent may not have the function: the call is answered as not run."""

    def work() -> str:
        raise AssertionError("called after the reader had left")

    other = Agent(name="Other")
    agent = Agent(functions=[other, work])
    with Swarm(BlockingClient([call("transfer_to_other"), call("work")])) as swarm:
        run = leave_by_break(swarm, agent, "work")
    assert contents(run.response)[1] == "not run: interrupted"
    assert run.response.agent is other
    check_history(run.response.messages)


# --- dropped streams ---


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


def test_a_cleanup_that_fails_in_a_dropped_stream(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged: no caller is left that could get the exception."""

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
