"""Ctrl-C while a `Swarm` waits: the run is cancelled and awaited, the caller gets KeyboardInterrupt, nothing is broken."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from aswarm import Agent, Swarm, TextDelta
from aswarm._blocking.caller import in_callers_thread
from aswarm._blocking.event_loop import Interrupts, event_loop_thread
from aswarm.testing import ScriptedAnswer, call, check_history
from tests.support.blocking.blocking import FACES, consume, in_notebook, until
from tests.support.blocking.plain_client import BlockingClient
from tests.support.providers.bodies import chunks
from tests.support.run.one_turn import contents

UNKNOWN = "cancelled; its outcome is unknown"


def interrupt() -> None:
    """Ctrl-C, now; in the main thread, to which it comes."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


@pytest.fixture(autouse=True)
def handler_is_back() -> Iterator[None]:
    """Python's own handler of Ctrl-C is there before and after."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def interrupted(swarm: Swarm, agent: Agent, face: str = "run") -> Any:
    """Run until KeyboardInterrupt; then the swarm is still good. The response that was left, if the exception has it."""
    with pytest.raises(KeyboardInterrupt) as caught:
        consume(swarm, agent, face)
    swarm.client = BlockingClient("Still here")
    assert swarm.run(Agent(), "Go").text == "Still here"
    return getattr(caught.value, "response", None)


@pytest.mark.parametrize("face", FACES)
def test_while_an_async_function_waits(face: str) -> None:
    """It is cancelled and awaited; its outcome is unknown in the response."""
    cleaned: list[str] = []

    async def hang() -> str:
        asyncio.get_running_loop().call_soon(interrupt)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("hang")
        return "never"

    with Swarm(BlockingClient(call("hang"))) as swarm:
        response = interrupted(swarm, Agent(functions=[hang]), face)
        assert cleaned == ["hang"]
    if face == "run":
        assert response.stop == "cancelled"
        assert contents(response) == [UNKNOWN]
        check_history(response.messages)


@pytest.mark.parametrize("face", FACES)
def test_while_a_plain_function_runs(face: str) -> None:
    """It is raised in the function itself, as in a script."""
    seen: list[type] = []

    def work() -> str:
        try:
            interrupt()
        except BaseException as error:
            seen.append(type(error))
            raise
        return "never"

    with Swarm(BlockingClient(call("work"))) as swarm:
        response = interrupted(swarm, Agent(functions=[work]), face)
        assert seen == [KeyboardInterrupt]
    if face == "run":
        assert contents(response) == [UNKNOWN]


def test_a_function_may_catch_it() -> None:
    """A prompt that answers Ctrl-C with "no" works as in a script."""

    def confirm() -> str:
        try:
            interrupt()
        except KeyboardInterrupt:
            return "no"
        return "yes"

    with Swarm(BlockingClient(call("confirm"), "Done")) as swarm:
        response = swarm.run(Agent(functions=[confirm]), "Go")
    assert (contents(response), response.stop) == (["no"], "answer")


def test_while_a_blocking_client_waits() -> None:
    """It is raised in the client, which closes its connections."""

    class Interrupted(BlockingClient):
        def _create(self, **request: Any) -> Any:
            interrupt()

    with Swarm(Interrupted()) as swarm:
        assert interrupted(swarm, Agent()).messages == []


class Source:
    """A client on the event loop; `at` is called at each of its pieces."""

    def __init__(self, at: Callable[[int], None]) -> None:
        self._at = at

    async def complete(self, request: Any) -> Any:
        self._at(0)
        yield {"choices": [{"delta": {"role": "assistant", "content": "Hi"}}]}
        self._at(1)
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        self._at(2)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("moment", [0, 1, 2])
def test_at_the_moment_of_an_event(moment: int, face: str) -> None:
    """Ctrl-C is not lost if nothing is left to cancel, and the stream is over."""
    with Swarm(Source(lambda now: interrupt() if now == moment else None)) as swarm:
        response = interrupted(swarm, Agent(), face)
    if face == "run":
        assert response.stop == "answer"


def test_the_stream_has_ended() -> None:
    """After Ctrl-C there are no more events, and the response is valid."""
    with Swarm(Source(lambda now: interrupt() if now == 1 else None)) as swarm:
        stream = swarm.run(Agent(), "Go", stream=True)
        assert next(stream) == {"delim": "start"}
        assert next(stream)["content"] == "Hi"
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert list(stream) == []
        assert stream.response.stop == "cancelled"
        check_history(stream.response.messages)


@pytest.mark.parametrize("face", FACES)
def test_a_second_one_does_not_wait(face: str) -> None:
    """A cleanup that hangs is left to the event loop, where it ends."""
    gate, ended = threading.Event(), threading.Event()

    async def hang() -> str:
        asyncio.get_running_loop().call_soon(interrupt)
        try:
            await asyncio.Event().wait()
        finally:
            interrupt()
            with anyio.CancelScope(shield=True):
                while not gate.is_set():
                    await anyio.sleep(0.001)
            ended.set()
        return "never"

    swarm = Swarm(BlockingClient(call("hang")))
    interrupted(swarm, Agent(functions=[hang]), face)
    assert not ended.is_set()
    gate.set()
    assert ended.wait(120)


def test_a_second_one_while_a_client_waits_to_be_closed() -> None:
    """A client that is still open when its caller has left is closed on the event loop."""
    closed: list[str] = []
    cleaning, gate = threading.Event(), threading.Event()

    def reply(**_: Any) -> Iterator[Any]:
        try:
            yield from chunks(ScriptedAnswer(calls=[call("hang")]), 1)
            yield from chunks(ScriptedAnswer("never read"), 1)
        finally:
            closed.append(threading.current_thread().name)

    async def clean_up() -> None:
        cleaning.set()
        interrupt()
        while not gate.is_set():
            await asyncio.sleep(0.001)

    class Source:
        async def complete(self, request: Any) -> Any:
            replies = reply()
            try:
                yield await in_callers_thread(lambda: next(replies))
                asyncio.get_running_loop().call_soon(interrupt)
                await asyncio.Event().wait()
            finally:
                with anyio.CancelScope(shield=True):
                    await clean_up()
                    await in_callers_thread(replies.close, must_run=True)

    swarm = Swarm(Source())
    interrupted(swarm, Agent())
    assert cleaning.is_set()
    assert closed == []
    gate.set()
    until(lambda: closed)
    assert closed == ["aswarm event loop"]


def test_just_when_the_next_chunk_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk is not read any more, so a silent model does not hold up the end."""
    loop = event_loop_thread()
    call_now = loop.call
    held: list[Any] = []

    def call_late(callback: Any) -> None:
        """Ctrl-C comes in the first call, and reaches the event loop together with it."""
        held.append(callback)
        if len(held) == 1:
            interrupt()
            return
        monkeypatch.undo()
        for each in held:
            call_now(each)

    def reply(**_: Any) -> Iterator[Any]:
        yield from itertools.islice(chunks(ScriptedAnswer("Hello"), 5), 2)
        called.append("read")
        time.sleep(5)

    called: list[str] = []
    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=reply)))
    with Swarm(client).stream(Agent(), "Go") as run:
        while not isinstance(next(run), TextDelta):
            pass
        monkeypatch.setattr(loop, "call", call_late)
        with pytest.raises(KeyboardInterrupt):
            next(run)
    assert called == []


@pytest.mark.parametrize("face", FACES)
def test_in_a_notebook(face: str) -> None:
    """The thread that waits is the main thread, to which Ctrl-C comes."""
    began = threading.Event()

    async def hang() -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    def press() -> None:
        began.wait()
        interrupt()

    def cell() -> None:
        loop = asyncio.new_event_loop()  # `asyncio.run` would handle Ctrl-C in its own way
        try:
            loop.run_until_complete(asyncio.wait_for(_async(lambda: interrupted(swarm, agent, face)), None))
        finally:
            loop.close()

    with Swarm(BlockingClient(call("hang"))) as swarm:
        agent, presser = Agent(functions=[hang]), threading.Thread(target=press)
        presser.start()
        cell()
        presser.join()


async def _async(work: Callable[[], Any]) -> Any:
    return work()


def test_while_another_thread_waits() -> None:
    """Only the run of the main thread ends."""
    gate = threading.Event()
    began: list[str] = []

    async def wait_for_gate() -> str:
        began.append("gate")
        while not gate.is_set():
            await asyncio.sleep(0.001)
        return "passed"

    async def hang() -> str:
        began.append("hang")
        await asyncio.Event().wait()
        return "never"

    def press() -> None:
        until(lambda: len(began) == 2)
        interrupt()

    texts: list[str] = []
    with Swarm(BlockingClient(call("wait_for_gate"))) as swarm:
        other = threading.Thread(
            target=lambda: texts.extend(contents(swarm.run(Agent(functions=[wait_for_gate]), "Go", max_turns=1)))
        )
        other.start()
        until(lambda: began)
        swarm.client = BlockingClient(call("hang"))
        presser = threading.Thread(target=press)
        presser.start()
        response = interrupted(swarm, Agent(functions=[hang]))
        assert contents(response) == [UNKNOWN]
        gate.set()
        other.join()
        presser.join()
    assert texts == ["passed"]


def test_a_handler_of_the_programs_own() -> None:
    """It is called as without a Swarm, and its exception would end the run like any interruption."""
    calls: list[int] = []

    async def pressed() -> str:
        interrupt()
        return "went on"

    with Swarm(BlockingClient(call("pressed"), "Done")) as swarm:
        signal.signal(signal.SIGINT, lambda number, _: calls.append(number))
        assert contents(swarm.run(Agent(functions=[pressed]), "Go")) == ["went on"]
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert calls == [signal.SIGINT]


def test_an_alarm_that_raises() -> None:
    """An exception of any signal handler is raised unchanged, after the end of the run."""

    def ring(*_: object) -> None:
        raise TimeoutError("too long")

    async def hang() -> str:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        await asyncio.Event().wait()
        return "never"

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with Swarm(BlockingClient(call("hang"))) as swarm:
            with pytest.raises(TimeoutError) as caught:
                swarm.run(Agent(functions=[hang]), "Go")
            assert contents(caught.value.response) == [UNKNOWN]  # type: ignore[attr-defined]
            swarm.client = BlockingClient("Still here")
            assert in_notebook(lambda: swarm.run(Agent(), "Go")).text == "Still here"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_between_two_waits() -> None:
    """It is kept for the next check, for the next wait, and at the latest for the next function."""
    told: list[str] = []
    with Interrupts() as interrupts:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupt()
        with interrupts.notifying(lambda: told.append("told")):
            assert told == ["told"]
        with pytest.raises(KeyboardInterrupt):
            interrupts.call(lambda: told.append("called"))
        assert told == ["told"]
    with pytest.raises(KeyboardInterrupt), Interrupts():
        interrupt()


def test_in_another_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """If Python refuses to set a handler, the host handles Ctrl-C."""

    def refuse(*_: object) -> None:
        raise ValueError("signal only works in main thread of the main interpreter")

    with monkeypatch.context() as patched:
        patched.setattr(signal, "signal", refuse)
        with Interrupts() as interrupts:
            assert interrupts.call(lambda: "called") == "called"
