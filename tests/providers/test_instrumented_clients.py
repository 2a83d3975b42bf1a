"""Clients that instrumentation has patched: the patch sees every completion, as an object of the SDK."""

from __future__ import annotations

import functools
import inspect
import json
import types
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.resources.chat.completions import AsyncCompletions, Completions
from openai.types.chat import ChatCompletion

from aswarm import Agent, AsyncSwarm, CompletionError, Response, Swarm
from aswarm.errors import StreamInterrupted
from aswarm.testing import RawAnswer, ScriptedAnswer, ScriptedModel, Step
from tests.support.cli.cli_runs import model
from tests.support.providers.instrumented import FunctionLike
from tests.support.wire.wire_cases import chunk, sse

Seen = list[dict[str, Any]]


async def run(swarm: AsyncSwarm, *, deltas: bool) -> Response:
    """A run to its end."""
    async with swarm.stream(Agent(), "Hi", deltas=deltas) as stream:
        async for _ in stream:
            pass
    return stream.response


@pytest.mark.asyncio
@pytest.mark.parametrize("deltas", [True, False])
async def test_a_wrapped_create_of_the_class_is_called(deltas: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each completion goes through the wrapper, and a streamed one asks for its usage, which the wrapper records."""
    seen: Seen = []
    monkeypatch.setattr(AsyncCompletions, "create", FunctionLike(AsyncCompletions.create, seen))
    swarm = AsyncSwarm(ScriptedModel([ScriptedAnswer("Hello")] * 3).client())
    responses = [await run(swarm, deltas=deltas) for _ in range(3)]
    assert [response.text for response in responses] == ["Hello"] * 3
    assert [made.get("stream_options") for made in seen] == [{"include_usage": True} if deltas else None] * 3
    assert all(response.usage.total_tokens > 0 for response in responses)


@pytest.mark.asyncio
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("of_instance", [False, True])
async def test_instrumentation_between_two_runs_is_called(
    of_instance: bool, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may instrument its client late, and end the instrumentation again: each run looks at the client anew."""
    client, seen = ScriptedModel([ScriptedAnswer("Hello")] * 3, api=api).client(), Seen()
    swarm = AsyncSwarm(client, api=api)
    resource = client.chat.completions if api == "chat" else client.responses
    await swarm.run(Agent(), "Hi")
    with monkeypatch.context() as patches:
        owner: Any = resource if of_instance else type(resource)
        patches.setattr(owner, "create", FunctionLike(owner.create, seen))
        await swarm.run(Agent(), "Hi")
    await swarm.run(Agent(), "Hi")
    assert len(seen) == 1


def test_instrumentation_of_a_blocking_client_between_two_runs_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for `Swarm`."""
    seen = Seen()
    with model("Hello", "Hello") as server, openai.OpenAI(api_key="x", base_url=server.base_url) as client:
        swarm = Swarm(client)
        swarm.run(Agent(), "Hi")
        monkeypatch.setattr(client.chat.completions, "create", FunctionLike(client.chat.completions.create, seen))
        swarm.run(Agent(), "Hi")
    assert len(seen) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("deltas", [True, False])
async def test_a_hook_below_create_reads_body_and_answer(deltas: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook gets the body as a dict with the model, and the answer as the object that the SDK makes."""
    asked: list[Any] = []
    answered: list[Any] = []
    original = openai.AsyncOpenAI.request

    @functools.wraps(original)
    async def request(self: Any, cast_to: Any, options: Any, **more: Any) -> Any:
        asked.append(options.json_data)
        answer = await original(self, cast_to, options, **more)
        answered.append(answer)
        return answer

    monkeypatch.setattr(openai.AsyncOpenAI, "request", request)
    response = await run(AsyncSwarm(ScriptedModel(["Hello"]).client()), deltas=deltas)
    assert (response.text, asked[0]["model"]) == ("Hello", "gpt-6-luna")
    assert isinstance(answered[0], openai.AsyncStream if deltas else ChatCompletion)


class BothWays:
    """A stream of a blocking client in a wrapper that seems to iterate in both ways, as OpenTelemetry's and others are."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stream)

    def __aiter__(self) -> AsyncIterator[Any]:
        raise AssertionError("the stream is not async")


def test_a_wrapped_stream_of_a_blocking_client_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Swarm` reads the stream in the way in which the wrapped stream can be read."""
    original: Callable[..., Any] = Completions.create

    @functools.wraps(original)
    def create(*args: Any, **kwargs: Any) -> Any:
        return BothWays(original(*args, **kwargs))

    monkeypatch.setattr(Completions, "create", create)
    with model("Hello") as server, openai.OpenAI(api_key="x", base_url=server.base_url) as client:
        events = list(Swarm(client).run(Agent(), "Hi", stream=True))
    assert events[-1]["response"].text == "Hello"


@pytest.mark.asyncio
@pytest.mark.parametrize("of_instance", [False, True])
async def test_the_signature_of_create_is_read_once(of_instance: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it takes longer than all the rest of a request here; the wrapper is a new object at each access."""
    client = ScriptedModel([ScriptedAnswer("Hello")] * 3).client()
    owner: Any = client.chat.completions if of_instance else AsyncCompletions
    original, read, signature = owner.create, list[Any](), inspect.signature

    async def create(*args: Any, stream_options: Any = None, **request: Any) -> Any:
        return await original(*args, stream_options=stream_options, **request)

    def counted(function: Any, **options: Any) -> inspect.Signature:
        if inspect.unwrap(function) is create:
            read.append(function)
        return signature(function, **options)

    monkeypatch.setattr(owner, "create", FunctionLike(create, []))
    monkeypatch.setattr(inspect, "signature", counted)
    swarm = AsyncSwarm(client)
    responses = [await run(swarm, deltas=True) for _ in range(3)]
    assert all(response.usage.total_tokens > 0 for response in responses)
    assert len(read) == 1


@pytest.mark.asyncio
async def test_a_create_that_cannot_be_remembered_is_called() -> None:
    """An object without a hash, or without weak references, may be a `create`."""
    seen: list[Any] = []

    class Create:
        __slots__ = ()

        async def __call__(self, *, stream_options: Any = None, **request: Any) -> Any:
            seen.append(stream_options)
            return {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}

    client = types.SimpleNamespace(chat=types.SimpleNamespace(completions=types.SimpleNamespace(create=Create())))
    assert (await run(AsyncSwarm(client), deltas=True)).text == "Hello"
    assert seen == [{"include_usage": True}]


@pytest.mark.asyncio
async def test_a_create_without_a_signature_is_called_without_stream_options() -> None:
    """For example a builtin: its parameters are unknown, so it gets the arguments of every client."""

    class Create:
        __signature__ = "none"

        async def __call__(self, **request: Any) -> Any:
            assert "stream_options" not in request
            return {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}

    client = types.SimpleNamespace(chat=types.SimpleNamespace(completions=types.SimpleNamespace(create=Create())))
    assert (await run(AsyncSwarm(client), deltas=True)).text == "Hello"


# --- errors and ends of a stream --------------------------------------------------------------------------------------


def instrumented(step: Step) -> Any:
    """Return a client whose `create` is wrapped, so that the stream has objects of the SDK."""
    return wrapped(ScriptedModel([step]).client())


def wrapped(client: Any) -> Any:
    """Return the client with a wrapped `create` of both APIs."""
    for resource in (client.chat.completions, client.responses):
        resource.create = FunctionLike(resource.create, [])
    return client


ERRORS: dict[str, list[bytes]] = {
    "a code": sse(chunk({"content": "Hel"}), {"error": {"message": "Token limit reached", "code": 400}}),
    "beside choices": sse(chunk({"content": "Hel"}, "error", error={"message": "Token limit reached", "code": 400})),
    "may pass": sse(chunk({"content": "Hel"}), {"error": {"message": "Busy", "code": 503}}),
    "a name": sse(chunk({"content": "Hel"}), {"error": {"message": "Slow down", "type": "rate_limit_error"}}),
    "a text": sse(chunk({"content": "Hel"}), {"error": "Token limit reached"}),
    "raw": sse(chunk({"content": "Hel"}), {"error": {"message": "No", "metadata": {"raw": "Token limit reached"}}}),
    "first": sse({"error": {"message": "Token limit reached", "code": 400}}),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("case", ERRORS)
async def test_an_error_inside_a_stream_is_the_same_as_without_instrumentation(case: str) -> None:
    """The same CompletionError, not a StreamInterrupted: text, status, retryable and the text so far are equal."""
    raw = RawAnswer(ERRORS[case])
    seen = []
    for client in (ScriptedModel([raw]).client(), instrumented(raw)):
        with pytest.raises(CompletionError) as caught:
            await run(AsyncSwarm(client, api="chat"), deltas=True)
        error = caught.value
        seen.append((type(error), str(error), error.status_code, error.retryable, error.partial))
    assert seen[0] == seen[1]
    assert seen[0][0] is CompletionError


def test_an_error_inside_a_stream_of_a_blocking_client() -> None:
    """The same for a blocking client in a `Swarm`."""
    answer = b"".join(ERRORS["a code"])
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=answer))
    http_client: Any = httpx.Client(transport=transport)
    client = openai.OpenAI(api_key="x", base_url="http://a.test/v1", http_client=http_client)
    with Swarm(wrapped(client), api="chat") as swarm, pytest.raises(CompletionError, match="Token limit") as caught:
        list(swarm.run(Agent(), "Hi", stream=True))
    assert (type(caught.value), caught.value.status_code) == (CompletionError, 400)


@pytest.mark.asyncio
async def test_a_cut_stream_of_an_instrumented_client_is_interrupted() -> None:
    """The SDK ends silently if a connection is closed: without a finish reason, such a stream is not whole."""
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}}
    cumulative = [chunk({"content": new}, usage=usage["usage"]) for new in ("Hel", "lo")]
    for cut in ([chunk({"content": "Hel"})], cumulative, cumulative[:1]):
        with pytest.raises(StreamInterrupted) as caught:
            await run(AsyncSwarm(instrumented(RawAnswer(sse(*cut, done=False))), api="chat"), deltas=True)
        assert caught.value.partial.startswith("Hel")
    whole = RawAnswer(sse(chunk({"content": "Hello"}), usage))
    assert (await run(AsyncSwarm(instrumented(whole), api="chat"), deltas=True)).text == "Hello"


@pytest.mark.asyncio
async def test_a_delta_beside_the_message_of_an_object() -> None:
    """Perplexity's whole answer as an object of the SDK."""
    both = {
        "index": 0,
        "message": {"role": "assistant", "content": "pong"},
        "delta": {"content": ""},
        "finish_reason": "stop",
    }
    body = json.dumps({"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [both]}).encode()
    client = instrumented(RawAnswer([body], "application/json"))
    assert (await AsyncSwarm(client, api="chat").run(Agent(), "Hi")).text == "pong"
