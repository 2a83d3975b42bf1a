"""The streams of `Swarm`: generators and iterators as Python knows them, live, and closed however they are left."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import Agent, CompletionFinished, RunError, Swarm, TextDelta, ToolCallFinished, ToolCallStarted, tool
from aswarm.middleware import CompletionRequest, Handlers
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from aswarm.types import ClassicStream, EventStream, SyncClassicStream, SyncEventStream
from tests.support.blocking.blocking import CLIENTS
from tests.support.blocking.plain_client import BlockingClient

TOOL_EVENTS = (ToolCallStarted, ToolCallFinished)
every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())


@pytest.fixture
def swarm() -> Iterator[Swarm]:
    with Swarm(BlockingClient("Hello", "Hello")) as made:
        yield made


def test_they_show_what_their_async_twins_show() -> None:
    """Every public name of the async streams has its counterpart."""
    for ours, theirs in ((SyncClassicStream, ClassicStream), (SyncEventStream, EventStream)):
        names = {name for name, _ in inspect.getmembers(theirs) if not name.startswith("_")}
        renamed = {"aclose": "close", "asend": "send", "athrow": "throw"}
        assert {renamed.get(name, name) for name in names} <= set(dir(ours))


@every_client
def test_nothing_is_asked_before_the_first_event(client: Any) -> None:
    """As with any generator, nothing happens until it is read."""
    made = client("Hello")
    with Swarm(made) as swarm:
        stream = swarm.run(Agent(), "Go", stream=True)
        assert stream.response.messages == []
        assert stream.partial == ""
        assert next(stream) == {"delim": "start"}
        next(stream)
        assert next(stream)["content"] == "He"
        assert stream.partial == "He"
        assert stream.response.stop == "cancelled"
        *_, last = stream
        assert last["response"] is stream.response
        check_history(stream.response.messages)


def test_the_end(swarm: Swarm) -> None:
    """After the last event, and after closing, there are no more; closing again does nothing."""
    stream = swarm.run(Agent(), "Go", stream=True)
    assert "response" in list(stream)[-1]
    assert next(stream, None) is None
    stream.close()
    other = swarm.run(Agent(), "Go", stream=True)
    next(other)
    other.close()
    other.close()
    assert list(other) == []
    unread = swarm.run(Agent(), "Go", stream=True)
    unread.close()
    assert list(unread) == []


def test_in_a_fork(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is the parent's: it cannot be read in the child, and closing or dropping it there does nothing to it."""
    stream, dropped = (swarm.run(Agent(), "Go", stream=True) for _ in range(2))
    next(stream)
    parent = os.getpid()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(RuntimeError, match="not to its fork"):
            next(stream)
        stream.close()
        del dropped
    assert list(stream)[-1]["response"].text == "Hello"


def test_send_throw_and_delegation(swarm: Swarm) -> None:
    """A stream has the other methods of a generator."""

    def relay() -> Generator[Any, None, str]:
        yield from swarm.run(Agent(), "Go", stream=True)
        return "over"

    delims = [event["delim"] for event in relay() if "delim" in event]
    assert delims == ["start", "end"]
    stream = swarm.run(Agent(), "Go", stream=True)
    assert stream.send(None) == {"delim": "start"}
    with pytest.raises(ZeroDivisionError, match="mine"):
        stream.throw(ZeroDivisionError("mine"))
    assert list(stream) == []
    unread = swarm.run(Agent(), "Go", stream=True)
    with pytest.raises(KeyError):
        unread.throw(KeyError)


@pytest.mark.parametrize("thrown", [(KeyError, "mine"), (KeyError, KeyError("mine")), (KeyError("mine"),)])
def test_what_is_thrown(swarm: Swarm, thrown: tuple[Any, ...]) -> None:
    """In one piece, or in the three of old."""
    stream = swarm.run(Agent(), "Go", stream=True)
    next(stream)
    with pytest.raises(KeyError, match="mine"):
        stream.throw(*thrown)
    try:
        raise ValueError
    except ValueError as error:
        traceback = error.__traceback__
    with pytest.raises(KeyError) as caught:
        swarm.run(Agent(), "Go", stream=True).throw(KeyError, None, traceback)
    assert caught.traceback[-1].frame.code.name == "test_what_is_thrown"


def test_a_typed_stream_wants_its_block(swarm: Swarm) -> None:
    """So that leaving it ends the run, as with AsyncSwarm."""
    with pytest.raises(RuntimeError, match=r"use `with swarm\.stream"):
        next(swarm.stream(Agent(), "Go"))
    with swarm.stream(Agent(), "Go") as run:
        texts = [event.text for event in run if isinstance(event, TextDelta)]
    assert "".join(texts) == "Hello"


@pytest.mark.parametrize("kind", ["classic", "typed"])
def test_a_stream_is_entered_once(swarm: Swarm, kind: str) -> None:
    """A second block would show nothing, so it is refused; the attempt does not end an open run."""
    stream = swarm.stream(Agent(), "Go") if kind == "typed" else swarm.run(Agent(), "Go", stream=True)
    with stream:
        next(iter(stream))
        with pytest.raises(RuntimeError, match="only once"):
            stream.__enter__()
        assert list(stream)
    with pytest.raises(RuntimeError, match="only once"), stream:
        pass
    assert stream.response.text == "Hello"


@every_client
def test_a_call_is_shown_before_its_function_runs(client: Any) -> None:
    """A terminal can show a call before its function asks for confirmation."""
    order: list[str] = []

    def ask(what: str) -> str:
        order.append(f"running {what}")
        return "yes"

    calls = [call("ask", what="a"), call("ask", what="b")]
    with Swarm(client(calls, "Done")) as swarm, swarm.stream(Agent(functions=[ask]), "Go") as run:
        order += (f"{kind.__name__} {event.index}" for event in run if (kind := type(event)) in TOOL_EVENTS)
    assert order == [
        "ToolCallStarted 0",
        "running a",
        "ToolCallFinished 0",
        "ToolCallStarted 1",
        "running b",
        "ToolCallFinished 1",
    ]


def test_leaving_while_a_function_runs() -> None:
    """An async function is cancelled and awaited; the response has the calls so far."""
    cleaned: list[str] = []

    async def fast() -> str:
        return "fast"

    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0)
            cleaned.append("hang")
        return "never"

    with Swarm(BlockingClient([call("fast"), call("hang")])) as swarm:
        with swarm.stream(Agent(functions=[fast, hang]), "Go") as run:
            for event in run:
                if isinstance(event, ToolCallFinished):
                    break
        assert cleaned == ["hang"]
        contents = [message["content"] for message in run.response.messages if message["role"] == "tool"]
        assert contents == ["fast", "cancelled; its outcome is unknown"]


def test_reading_while_it_is_read(swarm: Swarm) -> None:
    """A function of the run cannot read the run; another thread cannot either; nothing is lost by trying."""
    told: list[str] = []

    def read() -> str:
        for attempt in (stream.__next__, stream.close):
            with pytest.raises(RuntimeError, match="already being read") as caught:
                attempt()
            told.append(str(caught.value))
        return "no"

    swarm.client = BlockingClient(call("read"), "Done")
    stream = swarm.run(Agent(functions=[read]), "Go", stream=True)
    assert list(stream)[-1]["response"].text == "Done"
    assert len(told) == 2


def test_steps_in_different_threads() -> None:
    """One after another, any thread may read; functions run in the thread that reads."""
    where: list[int] = []

    def note() -> str:
        where.append(threading.get_ident())
        return "noted"

    with Swarm(BlockingClient(call("note"), "Done")) as swarm:
        stream = swarm.run(Agent(functions=[note]), "Go", stream=True)
        next(stream)
        reader = threading.Thread(target=lambda: list(stream))
        reader.start()
        reader.join()
        assert where == [reader.ident]
        assert stream.response.text == "Done"


def test_functions_that_may_run_together_are_shown_as_they_end() -> None:
    """In the caller's thread they run one after another: the end of the first is shown before the start of the second."""
    order: list[str] = []

    @tool(thread=False, concurrent=True)
    def work(what: str) -> str:
        order.append(f"running {what}")
        return what

    calls = [call("work", what="a"), call("work", what="b"), call("work", what="c")]
    with Swarm(BlockingClient(calls, "Done")) as swarm, swarm.stream(Agent(functions=[work]), "Go") as run:
        order += (f"{kind.__name__} {event.index}" for event in run if (kind := type(event)) in TOOL_EVENTS)
    assert order == [
        "ToolCallStarted 0",
        "ToolCallStarted 1",
        "ToolCallStarted 2",
        "running a",
        "ToolCallFinished 0",
        "running b",
        "ToolCallFinished 1",
        "running c",
        "ToolCallFinished 2",
    ]


def test_a_stream_that_cannot_be_closed_does_not_keep_the_others_open() -> None:
    """`Swarm.close` closes all that is open, and raises then."""
    closed: list[str] = []

    def failing(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            try:
                async with aclosing(handlers.complete(request)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            finally:
                closed.append("x")
                raise OSError("cannot close")

        return replace(handlers, complete=complete)

    swarm = Swarm(ScriptedModel([ScriptedAnswer("Hello")] * 3, cut=1).client(), middleware=[failing])
    streams = [swarm.run(Agent(), "Hi", stream=True) for _ in range(3)]
    for stream in streams:
        next(stream)
    with pytest.raises(RunError, match="cannot close"):
        swarm.close()
    assert len(closed) == 3


# --- send ---

SENT = {"role": "user", "content": "Wait!"}


def test_the_block_may_send() -> None:
    """The run continues with the message."""
    model = ScriptedModel(["Done.", "Waiting."])
    with Swarm(model.client()) as swarm, swarm.stream(Agent(), "Go") as run:
        for event in run:
            if isinstance(event, CompletionFinished) and len(model.requests) == 1:
                run.send("Wait!")
                assert run.unsent == [SENT]
    assert [message["content"] for message in run.response.messages] == ["Done.", "Wait!", "Waiting."]


@pytest.mark.parametrize("where", ["in the caller's thread", "in another thread", "on the event loop"])
def test_functions_and_threads_may_send(where: str) -> None:
    """While the caller waits for an event."""
    model = ScriptedModel([call("work"), "Done."])

    def send() -> None:
        run.send("Wait!")

    def work() -> str:
        if where == "in the caller's thread":
            send()
        else:
            thread = threading.Thread(target=send)
            thread.start()
            thread.join()
        return "done"

    async def work_on_loop() -> str:
        send()
        return "done"

    work_on_loop.__name__ = "work"
    agent = Agent(functions=[work_on_loop if where == "on the event loop" else work])
    with Swarm(model.client()) as swarm, swarm.stream(agent, "Go") as run:
        for _ in run:
            pass
    assert model.requests[1].messages[-1] == SENT


def test_an_ended_run_takes_no_message() -> None:
    """The error comes to the thread that sends."""
    with Swarm(ScriptedModel(["Done."]).client()) as swarm, swarm.stream(Agent(), "Go") as run:
        for _ in run:
            pass
        with pytest.raises(RuntimeError, match="this run has ended"):
            run.send("Wait!")
    assert run.unsent == []
