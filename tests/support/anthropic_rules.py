"""A scripted Claude behind Anthropic's own client: it signs its thinking, and refuses what Anthropic's servers refuse.

`anthropic_checks` has the rules for a body. This module has the rules for thinking that comes back: a signature holds the model, the
text, the prefix (system, tools and all earlier messages) and the thinking block before it. So a server of another process can
check it too.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anthropic
import anyio

from tests.support.anthropic_checks import Json, binds_thinking, blocks_of, fault, version
from tests.support.providers.loopback import Reply

# The library of the client's transports: httpx2 for the newest versions of the package.
_LIBRARY = next(
    c.__module__.split(".")[0] for c in anthropic.DefaultAsyncHttpxClient.__mro__ if c.__module__[:5] == "httpx"
)
_HTTP = importlib.import_module(_LIBRARY)
_THINKING = ("thinking", "redacted_thinking")


@dataclass(frozen=True)
class Answer:
    """An answer: blocks (thinking gets its signature here), or a text.

    Attributes:
        stop_reason: None: "tool_use" if there are calls, else "end_turn".
        usage: More fields of the usage, or other numbers.
        extra: More fields of the message, such as `stop_details` or `container`.
        break_after: The number of events before the connection ends. A whole answer is cut in its middle.
    """

    content: str | Sequence[Json] = ""
    stop_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    pause: float = 0
    break_after: int | None = None


@dataclass(frozen=True)
class Failure:
    """An HTTP error in Anthropic's form. With `in_stream`, a streamed answer begins, and the error is an event of it."""

    status: int = 529
    type: str = "overloaded_error"
    message: str = "Overloaded"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    in_stream: bool = False


Step: TypeAlias = str | Sequence[Json] | Answer | Failure
Script: TypeAlias = Iterable["Step | Callable[[Json], Step]"] | Callable[[Json], Step]


def thinking(text: str = "Let me see.") -> Json:
    """Return a block of thinking. The server signs it."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def text(words: str) -> Json:
    """Return a block of text."""
    return {"type": "text", "text": words}


def use(name: str, number: int = 1, /, **arguments: Any) -> Json:
    """Return a call of a tool. `number`: makes the id."""
    return {"type": "tool_use", "id": f"toolu_{name}_{number}", "name": name, "input": arguments}


class AnthropicRules:
    """A server of the Messages API, as a transport of a real `AsyncAnthropic`, or as the function of a loopback server.

    Args:
        script: The steps in order, or a function of the body that returns a step. A step is a text, blocks, an `Answer`, a
            `Failure`, or a function of the body.

    Attributes:
        requests: The accepted bodies.
        refused: The refused bodies, with the reason.
        dropped: The paths of blocks that were sent, but that the model may not read.
    """

    def __init__(self, script: Script) -> None:
        self._function = script if callable(script) else None
        self._steps = iter(()) if callable(script) else iter(script)
        self.requests: list[Json] = []
        self.betas: list[frozenset[str]] = []
        self.refused: list[tuple[Json, str]] = []
        self.dropped: list[str] = []
        self._paused: list[list[Json]] = []  # the last block of each paused answer

    def client(self, kind: type[Any] = anthropic.AsyncAnthropic, **options: Any) -> Any:
        """Return a real client that sends its requests to this server. `options`: its arguments; by default no retries."""
        transport = _HTTP.AsyncClient(transport=_HTTP.MockTransport(self._handle))
        return kind(**{"api_key": "scripted", "max_retries": 0, "http_client": transport, **options})

    def reply(self, body: Json, betas: frozenset[str] | None = None) -> Reply:
        """Answer a request, in the form of the loopback server."""
        is_paused = bool(body.get("messages")) and blocks_of(body["messages"][-1])[-1:] in self._paused
        if reason := fault(body, betas, is_paused=is_paused) or self._thinking_fault(body):
            self.refused.append((body, reason))
            return _error_reply(Failure(400, "invalid_request_error", reason))
        self.requests.append(body)
        step = self._function or next(self._steps, None)
        if step is None:
            raise AssertionError(f"the script has no answer for request {len(self.requests)}: {body['messages'][-1]}")
        return self._played(step(body) if callable(step) else step, body)

    def _played(self, step: Step, body: Json) -> Reply:
        if isinstance(step, Failure) and not (step.in_stream and body.get("stream")):
            return _error_reply(step)
        answer = step if isinstance(step, Answer) else Answer("" if isinstance(step, Failure) else step)
        message = self._message(answer, body)
        if not body.get("stream"):
            data = json.dumps(message).encode()
            data = data if answer.break_after is None else data[: len(data) // 2]
            end = "close" if answer.break_after is None else "reset"
            return Reply([data], content_type="application/json", end=end)
        events = [*events_of(message)]
        if isinstance(step, Failure):
            events = [*events[:2], {"type": "error", "error": {"type": step.type, "message": step.message}}]
        framed = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
        end = "close" if answer.break_after is None else "reset"
        return Reply(framed[: answer.break_after], pause=answer.pause, end=end)

    def _message(self, answer: Answer, body: Json) -> Json:
        content = [text(answer.content)] if isinstance(answer.content, str) else answer.content
        blocks: list[Json] = []
        for block in content:
            blocks.append(_signed(block, body, blocks) if block["type"] in _THINKING else dict(block))
        calls = any(block["type"] == "tool_use" for block in blocks)
        if answer.stop_reason == "pause_turn":
            self._paused.append(blocks[-1:])
        usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
        return {
            "id": f"msg_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": blocks,
            "stop_reason": answer.stop_reason or ("tool_use" if calls else "end_turn"),
            "stop_sequence": None,
            "usage": {**usage, **answer.usage},
            **answer.extra,
        }

    async def _handle(self, request: Any) -> Any:
        betas = frozenset(each.strip() for each in request.headers.get("anthropic-beta", "").split(","))
        self.betas.append(betas)
        reply = self.reply(json.loads(request.content), betas)
        headers = {"content-type": reply.content_type, "request-id": f"req_{len(self.requests)}", **reply.headers}
        return _HTTP.Response(int(reply.status.split()[0]), headers=headers, content=_Pieces(reply))

    def _thinking_fault(self, body: Json) -> str | None:
        """Return why the server refuses the thinking of the history. Blocks that it only drops are recorded."""
        binding = ((body.get("thinking") or {}).get("block_binding") or {}).get("prefix_mismatch_behavior")
        for place, reason in _thinking_faults(body):
            if reason != _MODEL and not (reason == _PREFIX and binding == "drop_block"):
                return f"{place}: {reason}"
            self.dropped.append(place)
        return None


_MODEL = "the model may not read the block"
_PREFIX = (
    "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set "
    '`thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'
)
_CHANGED = (
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as "
    "they were in the original response."
)


def _thinking_faults(body: Json) -> Iterator[tuple[str, str]]:
    """Yield the place and the fault of each block that is not as it was made, or not where it was made."""
    messages, earlier, is_bound = body["messages"], "", binds_thinking(body["model"])
    for index, message in enumerate(messages):
        for number, block in enumerate(blocks_of(message)):
            if block["type"] not in _THINKING:
                continue
            place = f"messages.{index}.content.{number}"
            signature = _signature(block)
            made = _read(signature)
            if made is None or made["text"] != _digest(block.get("thinking", "")):
                later = any(each["role"] == "assistant" for each in messages[index + 1 :])
                yield place, "Invalid `signature` in `thinking` block" if later else _CHANGED
            elif not _may_read(body["model"], made["model"]):
                yield place, _MODEL
            elif is_bound and (made["prefix"] != _prefix(body, index, number) or earlier not in ("", made["earlier"])):
                yield place, _PREFIX
            earlier = _digest(signature)


def _may_read(reader: str, maker: str) -> bool:
    """Whether a model reads the thinking of another one: newer models read that of older ones, not the other way round."""
    return reader == maker or version(reader) >= version(maker)


def _signed(block: Json, body: Json, before: list[Json]) -> Json:
    messages = [*body["messages"], {"role": "assistant", "content": before}]
    if messages[-2]["role"] == "assistant":  # the continuation of a pause or of a prefill belongs to that message
        messages[-2:] = [{"role": "assistant", "content": [*blocks_of(messages[-2]), *before]}]
    sent = [b for message in messages for b in blocks_of(message) if b["type"] in _THINKING]
    earlier = _digest(_signature(sent[-1])) if sent else ""
    index, number = len(messages) - 1, len(messages[-1]["content"])
    made = {"model": body["model"], "text": _digest(block.get("thinking", "")), "earlier": earlier}
    made["prefix"] = _prefix({**body, "messages": messages}, index, number)
    signature = base64.b64encode(json.dumps(made).encode()).decode()
    return {**block, "data" if block["type"] == "redacted_thinking" else "signature": signature}


def _signature(block: Json) -> str:
    return str(block.get("signature") or block.get("data") or "")


def _read(signature: str) -> Json | None:
    try:
        made: Json = json.loads(base64.b64decode(signature))
    except ValueError:
        return None
    return made


def _prefix(body: Json, index: int, number: int) -> str:
    """Return the digest of all that stands before a block, without thinking and without marks for the cache."""
    messages = body["messages"]
    before = [[message["role"], block] for message in messages[:index] for block in blocks_of(message)]
    before += [["assistant", block] for block in blocks_of(messages[index])[:number]]
    system = body.get("system") or []
    head = [[text(system)] if isinstance(system, str) else system, body.get("tools") or []]
    return _digest(
        json.dumps(_plain([head, [each for each in before if each[1]["type"] not in _THINKING]]), sort_keys=True)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if key != "cache_control"}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()[:16] if words else ""


def events_of(message: Json, piece: int = 7) -> Iterator[Json]:
    """Yield the events of a streamed message, with a ping."""
    usage = {**message["usage"], "output_tokens": 1}
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": usage}}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        empty, deltas = _deltas(block, piece)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {
        key: message.get(key) for key in ("stop_reason", "stop_sequence", "stop_details", "container") if key in message
    }
    yield {"type": "message_delta", "delta": ending, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _deltas(block: Json, piece: int) -> tuple[Json, list[Json]]:
    def cut(name: str, words: str, key: str) -> list[Json]:
        return [{"type": name, key: words[at : at + piece]} for at in range(0, len(words), piece)]

    match block["type"]:
        case "text":
            quotes = [{"type": "citations_delta", "citation": each} for each in block.get("citations") or ()]
            return {"type": "text", "text": ""}, [*cut("text_delta", block["text"], "text"), *quotes]
        case "thinking":
            signature = {"type": "signature_delta", "signature": block["signature"]}
            words = cut("thinking_delta", block["thinking"], "thinking")
            return {**block, "thinking": "", "signature": ""}, [*words, signature]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            given = cut("input_json_delta", json.dumps(block["input"]), "partial_json")
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": ""}, *given]
        case _:
            return block, []


def _error_reply(failure: Failure) -> Reply:
    error = {"type": "error", "error": {"type": failure.type, "message": failure.message}, "request_id": "req_error"}
    data, headers = json.dumps(error).encode(), dict(failure.headers)
    return Reply([data], content_type="application/json", status=f"{failure.status} Refused", headers=headers)


class _Pieces:
    """The body of a reply. Not an async generator: httpx would drop it without closing it, and trio would warn."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._pieces = iter(reply.pieces)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await anyio.sleep(self._reply.pause)
        for piece in self._pieces:
            return piece
        if self._reply.end == "reset":
            raise _HTTP.ReadError("scripted break")
        raise StopAsyncIteration
