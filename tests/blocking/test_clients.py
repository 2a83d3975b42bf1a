"""The clients that `Swarm` takes: a blocking `OpenAI` over real sockets, patched ones, Azure, mocks, or none at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from aswarm import Agent, ConfigurationError, Swarm
from aswarm._blocking.sync_swarm import engine_of
from aswarm.errors import StreamInterrupted
from aswarm.testing import ScriptedAnswer
from tests.support.blocking.blocking import FACES, PLACES, consume, scripted_openai, server_beside, until
from tests.support.blocking.plain_client import BlockingClient
from tests.support.providers.bodies import chunks, completion
from tests.support.providers.loopback import LoopbackServer, Reply, sse, whole

LONG = sse(ScriptedAnswer("Hello, is it me you are looking for?"), cut=1, pause=0.02)
Place = Callable[[Callable[[], Any]], Any]


def client_of(server: LoopbackServer, kind: Any = OpenAI) -> Any:
    return kind(base_url=server.base_url, api_key="k", max_retries=0)


def leave_by_close(swarm: Swarm) -> None:
    stream = swarm.run(Agent(), "Go", stream=True)
    next(stream)
    stream.close()


def leave_by_dropping(swarm: Swarm) -> None:
    for _ in swarm.run(Agent(), "Go", stream=True):
        break


def leave_the_block(swarm: Swarm) -> None:
    with swarm.stream(Agent(), "Go") as run:
        for _ in zip(run, range(3), strict=False):
            pass


def leave_by_an_error(swarm: Swarm) -> None:
    def fail() -> None:
        with swarm.run_and_stream(Agent(), "Go") as stream:
            raise ZeroDivisionError(next(stream))

    with pytest.raises(ZeroDivisionError):
        fail()


def leave_by_closing_the_swarm(swarm: Swarm) -> None:
    stream = swarm.run(Agent(), "Go", stream=True)
    next(stream)
    swarm.close()
    assert list(stream) == []


@pytest.mark.parametrize("kind", [OpenAI, AsyncOpenAI])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
@pytest.mark.parametrize(
    "leave", [leave_by_close, leave_by_dropping, leave_the_block, leave_by_an_error, leave_by_closing_the_swarm]
)
def test_a_stream_left_early_closes_its_connection(leave: Callable[[Swarm], None], place: Place, kind: Any) -> None:
    """However it is left, and whatever the client: the server sees the end of the connection."""
    with server_beside(lambda _: LONG) as server, Swarm(client_of(server, kind)) as swarm:
        place(lambda: leave(swarm))
        until(lambda: server.closed_at)
        until(lambda: not server.open_now)


@pytest.mark.parametrize("kind", [OpenAI, AsyncOpenAI])
@pytest.mark.parametrize("face", FACES)
def test_whole_conversations_over_sockets(face: str, kind: Any) -> None:
    """Whole answers and streams; nothing is closed early."""

    def reply(request: dict[str, Any]) -> Reply:
        return sse(ScriptedAnswer("Hi"), cut=1) if request.get("stream") else whole(ScriptedAnswer("Hi"))

    with server_beside(reply) as server, Swarm(client_of(server, kind)) as swarm:
        assert consume(swarm, Agent(), face).text == "Hi"
        assert not server.closed_at


@pytest.mark.parametrize("kind", [OpenAI, AsyncOpenAI])
def test_a_server_that_goes_on_after_the_last_event_is_not_waited_for(kind: Any) -> None:
    """The server sends [DONE] and keeps the body open: the answer is there."""
    with (
        server_beside(lambda _: sse(ScriptedAnswer("Hi"), end="stall")) as server,
        Swarm(client_of(server, kind)) as swarm,
    ):
        assert consume(swarm, Agent(), "stream").text == "Hi"
        until(lambda: server.closed_at)


def test_a_transport_that_goes_on_after_the_last_event() -> None:
    """One that is no connection at all is left as it is, and ends when it likes."""
    gate = threading.Event()

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from sse(ScriptedAnswer("Hi")).pieces
            gate.wait(120)

    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=Body()))
    http_client: Any = httpx.Client(transport=transport)
    with Swarm(OpenAI(api_key="k", base_url="http://x.test", http_client=http_client)) as swarm:
        assert consume(swarm, Agent(), "stream").text == "Hi"
    gate.set()


@pytest.mark.parametrize("kind", [OpenAI, AsyncOpenAI])
def test_a_stream_that_breaks(kind: Any) -> None:
    """A reset connection is a `StreamInterrupted`, with the text so far."""
    broken = Reply(LONG.pieces[:4], end="reset")
    with server_beside(lambda _: broken) as server, Swarm(client_of(server, kind)) as swarm:
        stream = swarm.run(Agent(), "Go", stream=True)
        with pytest.raises(StreamInterrupted):
            list(stream)
        assert stream.partial
        assert stream.response.stop == "error"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("made", [MagicMock, AsyncMock, scripted_openai])
def test_a_mock_and_a_patched_openai_are_called(made: Callable[[], Any], face: str) -> None:
    """A `create` that was replaced on the instance is called, and not the transport; plain and async mocks work too."""
    client = made()
    if isinstance(client, OpenAI):
        client.chat.completions.create = MagicMock()  # type: ignore[method-assign]
    client.chat.completions.create.side_effect = lambda **asked: answered(asked["stream"])
    with Swarm(client) as swarm:
        assert consume(swarm, Agent(), face).text == "Hi"
    client.chat.completions.create.assert_called_once()


def answered(stream: bool) -> Any:
    return chunks(ScriptedAnswer("Hi"), 1) if stream else completion(ScriptedAnswer("Hi"))


def test_a_generator_that_answers_is_closed_in_the_callers_thread() -> None:
    """When the stream is left early; where its `finally` may be bound to the thread, like all of it."""
    closed: list[int] = []

    def reply(**_: Any) -> Iterator[Any]:
        try:
            yield from chunks(ScriptedAnswer("Hello"), 1)
        finally:
            closed.append(threading.get_ident())

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=reply)))
    with Swarm(client) as swarm:
        stream = swarm.run(Agent(), "Go", stream=True)
        next(stream)
        stream.close()
    assert closed == [threading.get_ident()]


# --- no client ---


def test_without_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocking `OpenAI` from the environment, made on first use and closed by `close`; `with` makes another."""
    with server_beside(lambda _: whole(ScriptedAnswer("Hi"))) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        with Swarm() as swarm:
            assert swarm.run(Agent(), "Go").text == "Hi"
            client = swarm.client
            assert type(client) is OpenAI
            assert client is swarm.client is engine_of(swarm).client
        assert client.is_closed()
        for use in (
            lambda: swarm.client,
            lambda: swarm.run(Agent(), "Go"),
            lambda: next(swarm.run_and_stream(Agent(), "Go")),
        ):
            with pytest.raises(ConfigurationError, match=r"this Swarm is closed; run inside its `with` block"):
                use()
        with swarm:
            with swarm:  # only the end of the last block closes the Swarm
                assert swarm.run(Agent(), "Go").text == "Hi"
            assert swarm.run(Agent(), "Go").text == "Hi"
            assert swarm.client is not client


def test_a_closed_swarm_with_your_client_works_on() -> None:
    """As with AsyncSwarm: the client is open, and the Swarm has nothing that would have to be closed again."""
    with Swarm(BlockingClient("Hi")) as swarm:
        pass
    assert swarm.run(Agent(), "Go").text == "Hi"


def test_the_client_that_was_passed_in() -> None:
    """It is `.client`, may be replaced, and is never closed."""
    first, second = scripted_openai(), BlockingClient("Hi")
    with Swarm(first) as swarm:
        assert swarm.client is first
        swarm.client = second
        assert swarm.client is second
        assert swarm.run(Agent(), "Go").text == "Hi"
        with pytest.raises(ConfigurationError, match="client must be"):
            swarm.client = "no client"
        assert swarm.client is second
        swarm.client = None
    assert not first.is_closed()
