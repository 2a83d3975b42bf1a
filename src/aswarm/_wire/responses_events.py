"""Reader of one answer of the Responses API: turns its events into chunks of Chat Completions.

Sans-IO. The accumulator reads these chunks like the chunks of any other provider. Without streaming, the answer is one object
instead of events, and becomes one whole chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from aswarm._values.errors import CompletionError
from aswarm._values.json import is_array, is_object, is_zero, shown
from aswarm._values.wire_messages import OUTPUT_ITEMS

from .responses_items import CALL_TYPES, DONE_CALL, NEXT_PART, call_of, check_hosted_calls, is_call, message_of
from .sse import AnswerDecoder, chunk_of

Chunk: TypeAlias = Mapping[str, Any]

_TEXT = {"response.output_text.delta": "content", "response.refusal.delta": "refusal"}
_REASONING = {
    "response.reasoning_summary_text.delta": "summary_index",
    "response.reasoning_text.delta": "content_index",
}
_PAYLOADS = {
    "response.function_call_arguments.delta": ("function", "arguments"),
    "response.custom_tool_call_input.delta": ("custom", "input"),
}
_PAYLOAD_ENDS = frozenset({"response.function_call_arguments.done", "response.custom_tool_call_input.done"})
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_ERRORS = frozenset({"error", "response.error"})
_CONTENT_KEYS = frozenset({"content", "refusal", "reasoning_content"})
_FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_USAGE = {
    "input_tokens": "prompt_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens": "completion_tokens",
    "output_tokens_details": "completion_tokens_details",
}
_SHOWN = 200
# The key of the diagnosis in the details of a usage, and the reason of a hit.
DIAGNOSIS, CACHE_HIT = "prompt_cache_diagnostics", "cache_hit"


class EventReader(Protocol):
    """Protocol of a reader of the events of one answer."""

    is_done: bool

    def read(self, event: Mapping[str, Any]) -> Sequence[Chunk]:
        """Return the chunks of an event."""
        ...


class EventDecoder:
    """Decoder of one answer: reads the bytes of the body and yields the chunks of a reader."""

    def __init__(self, reader: EventReader) -> None:
        self._decoder = AnswerDecoder()
        self._reader = reader

    @property
    def is_done(self) -> bool:
        """Whether the response is complete."""
        return self._reader.is_done or self._decoder.is_done

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """Add bytes; yield the complete chunks. Raises the errors of `AnswerDecoder` and of the reader."""
        return self._read(self._decoder.feed(piece)) if not self.is_done else iter(())

    def end(self) -> Iterator[Chunk]:
        """Yield the last chunks, at the end of the body. The rest after the response, such as a part of `[DONE]`, is ignored."""
        return self._read(self._decoder.end()) if not self.is_done else iter(())

    def whole(self, body: bytes) -> list[Chunk]:
        """Return the chunks of a whole body. Raises the errors of `feed`."""
        return [*self.feed(body), *self.end()]

    def _read(self, events: Iterator[Mapping[str, Any]]) -> Iterator[Chunk]:
        for event in events:
            yield from self._reader.read(event)
            if self._reader.is_done:
                return


def responses_decoder() -> EventDecoder:
    """Return a decoder of one answer of the Responses API."""
    return EventDecoder(ResponseReader())


@dataclass(slots=True)
class _StreamedCall:
    """A call whose start has arrived.

    `index`: its number among the calls of the response. `has_payload`: whether some of its arguments have arrived.
    `is_whole`: whether its finished item has arrived. `is_done`: whether a chunk has reported that the arguments are complete.
    """

    index: int
    has_payload: bool = False
    is_whole: bool = False
    is_done: bool = False


class ResponseReader:
    """Reader of the events of one response. If `is_done` is true, the response is complete, and later events are ignored."""

    def __init__(self) -> None:
        # The keys are the id of the item, the id of the call, and `output_index`: some servers confuse or omit some of them.
        self._calls: dict[Any, _StreamedCall] = {}
        self._call_count = 0
        self._last_call: _StreamedCall | None = None
        self._whole_items: list[Mapping[str, Any]] = []
        self._shown: set[Any] = set()  # the types of the items that were streamed
        self._texts: dict[str, list[str]] = {"content": [], "reasoning_content": []}  # the pieces that were streamed
        self._next_message = ""  # the separator to send before the first text of another message
        self._reasoning_place: Any = None
        self.is_done = False

    def read(self, event: Mapping[str, Any]) -> Sequence[Chunk]:
        """Return the chunks of an event, normally one or none.

        Raises CompletionError for a malformed event of a known type. Raises ConfigurationError if the model calls a hosted
        tool that the client would have to execute.
        """
        if self.is_done:
            return ()
        try:
            kind = event.get("type")
            # Most events are pieces of text. A generator for each of them would take a third of the time.
            return self._text(event["delta"], _TEXT[kind]) if kind in _TEXT else list(self._read(event, kind))
        except (AttributeError, KeyError, TypeError) as error:
            raise CompletionError(f"the provider sent an event that cannot be read: {shown(event, _SHOWN)}") from error

    def _read(self, event: Mapping[str, Any], kind: Any) -> Iterator[Chunk]:
        if kind in _PAYLOADS:
            yield from self._payload(event, *_PAYLOADS[kind])
        elif kind in _PAYLOAD_ENDS:
            yield from self._end_call(self._find(event))
        elif kind in _REASONING:
            yield from self._reasoning(event, (kind, event.get(_REASONING[kind])))
        elif kind == "response.output_item.added":
            yield from self._start_item(event)
        elif kind == "response.output_item.done":
            yield from self._end_item(event)
        elif kind in _ENDS:
            yield from self._finish(event["response"])
        elif kind in _ERRORS or (not _is_progress(kind) and _error_of(event)):
            yield {"error": _error_of(event) or event}
        elif not _is_progress(kind) and (kind in (None, "response") or event.get("object") == "response"):
            self.is_done = True
            yield _whole(event)
        # Ignore other types, such as the progress of hosted tools and "keepalive". They have no content. Their fields `output`
        # and `error` are those of a tool.

    def _text(self, delta: str, key: str) -> Sequence[Chunk]:
        if key == "content" and delta:
            if self._next_message:
                delta, self._next_message = self._next_message + delta, ""
            self._texts["content"].append(delta)
        self._shown.add("message")
        return ({"choices": [{"index": 0, "delta": {key: delta}, "finish_reason": None}]},)

    def _payload(self, event: Mapping[str, Any], kind: str, key: str) -> Iterator[Chunk]:
        call = self._find(event) or self._last_call
        # Some servers send no start of a call, but the whole call at its end. The pieces of such a call are ignored.
        if call is not None and not call.is_whole:
            call.has_payload = True
            yield chunk_of({"tool_calls": [{"index": call.index, kind: {key: event["delta"]}}]})

    def _end_call(self, call: _StreamedCall | None) -> Iterator[Chunk]:
        """Report that the arguments of a call are complete. At the end of the response, this report is not necessary."""
        if call is not None and call.has_payload and not (call.is_done or self.is_done):
            call.is_done = True
            yield chunk_of({}, **{DONE_CALL: call.index})

    def _reasoning(self, event: Mapping[str, Any], part: Any) -> Iterator[Chunk]:
        number, delta = event.get("output_index"), event["delta"]
        if delta == "":  # the final message does not contain the empty parts
            return
        place = (event.get("item_id") if number is None else number, part)
        before = NEXT_PART if "reasoning" in self._shown and place != self._reasoning_place else ""
        self._reasoning_place = place
        self._shown.add("reasoning")
        self._texts["reasoning_content"].append(before + delta)
        yield chunk_of({"reasoning_content": before + delta})

    def _start_item(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        wire = event["item"]
        if is_call(wire):
            call = self._new_call(event)
            yield chunk_of({"tool_calls": [{"index": call.index, **call_of(wire)}]})
        elif wire.get("type") == "message" and self._texts["content"]:
            self._next_message = NEXT_PART

    def _end_item(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """Yield the missing rest of a finished item. Some servers send no pieces of an item, or only the start of a call."""
        wire = event["item"]
        self._whole_items.append(wire)
        if not is_call(wire):
            yield from self._content(wire)
            return
        call = self._find(event)
        if call is None or call.is_whole:
            call = self._new_call(event)
            yield chunk_of({"tool_calls": [{"index": call.index, **call_of(wire)}]})
        call.is_whole = True
        if not call.has_payload:
            wire_call = call_of(wire)
            kind = wire_call["type"]
            payload = {key: value for key, value in wire_call[kind].items() if key != "name"}
            call.has_payload = True
            yield chunk_of({"tool_calls": [{"index": call.index, kind: payload}]})
        yield from self._end_call(call)

    def _content(self, wire: Mapping[str, Any]) -> Iterator[Chunk]:
        """Yield the content of a finished item if the server did not stream items of this type."""
        kind = wire.get("type")
        content = {key: value for key, value in message_of([wire]).items() if key in _CONTENT_KEYS}
        if content and kind not in self._shown:
            self._shown.add(kind)
            for key, pieces in self._texts.items():
                pieces.extend([content[key]] if key in content else ())
            yield chunk_of(content)

    def _new_call(self, event: Mapping[str, Any]) -> _StreamedCall:
        wire = event["item"]
        call = self._last_call = _StreamedCall(self._call_count, bool(wire.get(CALL_TYPES[wire["type"]])))
        self._call_count += 1
        self._shown.add(wire["type"])
        self._calls.update((key, call) for key in _keys_of(event))
        return call

    def _find(self, event: Mapping[str, Any]) -> _StreamedCall | None:
        return next((self._calls[key] for key in _keys_of(event) if key in self._calls), None)

    def _finish(self, response: Mapping[str, Any]) -> Iterator[Chunk]:
        self.is_done = True
        if (failure := _failure(response)) is not None:
            yield failure
            return
        output: list[Any] = response.get("output") or self._whole_items.copy()
        streamed = self._shown.copy()
        for wire in output:
            if wire.get("type") not in streamed:
                yield from self._end_item({"item": wire})
        yield from self._unstreamed(output)
        check_hosted_calls(output)
        yield _last_chunk(response, {"delta": {OUTPUT_ITEMS: output}}, has_calls=self._call_count > 0)

    def _unstreamed(self, output: Sequence[Mapping[str, Any]]) -> Iterator[Chunk]:
        """Yield text, reasoning and calls that are in the final output, but were not streamed."""
        message = message_of(output)
        for key, pieces in self._texts.items():
            text, shown_text = message.get(key, ""), "".join(pieces)
            if len(text) > len(shown_text) and text.startswith(shown_text):
                yield chunk_of({key: text[len(shown_text) :]})
        calls = [*filter(is_call, output)]
        # Some servers change the ids in the final output, so compare how many calls there are.
        if (missing := len(calls) - self._call_count) > 0:
            unknown = [wire for wire in calls if self._find({"item": wire}) is None]
            for wire in unknown[-missing:]:
                yield from self._end_item({"item": wire})


def _is_progress(kind: Any) -> bool:
    """Return whether this is the type of an event inside a response."""
    return isinstance(kind, str) and kind.startswith("response.")


def _error_of(event: Mapping[str, Any]) -> Any:
    error = event.get("error")
    return None if is_zero(error) else error


def _keys_of(event: Mapping[str, Any]) -> list[Any]:
    item: Mapping[str, Any] = event.get("item") or {}
    keys = (event.get("item_id"), item.get("id"), item.get("call_id"), event.get("output_index"))
    return [key for key in keys if key is not None]


# --- the end of a response --------------------------------------------------------------------------------------------


def _whole(response: Mapping[str, Any]) -> Chunk:
    """Return the chunk of an answer that is one object. Return an object without an answer, such as an error, unchanged."""
    output = response.get("output")
    if not is_array(output) or _error_of(response):
        return response
    if (failure := _failure(response) or _unfinished(response)) is not None:
        return failure
    check_hosted_calls(output)
    message = message_of(output)
    return _last_chunk(response, {"message": message}, has_calls="tool_calls" in message)


def _failure(response: Mapping[str, Any]) -> Chunk | None:
    status = response.get("status")
    if status not in ("failed", "cancelled"):
        return None
    return {"error": _error_of(response) or {"message": f"the response has the status {status!r}", "code": status}}


def _unfinished(response: Mapping[str, Any]) -> Chunk | None:
    """Return the chunk for a response that the provider makes in the background: it has no answer yet, and aswarm does not poll."""
    status = response.get("status")
    if status not in ("queued", "in_progress") or response["output"]:
        return None
    remedy = "stream the run, or leave out the setting 'background'"
    return {"error": {"message": f"the response has the status {status!r}, not an answer: {remedy}", "code": status}}


def _last_chunk(response: Mapping[str, Any], content: Mapping[str, Any], *, has_calls: bool) -> Chunk:
    """Return the chunk for the end of the response. It has `id` and `model`, because traces show them."""
    details, usage = response.get("incomplete_details"), response.get("usage")
    reason = details.get("reason") if is_object(details) else None
    finish_reason = "tool_calls" if has_calls else "stop"
    if response.get("status") == "incomplete" or reason:
        finish_reason = _FINISH_REASONS.get(str(reason), "length")
    return {
        **{key: response[key] for key in ("id", "model") if key in response},
        "choices": [{"index": 0, **content, "finish_reason": finish_reason}],
        "usage": {**{_USAGE.get(key, key): value for key, value in usage.items()}, **_diagnosis(response)}
        if is_object(usage)
        else None,
    }


def _diagnosis(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provider's diagnosis of its prompt cache for the usage: the lost tokens by the reason, or a hit."""
    match response.get("prompt_cache_diagnostics"):
        case {"type": "cache_miss", "reason": str(reason), "cache_missed_tokens": int(lost)}:
            return {DIAGNOSIS: {reason: lost}}
        case {"type": "cache_hit"}:
            return {DIAGNOSIS: {CACHE_HIT: 0}}
        case _:
            return {}
