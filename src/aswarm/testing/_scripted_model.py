"""The scripted model: it answers the requests of a real `AsyncOpenAI` from a script, as a transport of `httpx`.

It replies like a correct server, and never opens a socket.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import httpx

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array
from aswarm._values.text import sendable
from aswarm.extensions import CompletionRequest, CompletionSource, source_for

from ._answer import Cut, ScriptedAnswer, ScriptedCall, pieces, wire_call
from ._scripted_responses import messages_of, response, response_events

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# These hosts get no requests. But aswarm chooses the API of a client by its host.
_BASE_URLS = {"chat": "http://scripted.test/v1", "responses": "https://api.openai.com/v1"}


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error instead of a completion.

    Args:
        status: The HTTP status.
        message: The message of the error in the body, in the form of OpenAI's API.
        code: The code of the error in the body.
        headers: Headers such as `{"retry-after": "2"}`.
        delay: Seconds before the response.
    """

    status: int
    message: str = "scripted failure"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay: float = 0


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """Bytes that are sent unchanged, piece by piece. Use it for the responses of a broken server.

    `content_type`: the header of the response. `pause`: seconds before each piece.
    """

    pieces: Sequence[bytes]
    content_type: str = "text/event-stream"
    pause: float = 0


Step: TypeAlias = str | ScriptedCall | Sequence[ScriptedCall] | ScriptedAnswer | Failure | RawAnswer | Exception
"""One reply of a `ScriptedModel`: a text, one or several calls, a `ScriptedAnswer` with text and calls, bytes, or a failure."""
Script: TypeAlias = Iterable["Step | Callable[[Request], Step]"] | Callable[["Request"], "Step"]


@dataclass(frozen=True, slots=True)
class Request:
    """A received request: the JSON `body`, the `headers` and the `path`, such as "/v1/responses"."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    path: str = ""

    @property
    def is_responses(self) -> bool:
        """Whether it is a request to the Responses API."""
        return self.path.endswith("/responses")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the request, including the system message. They have the form of Chat Completions for both APIs."""
        messages: list[dict[str, Any]] = messages_of(self.body) if self.is_responses else self.body["messages"]
        return messages

    @property
    def tool_names(self) -> list[str]:
        """The names of the functions that the request offers."""
        functions = [tool.get("function") or tool for tool in self.body.get("tools", ())]
        return [function["name"] for function in functions if "name" in function]


class ScriptedModel:
    """A model that answers from a script.

    With `AsyncSwarm(model)` and with `AsyncSwarm(model.client())`, the model gets the same requests. The model itself is a
    `CompletionSource`, for example for `fallback`.

    Args:
        script: The steps in order, or a function that gets a `Request` and returns a step. A step is a str (an answer), a
            `call` or a list of calls, a `ScriptedAnswer`, a `Failure`, a `RawAnswer`, an exception that the transport raises, or a
            function that gets a `Request` and returns one of these.
        cut: The size of the pieces of streamed text and arguments in characters, or a function that returns the pieces of a
            text. None: one piece.
        api: The API that aswarm chooses for the model's `client`. The model answers requests of both APIs.

    Attributes:
        requests: The received requests.
        open_streams: The number of response bodies that are open now.
    """

    def __init__(self, script: Script, *, cut: Cut = None, api: Literal["chat", "responses"] = "chat") -> None:
        self._function = script if callable(script) else None
        self._steps = iter(()) if callable(script) else iter(script)
        self._cut = cut
        if api not in _BASE_URLS:
            raise ConfigurationError(
                f"api={api!r}: ScriptedModel has the APIs 'chat' and 'responses'. Agents of Claude: AsyncSwarm(model), without a client"
            )
        self._base_url = _BASE_URLS[api]
        self.requests: list[Request] = []
        self.open_streams: int = 0

    def client(self, **options: Any) -> "AsyncOpenAI":
        """Return a real `AsyncOpenAI` that sends requests to this model. `options`: its arguments; by default no retries."""
        from openai import AsyncOpenAI  # noqa: PLC0415 - slow to import, and not always needed

        # The type hints of openai 3 require httpx2, but openai 3 also accepts httpx. openai 2 accepts only httpx.
        http_client: Any = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))
        # No retries of the client, so that aswarm sees each scripted failure.
        defaults: dict[str, Any] = {"api_key": "scripted", "base_url": self._base_url, "max_retries": 0}
        return AsyncOpenAI(**{**defaults, "http_client": http_client, **options})

    @cached_property
    def _source(self) -> CompletionSource:
        return source_for(self.client())

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks of one completion, through a `client` of this model; see `CompletionSource`."""
        return self._source.complete(request)

    def _next_step(self, request: Request) -> Step:
        """Record the request and return the step that answers it. Raises AssertionError at the end of the script."""
        self.requests.append(request)
        step = self._function or next(self._steps, None)
        if step is None:
            raise AssertionError(f"the script has no answer for request {len(self.requests)}: {request.messages[-1]}")
        return step(request) if callable(step) else step

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        return await self._respond(Request(json.loads(request.content), dict(request.headers), request.url.path))

    async def _respond(self, request: Request) -> httpx.Response:
        step = self._next_step(request)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, RawAnswer):
            body = _Body(self, step.pieces, step.pause, breaks=False)
            return httpx.Response(200, headers={"content-type": step.content_type}, stream=body)
        if isinstance(step, Failure):
            await anyio.sleep(step.delay)
            error = {"message": step.message, "code": step.code, "type": None}
            return httpx.Response(step.status, headers=dict(step.headers), json={"error": error})
        answer = step if isinstance(step, ScriptedAnswer) else _answer(step)
        await anyio.sleep(answer.delay)
        if not request.body.get("stream"):
            if answer.break_after is not None:
                raise httpx.ReadError("scripted break")
            whole = response(answer, request.body) if request.is_responses else completion(answer)
            return httpx.Response(200, headers={"content-type": "application/json"}, content=_as_json(whole))
        if request.is_responses:
            events = _response_bytes(answer, request.body, self._cut)
        else:
            events = _chunk_bytes(answer, self._cut)
        body = _Body(self, events[: answer.break_after], answer.pause, breaks=answer.break_after is not None)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=body)


def _answer(step: str | ScriptedCall | Sequence[ScriptedCall]) -> ScriptedAnswer:
    if isinstance(step, str):
        return ScriptedAnswer(step)
    calls = [step] if isinstance(step, ScriptedCall) else step
    if not (is_array(calls) and all(isinstance(each, ScriptedCall) for each in calls)):
        raise TypeError(
            f"a step of the script must be a str, a call(...), a list of calls, or a ScriptedAnswer; it is {step!r}"
        )
    return ScriptedAnswer(calls=calls)


def completion(answer: ScriptedAnswer) -> dict[str, Any]:
    """Return the answer as one whole `chat.completion` object."""
    choice = {"index": 0, "message": answer.message, "finish_reason": answer.finish}
    usage = {} if answer.usage is None else {"usage": answer.usage}
    return {"id": "scripted", "object": "chat.completion", "model": "scripted", "choices": [choice], **usage}


def chunks(answer: ScriptedAnswer, cut: Cut = None) -> Iterator[dict[str, Any]]:
    """Yield the answer as `chat.completion.chunk` objects, in the order in which OpenAI sends them."""
    yield _chunk({"role": "assistant", "content": None if answer.calls else ""})
    for key, value in answer.extra.items():
        for piece in pieces(value, cut) if isinstance(value, str) else (value,):
            yield _chunk({key: piece})
    for piece in pieces(answer.text or "", cut):
        yield _chunk({"content": piece})
    for index, each in enumerate(answer.calls):
        head = {**wire_call(each), each.kind: {"name": each.name, each.payload: ""}}
        yield _chunk({"tool_calls": [{"index": index, **head}]})
        for piece in pieces(each.arguments, cut):
            yield _chunk({"tool_calls": [{"index": index, each.kind: {each.payload: piece}}]})
    yield _chunk({}, answer.finish)
    if answer.usage is not None:
        yield {**_chunk({}), "choices": [], "usage": answer.usage}


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "scripted", "object": "chat.completion.chunk", "model": "scripted", "choices": [choice]}


def _as_json(data: object) -> str:
    """Return the JSON text of an answer. Half a surrogate pair has its escape, as servers in JavaScript send it."""
    text = json.dumps(data, ensure_ascii=False)
    return text if text.isascii() else sendable(text)


def _chunk_bytes(answer: ScriptedAnswer, cut: Cut) -> list[bytes]:
    data = [_as_json(chunk) for chunk in chunks(answer, cut)]
    done = ["[DONE]"] if answer.break_after is None else []  # a stream that breaks never reaches its end
    return [f"data: {each}\n\n".encode() for each in [*data, *done]]


def _response_bytes(answer: ScriptedAnswer, request: Mapping[str, Any], cut: Cut) -> list[bytes]:
    events = [(event["type"], _as_json(event)) for event in response_events(answer, cut, request)]
    return [f"event: {kind}\ndata: {data}\n\n".encode() for kind, data in events]


class _Body(httpx.AsyncByteStream):
    # Not an async generator: httpx would drop the generator without closing it, and trio would emit a warning.
    def __init__(self, model: ScriptedModel, pieces: Sequence[bytes], pause: float, *, breaks: bool) -> None:
        self.pieces = pieces
        self._model = model
        self._pieces = iter(pieces)
        self._pause = pause
        self._breaks = breaks
        self._is_open = True
        model.open_streams += 1

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await anyio.sleep(self._pause)
        for piece in self._pieces:
            return piece
        if self._breaks:
            raise httpx.ReadError("scripted break")
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._model.open_streams -= self._is_open  # counted only once, even if a body is closed twice
        self._is_open = False
