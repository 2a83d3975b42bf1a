"""The reader of one answer of the Responses API: it takes events and gives chunks of Chat Completions.

Sans-IO. Decides what an event means. The accumulator then treats the chunks as those of any other provider. A whole
answer is one object in place of events, and becomes one whole chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from aswarm._errors import CompletionError
from aswarm._json import is_array, is_object, shown

from .responses_items import CALL_TYPES, OUTPUT_ITEMS, call_of, message_of
from .sse import AnswerDecoder

Chunk: TypeAlias = Mapping[str, Any]

_TEXT = {"response.output_text.delta": "content", "response.refusal.delta": "refusal"}
_REASONING = {
    "response.reasoning_summary_text.delta": "summary_index",
    "response.reasoning_text.delta": "content_index",
}
_PAYLOADS = {
    "response.function_call_arguments.delta": "function",
    "response.custom_tool_call_input.delta": "custom",
}
_PAYLOAD_KEYS = {"function": "arguments", "custom": "input"}
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_SAID = frozenset({"content", "refusal", "reasoning_content"})
_FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_USAGE = {
    "input_tokens": "prompt_tokens",
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens": "completion_tokens",
    "output_tokens_details": "completion_tokens_details",
}
_SHOWN = 200


class ResponsesDecoder:
    """Decodes the body of one answer into chunks. `is_done` is true once the response has ended."""

    def __init__(self) -> None:
        self._decoder = AnswerDecoder()
        self._reader = ResponseReader()

    @property
    def is_done(self) -> bool:
        """Whether no further chunk comes."""
        return self._reader.is_done or self._decoder.is_done

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """Take bytes; yield the chunks that are complete. Raises what `AnswerDecoder` and `ResponseReader` raise."""
        for event in self._decoder.feed(piece):
            yield from self._reader.read(event)

    def end(self) -> Iterator[Chunk]:
        """Take the end of the body; yield the last chunks."""
        for event in self._decoder.end():
            yield from self._reader.read(event)


@dataclass(slots=True)
class _Item:
    """An output item that has begun: its number among the calls, and whether some of its content has come."""

    call_index: int
    has_content: bool = False
    part: Any = None  # the number of the part of the reasoning that came last


class ResponseReader:
    """Reads the events of one response. `is_done` is true once the response has ended; later events mean nothing."""

    def __init__(self) -> None:
        # By the number of the item in the output, or by its id for servers that do not number them.
        self._items: dict[Any, _Item] = {}
        self._calls = 0
        self._whole_items: list[Mapping[str, Any]] = []
        self._has_reasoning = False
        self.is_done = False

    def read(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """Yield the chunks that the event stands for, normally one or none.

        Raises CompletionError for an event of a known type in a shape that it never has.
        """
        try:
            yield from self._read(event)
        except (AttributeError, KeyError, TypeError) as error:
            raise CompletionError(f"the provider sent an event that cannot be read: {shown(event, _SHOWN)}") from error

    def _read(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        kind = event.get("type")
        if kind in _TEXT:
            self._item(event).has_content = True
            yield _chunk({_TEXT[kind]: event["delta"]})
        elif kind in _PAYLOADS:
            yield self._payload(event, _PAYLOADS[kind])
        elif kind in _REASONING:
            yield self._reasoning(event, event.get(_REASONING[kind]))
        elif kind == "response.output_item.added":
            yield from self._begin(event)
        elif kind == "response.output_item.done":
            yield from self._end(event)
        elif kind in _ENDS:
            yield from self._finish(event["response"])
        elif kind == "error":
            yield {"error": event.get("error") or event}
        elif not str(kind).startswith("response."):
            self.is_done = True
            yield _whole(event)

    def _item(self, event: Mapping[str, Any]) -> _Item:
        return self._items.setdefault(_key_of(event), _Item(self._calls))

    def _payload(self, event: Mapping[str, Any], kind: str) -> Chunk:
        item = self._item(event)
        item.has_content = True
        return _chunk({"tool_calls": [{"index": item.call_index, kind: {_PAYLOAD_KEYS[kind]: event["delta"]}}]})

    def _reasoning(self, event: Mapping[str, Any], part: Any) -> Chunk:
        item = self._item(event)
        begins_part = self._has_reasoning and (not item.has_content or part != item.part)
        item.has_content, item.part, self._has_reasoning = True, part, True
        return _chunk({"reasoning_content": ("\n\n" if begins_part else "") + event["delta"]})

    def _begin(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        wire = event["item"]
        if wire.get("type") in CALL_TYPES:
            item = self._item(event)
            self._calls += 1
            item.has_content = bool(wire.get(CALL_TYPES[wire["type"]]))
            yield _chunk({"tool_calls": [{"index": item.call_index, **call_of(wire)}]})

    def _end(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """An item is whole. A server may have sent nothing of it before, or a call without its payload."""
        wire, key = event["item"], _key_of(event)
        self._whole_items.append(wire)
        if key not in self._items:
            yield from self._begin(event)
        item = self._item(event)
        if not item.has_content:
            item.has_content = True
            yield from _content(wire, item.call_index)

    def _finish(self, response: Mapping[str, Any]) -> Iterator[Chunk]:
        self.is_done = True
        failure = _failure(response)
        yield from self._complete(response) if failure is None else (failure,)

    def _complete(self, response: Mapping[str, Any]) -> Iterator[Chunk]:
        output: list[Any] = response.get("output") or self._whole_items
        for number, wire in enumerate(output):
            if number not in self._items and wire.get("id") not in self._items:
                yield from self._end({"output_index": number, "item": wire})
        ending = _ending(response, has_calls=self._calls > 0)
        yield {"choices": [{"index": 0, "delta": {OUTPUT_ITEMS: output}, **ending}], "usage": _usage(response)}


def _key_of(event: Mapping[str, Any]) -> Any:
    number = event.get("output_index")
    return number if number is not None else event.get("item_id") or event.get("item", {}).get("id")


def _chunk(delta: dict[str, Any]) -> Chunk:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _content(item: Mapping[str, Any], call_index: int) -> Iterator[Chunk]:
    """The whole content of an item, for a server that sends it only at the end."""
    if item.get("type") in CALL_TYPES:
        call = call_of(item)
        payload = {key: value for key, value in call[call["type"]].items() if key != "name"}
        yield _chunk({"tool_calls": [{"index": call_index, call["type"]: payload}]})
    elif said := {key: value for key, value in message_of([item]).items() if key in _SAID}:
        yield _chunk(said)


# --- the end of a response --------------------------------------------------------------------------------------------


def _whole(response: Mapping[str, Any]) -> Chunk:
    """The chunk of an answer that is one object. What is not a response comes back as it is: the reader reports it."""
    if not is_array(response.get("output")) or response.get("error"):
        return response
    if (failure := _failure(response)) is not None:
        return failure
    message = message_of(response["output"])
    ending = _ending(response, has_calls="tool_calls" in message)
    return {"choices": [{"index": 0, "message": message, **ending}], "usage": _usage(response)}


def _failure(response: Mapping[str, Any]) -> Chunk | None:
    status = response.get("status")
    if status not in ("failed", "cancelled"):
        return None
    return {"error": response.get("error") or {"message": f"the response has the status {status!r}", "code": status}}


def _ending(response: Mapping[str, Any], *, has_calls: bool) -> dict[str, Any]:
    details = response.get("incomplete_details")
    reason = details.get("reason") if is_object(details) else None
    if response.get("status") == "incomplete" or reason:
        return {"finish_reason": _FINISH_REASONS.get(str(reason), "length")}
    return {"finish_reason": "tool_calls" if has_calls else "stop"}


def _usage(response: Mapping[str, Any]) -> dict[str, Any] | None:
    usage = response.get("usage")
    return {_USAGE.get(key, key): value for key, value in usage.items()} if is_object(usage) else None
