"""The scripted model: it answers requests from a script, over an `httpx` transport, behind a real `AsyncOpenAI`.

Decides what a correct server would send. Never opens a socket.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import httpx

from ._answer import Answer, Cut, ScriptedCall, pieces, wire_call
from ._scripted_responses import messages_of, response, response_events

if TYPE_CHECKING:
    from openai import AsyncOpenAI

# No request leaves the process. aswarm chooses the API of a client by its host.
_BASE_URLS = {"chat": "http://scripted.test/v1", "responses": "https://api.openai.com/v1"}


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error in place of a completion, after `delay` seconds.

    `status`: the HTTP status. `message` and `code`: those of the error in the body, in the form of OpenAI's API. `headers`:
    such as `{"retry-after": "2"}`.
    """

    status: int
    message: str = "scripted failure"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay: float = 0


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """Bytes that are sent as they are, piece by piece: for everything that a correct server would not send.

    `content_type`: the header of the response. `pause`: seconds before each piece.
    """

    pieces: Sequence[bytes]
    content_type: str = "text/event-stream"
    pause: float = 0


Step: TypeAlias = str | ScriptedCall | Sequence[ScriptedCall] | Answer | Failure | RawAnswer | Exception
"""What a `ScriptedModel` says once: a text, a call or several, an `Answer` with both, or something that goes wrong."""
Script: TypeAlias = Iterable["Step | Callable[[Request], Step]"] | Callable[["Request"], "Step"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was received: the JSON `body`, the `headers` and the `path`, such as "/v1/responses"."""

    body: dict[str, Any]
    headers: Mapping[str, str]
    path: str = ""

    @property
    def is_responses(self) -> bool:
        """Whether it is a request of the Responses API."""
        return self.path.endswith("/responses")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the request, with the system message, in the form of Chat Completions over both APIs."""
        messages: list[dict[str, Any]] = messages_of(self.body) if self.is_responses else self.body["messages"]
        return messages

    @property
    def tool_names(self) -> list[str]:
        """The names of the functions that the request offers."""
        functions = [tool.get("function") or tool for tool in self.body.get("tools", ())]
        return [function["name"] for function in functions if "name" in function]


class ScriptedModel:
    """A model that answers from a script.

    `script`: the steps in order, or a function from `Request` to a step. A step is a str (an answer), a `call` or a list of
    them, an `Answer`, a `Failure`, a `RawAnswer`, an exception that the transport raises, or a function from `Request` to
    one of these. `cut`: how streamed text and arguments are cut: into pieces of so many characters, by a function that
    returns the pieces of a text, or not at all. `api`: the API that aswarm chooses for its `client`; the model answers
    requests of both.

    Attributes: `requests` are the requests that were received, `open_streams` is how many response bodies are open now.
    """

    def __init__(self, script: Script, *, cut: Cut = None, api: Literal["chat", "responses"] = "chat") -> None:
        self._function = script if callable(script) else None
        self._steps = iter(()) if callable(script) else iter(script)
        self._cut = cut
        self._base_url = _BASE_URLS[api]
        self.requests: list[Request] = []
        self.open_streams = 0

    def client(self, **options: Any) -> "AsyncOpenAI":
        """A real `AsyncOpenAI` that talks to this model; `options` are those of `AsyncOpenAI`. By default it never retries."""
        from openai import AsyncOpenAI  # noqa: PLC0415 - heavy, and not needed to import this module

        # openai 3 is typed for httpx2 and takes httpx too; openai 2 takes httpx only.
        http_client: Any = httpx.AsyncClient(transport=_Transport(self))
        settings: dict[str, Any] = {
            "api_key": "scripted",
            "base_url": self._base_url,
            "max_retries": 0,
            "http_client": http_client,
            **options,
        }
        return AsyncOpenAI(**settings)

    def next_step(self, request: Request) -> Step:
        """Record the request and return the step that answers it. Raises AssertionError if the script has ended."""
        self.requests.append(request)
        step = self._function or next(self._steps, None)
        if step is None:
            raise AssertionError(f"the script has no answer for request {len(self.requests)}: {request.messages[-1]}")
        return step(request) if callable(step) else step

    async def respond(self, request: Request) -> httpx.Response:
        """The HTTP response to one request."""
        step = self.next_step(request)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, RawAnswer):
            return self._streamed(step.pieces, step.content_type, step.pause, breaks=False)
        if isinstance(step, Failure):
            await anyio.sleep(step.delay)
            error = {"message": step.message, "code": step.code, "type": None}
            return httpx.Response(step.status, headers=dict(step.headers), json={"error": error})
        answer = step if isinstance(step, Answer) else _answer(step)
        await anyio.sleep(answer.delay)
        if not request.body.get("stream"):
            if answer.break_after is not None:
                raise httpx.ReadError("scripted break")
            return httpx.Response(200, json=response(answer) if request.is_responses else completion(answer))
        events = _response_bytes(answer, self._cut) if request.is_responses else _chunk_bytes(answer, self._cut)
        breaks = answer.break_after is not None
        return self._streamed(events[: answer.break_after], "text/event-stream", answer.pause, breaks=breaks)

    def _streamed(self, pieces: Sequence[bytes], content_type: str, pause: float, *, breaks: bool) -> httpx.Response:
        body = _Body(self, pieces, pause, breaks)
        return httpx.Response(200, headers={"content-type": content_type}, stream=body)


def _answer(step: str | ScriptedCall | Sequence[ScriptedCall]) -> Answer:
    if isinstance(step, str):
        return Answer(step)
    return Answer(calls=[step] if isinstance(step, ScriptedCall) else step)


def completion(answer: Answer) -> dict[str, Any]:
    """The answer as one whole `chat.completion` object."""
    choice = {"index": 0, "message": answer.message, "finish_reason": answer.finish}
    usage = {} if answer.usage is None else {"usage": answer.usage}
    return {"id": "scripted", "object": "chat.completion", "model": "scripted", "choices": [choice], **usage}


def chunks(answer: Answer, cut: Cut = None) -> Iterator[dict[str, Any]]:
    """The answer as `chat.completion.chunk` objects, in the order in which OpenAI sends them."""
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


def _chunk_bytes(answer: Answer, cut: Cut) -> list[bytes]:
    done = [b"data: [DONE]\n\n"] if answer.break_after is None else []
    return [*(f"data: {_json(chunk)}\n\n".encode() for chunk in chunks(answer, cut)), *done]


def _response_bytes(answer: Answer, cut: Cut) -> list[bytes]:
    return [f"event: {event['type']}\ndata: {_json(event)}\n\n".encode() for event in response_events(answer, cut)]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, model: ScriptedModel) -> None:
        self._model = model

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        return await self._model.respond(Request(body, dict(request.headers), request.url.path))


class _Body(httpx.AsyncByteStream):
    # No async generator: httpx drops it without closing it, and trio warns of that.
    def __init__(self, model: ScriptedModel, pieces: Sequence[bytes], pause: float, breaks: bool) -> None:
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
        self._model.open_streams -= self._is_open
        self._is_open = False
