"""The scripted model: it answers the requests of a real `AsyncOpenAI`, over both APIs, from a script, as a transport of `httpx`.

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
from aswarm._values.found_tools import SEARCH_TOOLS
from aswarm._values.json import is_array
from aswarm._values.text import sendable
from aswarm.extensions import CompletionRequest, CompletionSource, source_for

from ._answer import CallKind, Cut, ScriptedAnswer, ScriptedCall, pieces, wire_call

if TYPE_CHECKING:
    from openai import AsyncOpenAI


Json = dict[str, Any]

_CALL_TYPES: Mapping[CallKind, str] = {"function": "function_call", "custom": "custom_tool_call"}
_CALL_KINDS: Mapping[str, CallKind] = {name: kind for kind, name in _CALL_TYPES.items()}
_CONTENT = ("arguments", "content", "input", "summary")  # keys of items whose values are sent in pieces
# A response repeats these parts of the request. The types of openai require them.
_REQUEST_FIELDS: Json = {"created_at": 0, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
_NO_REQUEST: Json = {"input": ()}
_DEFINITION = ("name", "description", "parameters")
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response(answer: ScriptedAnswer, request: Mapping[str, Any] = _NO_REQUEST) -> Json:
    """Return the answer to a request, as one whole `response` object."""
    reason = _INCOMPLETE.get(answer.finish)
    return {
        "id": "scripted",
        "object": "response",
        "model": "scripted",
        **_REQUEST_FIELDS,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": [{"id": f"item_{index}", **item} for index, item in enumerate(_items(answer, request))],
        "usage": _usage(answer),
    }


def _items(answer: ScriptedAnswer, request: Mapping[str, Any]) -> Iterator[Json]:
    extra = dict(answer.extra)
    if reasoning := extra.pop("reasoning_content", None):
        summary = [{"type": "summary_text", "text": reasoning}]
        yield {"type": "reasoning", "summary": summary, "encrypted_content": f"encrypted {reasoning}"}
    yield from extra.pop("responses_output", ())
    parts: list[Json] = [{"type": "output_text", "text": answer.text, "annotations": []}] if answer.text else []
    if refusal := extra.pop("refusal", None):
        parts.append({"type": "refusal", "refusal": refusal})
    if extra:
        raise AssertionError(f"a scripted answer has keys that the Responses API does not have: {', '.join(extra)}")
    if parts:
        yield {"type": "message", "status": "completed", "role": "assistant", "content": parts}
    for each in answer.calls:
        yield {"status": "completed", "call_id": each.id, **_call(each, request)}


def _call(call: ScriptedCall, request: Mapping[str, Any]) -> Json:
    if call.name == SEARCH_TOOLS and any(tool.get("execution") == "client" for tool in request.get("tools", ())):
        return {"type": "tool_search_call", "execution": "client", "arguments": json.loads(call.arguments)}
    # As OpenAI, the model calls a function that a tool search has found in a namespace of the same name.
    found = {tool["name"] for item in _input(request) for tool in item.get("tools", ())}
    namespace = {"namespace": call.name} if call.name in found else {}
    return {"type": _CALL_TYPES[call.kind], "name": call.name, call.payload: call.arguments, **namespace}


def _input(request: Mapping[str, Any]) -> list[Json]:
    """Return the items of a request. A text, which openai's client accepts too, is a message of the user."""
    items: str | list[Json] = request["input"]
    return [{"role": "user", "content": items}] if isinstance(items, str) else items


def _usage(answer: ScriptedAnswer) -> Json | None:
    if answer.usage is None:
        return None
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    names |= {f"{old}_details": f"{new}_details" for old, new in names.items()}
    return {names.get(key, key): value for key, value in answer.usage.items()}


# --- events -----------------------------------------------------------------------------------------------------------


def response_events(
    answer: ScriptedAnswer, cut: Cut = None, request: Mapping[str, Any] = _NO_REQUEST
) -> Iterator[Json]:
    """Yield the answer to a request as the events of a stream, in the order in which OpenAI sends them."""
    whole = response(answer, request)
    begun: Json = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(whole["output"]):
        events += [{**event, "output_index": index} for event in _item_events(item, cut)]
    events.append({"type": f"response.{whole['status']}", "response": whole})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _item_events(item: Json, cut: Cut) -> Iterator[Json]:
    empty: Json = {key: type(item[key])() for key in _CONTENT if key in item}
    yield {"type": "response.output_item.added", "item": {**item, **empty}}
    for event in _content_events(item, cut):
        yield {**event, "item_id": item["id"]}
    yield {"type": "response.output_item.done", "item": item}


def _content_events(item: Json, cut: Cut) -> Iterator[Json]:
    if item["type"] == "function_call":
        *deltas, done = _deltas("response.function_call_arguments", item["arguments"], cut, "arguments")
        yield from (*deltas, {**done, "name": item["name"]})
    elif item["type"] == "custom_tool_call":
        yield from _deltas("response.custom_tool_call_input", item["input"], cut, "input")
    for index, part in enumerate(item.get("summary", ())):
        where: dict[str, Any] = {"summary_index": index}
        yield {"type": "response.reasoning_summary_part.added", "part": {**part, "text": ""}, **where}
        yield from _deltas("response.reasoning_summary_text", part["text"], cut, "text", **where)
        yield {"type": "response.reasoning_summary_part.done", "part": part, **where}
    for index, part in enumerate(item.get("content", ())):
        kind = part["type"]
        where = {"content_index": index}
        key = "refusal" if kind == "refusal" else "text"
        logprobs: Json = {"logprobs": []} if kind == "output_text" else {}
        yield {"type": "response.content_part.added", "part": {**part, key: ""}, **where}
        yield from _deltas(f"response.{kind}", part[key], cut, key, **where, **logprobs)
        yield {"type": "response.content_part.done", "part": part, **where}


def _deltas(kind: str, text: str, cut: Cut, key: str, **more: Any) -> Iterator[Json]:
    for piece in pieces(text, cut):
        yield {"type": f"{kind}.delta", "delta": piece, **more}
    yield {"type": f"{kind}.done", key: text, **more}


# --- the messages of a request ----------------------------------------------------------------------------------------


def messages_of(body: Mapping[str, Any]) -> list[Json]:
    """Return the messages in the body of a request, including the system message, in the form of Chat Completions."""
    instructions = body.get("instructions")
    messages: list[Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in _input(body):
        _append(messages, item)
    return messages


def _append(messages: list[Json], item: Mapping[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind == "tool_search_call":
        scripted = ScriptedCall(SEARCH_TOOLS, json.dumps(item["arguments"]), item["call_id"])
        _last_assistant(messages).setdefault("tool_calls", []).append(wire_call(scripted))
    elif kind == "tool_search_output":
        lines = [json.dumps({key: tool.get(key) for key in _DEFINITION}) for tool in item["tools"]]
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": "\n".join(lines)})
    elif kind in _CALL_KINDS:
        written = item.get("arguments") or item.get("input") or ""
        scripted = ScriptedCall(item["name"], written, item["call_id"], _CALL_KINDS[kind])
        _last_assistant(messages).setdefault("tool_calls", []).append(wire_call(scripted))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])})
    elif kind == "message" and item["role"] == "assistant":
        _last_assistant(messages, is_new=True)["content"] = _text(item["content"])
    elif kind == "message":
        messages.append({"role": item["role"], "content": item["content"]})


def _last_assistant(messages: list[Json], *, is_new: bool = False) -> Json:
    if is_new or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


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
