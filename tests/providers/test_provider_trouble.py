"""Everything a provider can do wrong, over either API, ends in one class of error, which names the fault, and keeps the run."""

from __future__ import annotations

import importlib.metadata
import socket
from typing import Any, Literal

import anyio
import anyio.abc
import httpx
import openai
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, Response, RunError
from aswarm.errors import StreamInterrupted
from aswarm.testing import Failure, RawAnswer, ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.providers.faces import respond
from tests.support.providers.loopback import Reply, read_request, serve, spoken
from tests.support.providers.transports import EACH_TRANSPORT, Transport, client_at, on_each_transport
from tests.support.run.ways_to_run import FACES
from tests.support.sampling import every

Api = Literal["chat", "responses"]
pytestmark = [pytest.mark.parametrize("api", ["chat", "responses"])]


def look() -> str:
    return "seen"


async def through(client: Any, face: str, api: Api, agent: Agent | None = None) -> Response:
    """Return the response of one run."""
    with anyio.fail_after(120):
        return await respond(AsyncSwarm(client=client, api=api), face, agent or Agent(functions=[look]), "Go")


async def trouble(client: Any, face: str, api: Api, agent: Agent | None = None) -> CompletionError:
    """The error of a run, after the checks that hold for every one."""
    with pytest.raises(RunError) as caught:
        await through(client, face, api, agent)
    error = caught.value
    assert isinstance(error, CompletionError)
    assert error.response is not None and error.response.stop == "error"
    check_history(error.response.messages)
    return error


def up_to(text: str, body: dict[str, Any]) -> list[bytes]:
    """Return a streamed answer up to the piece with this text."""
    pieces = spoken(ScriptedAnswer("Hello there"), body, cut=6).pieces
    return list(pieces[: next(number for number, piece in enumerate(pieces) if text.encode() in piece) + 1])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("status", "retryable", "cause"),
    [
        (400, False, openai.BadRequestError),
        (401, False, openai.AuthenticationError),
        (403, False, openai.PermissionDeniedError),
        (404, False, openai.NotFoundError),
        (408, True, openai.APIStatusError),
        (409, True, openai.ConflictError),
        (422, False, openai.UnprocessableEntityError),
        (429, True, openai.RateLimitError),
        (500, True, openai.InternalServerError),
        (503, True, openai.InternalServerError),
        (529, True, openai.InternalServerError),
    ],
)
async def test_a_status(status: int, retryable: bool, cause: type[Exception], face: str, api: Api) -> None:
    """An HTTP error is a CompletionError with its status, in its words, caused by the SDK's exception."""
    error = await trouble(ScriptedModel([Failure(status, "these words")]).client(), face, api)
    assert type(error) is CompletionError
    assert (error.status_code, error.retryable, error.partial) == (status, retryable, "")
    assert "these words" in str(error)
    assert isinstance(error.__cause__, cause)


@pytest.mark.parametrize("face", FACES)
async def test_a_failure_in_the_second_turn_keeps_the_first(face: str, api: Api) -> None:
    """The messages before the failure are in `.response`, so that the run can go on from there."""
    model = ScriptedModel([call("look"), Failure(500), "Done"])
    error = await trouble(model.client(), face, api)
    assert error.response is not None
    assert [message["role"] for message in error.response.messages] == ["assistant", "tool"]
    assert error.response.usage.requests == 1
    history = [{"role": "user", "content": "Go"}, *error.response.messages]
    response = await AsyncSwarm(client=model.client(), api=api).run(Agent(functions=[look]), history)
    assert response.text == "Done"


@pytest.mark.parametrize("face", FACES)
async def test_429_with_retry_after_then_success(face: str, api: Api) -> None:
    """The SDK waits as long as the server asks and tries again; the run does not notice."""
    model = ScriptedModel(
        [Failure(429, headers={"retry-after-ms": "20"}), Failure(429, headers={"retry-after": "0.02"}), "Hi"]
    )
    before = anyio.current_time()
    assert (await through(model.client(max_retries=2), face, api)).text == "Hi"
    assert len(model.requests) == 3
    assert anyio.current_time() - before > 0.03


@pytest.mark.parametrize("face", FACES)
async def test_500s_until_the_retries_end(face: str, api: Api) -> None:
    """After the last retry the failure is a retryable CompletionError."""
    model = ScriptedModel([Failure(500, headers={"retry-after-ms": "1"})] * 3)
    error = await trouble(model.client(max_retries=2), face, api)
    assert (len(model.requests), error.status_code, error.retryable) == (3, 500, True)


@on_each_transport
@pytest.mark.parametrize("face", FACES)
async def test_connection_refused(transport: Transport, face: str, api: Api) -> None:
    """A server that is not there is a retryable CompletionError without a status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with client_at(f"http://127.0.0.1:{free.getsockname()[1]}/v1", transport, api) as client:
            error = await trouble(client, face, api)
    assert not isinstance(error, StreamInterrupted)
    assert (error.status_code, error.retryable) == (None, True)
    _check_cause_of_lost_connection(error, transport)


@on_each_transport
@pytest.mark.parametrize("face", ["run(stream=True)", "stream"])
async def test_reset_in_the_middle_of_a_stream(transport: Transport, face: str, api: Api) -> None:
    """A reset connection is a StreamInterrupted; the text so far is in `partial`, in no message."""
    async with (
        serve(lambda body: Reply(up_to("Hello ", body), pause=0.01, end="reset")) as server,
        client_at(server.base_url, transport, api, max_retries=3) as client,
    ):
        error = await trouble(client, face, api)
    assert isinstance(error, StreamInterrupted)
    assert (error.partial, error.status_code, error.retryable) == ("Hello ", None, True)
    _check_cause_of_reset(error, transport)
    assert error.response is not None and error.response.messages == []
    assert len(server.requests) == 1, "a stream that had begun is not tried again"


@on_each_transport
@pytest.mark.parametrize("face", FACES)
async def test_reset_before_the_answer(transport: Transport, face: str, api: Api) -> None:
    """A connection that is reset before any event of the answer is a retryable CompletionError."""
    async with (
        serve(lambda _: Reply([], end="reset")) as server,
        client_at(server.base_url, transport, api, timeout=5) as client,
    ):
        error = await trouble(client, face, api)
    assert (error.partial, error.status_code, error.retryable) == ("", None, True)
    _check_cause_of_reset(error, transport)


def _check_cause_of_lost_connection(error: CompletionError, transport: Transport) -> None:
    if transport == "direct":
        assert type(error.__cause__).__module__.partition(".")[0] in ("aiohttp", "httpx")
    else:
        assert isinstance(error.__cause__, openai.APIConnectionError)


def _check_cause_of_reset(error: CompletionError, transport: Transport) -> None:
    # anyio 4.6 on asyncio reads a reset as an end of the stream: then there is no exception to be the cause. aiohttp
    # does so too if the body has neither a length nor chunks.
    reads_an_end = transport in ("aiohttp", "direct") or importlib.metadata.version("anyio").startswith("4.6.")
    assert error.__cause__ is not None or reads_an_end


@on_each_transport
async def test_a_connection_that_ends_before_the_answer(transport: Transport, api: Api) -> None:
    """The error is no timeout, although the SDK calls it one on aiohttp."""
    error = await trouble_with_bytes(b"", transport, api)
    _check_cause_of_lost_connection(error, transport)
    assert "no answer in time" not in str(error)


@on_each_transport
async def test_an_answer_that_is_not_http(transport: Transport, api: Api) -> None:
    """The server has sent no status, so the request may be repeated."""
    await trouble_with_bytes(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", transport, api)


async def trouble_with_bytes(answer: bytes, transport: Transport, api: Api) -> CompletionError:
    """The error of a run whose server sends these bytes and closes the connection."""

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await read_request(stream)
            await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with (
        listener,
        anyio.create_task_group() as group,
        client_at(f"http://127.0.0.1:{port}/v1", transport, api) as client,
    ):
        group.start_soon(listener.serve, handle)
        error = await trouble(client, "run", api)
        group.cancel_scope.cancel()
    assert (error.partial, error.status_code, error.retryable) == ("", None, True)
    return error


@pytest.mark.processes
@pytest.mark.parametrize(
    ("transport", "anyio_backend", "where", "face"),
    every(4, EACH_TRANSPORT, ["client", "settings"], ["run(stream=True)", "stream"]),
)
async def test_a_stall_beyond_the_read_timeout(transport: Transport, where: str, face: str, api: Api) -> None:
    """A stream that stalls is a StreamInterrupted after the read timeout, and its connection is closed."""
    async with (
        serve(lambda body: Reply(up_to("Hello ", body), end="stall")) as server,
        client_at(server.base_url, transport, api, **({"timeout": 1.0} if where == "client" else {})) as client,
    ):
        settings = {"timeout": 1.0} if where == "settings" else {}
        error = await trouble(client, face, api, Agent(model_settings=settings))
        with anyio.fail_after(60):
            while server.open_now:
                await anyio.sleep(0.005)
    assert isinstance(error, StreamInterrupted)
    assert (error.partial, error.retryable) == ("Hello ", True)
    assert type(error.__cause__).__name__ in ("ReadTimeout", "SocketTimeoutError")


@on_each_transport
async def test_a_stall_of_a_plain_request(transport: Transport, api: Api) -> None:
    """A plain request that is not answered in time is a retryable CompletionError caused by the SDK's timeout."""
    async with (
        serve(lambda _: Reply([], silent=True)) as server,
        client_at(server.base_url, transport, api, timeout=0.2) as client,
    ):
        error = await trouble(client, "run", api)
    assert error.retryable
    if transport == "direct":
        assert "no answer in time" in str(error)
    else:
        assert isinstance(error.__cause__, openai.APITimeoutError)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "text/event-stream"),
        (b"data: [DONE]\n\n", "text/event-stream"),
        (b"<html><body>Bad gateway</body></html>", "text/html"),
        (b"data: {broken\n\n", "text/event-stream"),
        (b"{}", "application/json"),
        (b"null", "application/json"),
        (b'"text"', "application/json"),
        (b'{"choices": []}', "application/json"),
        (b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n', "text/event-stream"),
        (b'data: {"type": "response.output_text.delta", "delta": "Hi"}\n\n', "text/event-stream"),
        (b'data: {"error": {"message": "overloaded", "code": 529}}\n\n', "text/event-stream"),
        (b'{"error": {"message": "overloaded", "code": 529}}', "application/json"),
    ],
    ids=lambda value: value.decode()[:24] if isinstance(value, bytes) else "",
)
async def test_an_answer_that_is_none(body: bytes, content_type: str, face: str, api: Api) -> None:
    """A 200 that holds no whole completion is a CompletionError, never an empty answer."""
    error = await trouble(ScriptedModel([RawAnswer([body] if body else [], content_type)]).client(), face, api)
    assert error.response is not None and error.response.messages == []
    if b"error" in body:
        assert "overloaded" in str(error)
        assert (error.status_code, error.retryable) == (529, True)
    else:
        assert isinstance(error, StreamInterrupted | CompletionError)


async def test_an_error_in_the_middle_of_a_stream(api: Api) -> None:
    """An error event after text is a CompletionError with the provider's code; the text so far is in `partial`."""
    half = {
        "chat": b'data: {"choices": [{"delta": {"content": "Half"}}]}\n\n',
        "responses": b'data: {"type": "response.output_text.delta", "delta": "Half"}\n\n',
    }
    pieces = [half[api], b'data: {"error": {"message": "no", "code": 502}}\n\n']
    error = await trouble(ScriptedModel([RawAnswer(pieces)]).client(), "stream", api)
    assert (error.partial, error.status_code, error.retryable) == ("Half", 502, True)


async def test_a_broken_stream_closes_its_response(api: Api) -> None:
    """Whatever breaks a stream, its response is closed."""
    model = ScriptedModel([ScriptedAnswer("Hello", break_after=2), RawAnswer([b"data: {broken\n\n"] * 3)])
    for _ in range(2):
        await trouble(model.client(), "stream", api)
        assert model.open_streams == 0


async def test_an_exception_of_the_transport_is_the_cause(api: Api) -> None:
    """An exception below the SDK is in the text, and reachable through the causes."""
    error = await trouble(ScriptedModel([httpx.ConnectError("name not resolved")]).client(), "run", api)
    assert "name not resolved" in str(error)
    assert isinstance(error.__cause__, openai.APIConnectionError)
