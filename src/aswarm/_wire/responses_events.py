"""The reader of one answer of the Responses API: it takes events and gives chunks of Chat Completions.

Sans-IO. Decides what an event means. The accumulator then treats the chunks as those of any other provider. A whole
answer is one object in place of events, and becomes one whole chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from aswarm._errors import CompletionError
from aswarm._json import is_array, is_object, shown

from .responses_items import CALL_TYPES, NEXT_PART, OUTPUT_ITEMS, call_of, check_hosted_calls, message_of
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
_CONTENT_KEYS = frozenset({"content", "refusal", "reasoning_content"})
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
class _StreamedCall:
    """A call that has begun: its number among the calls, whether some of its payload has come, and whether it is whole."""

    index: int
    has_payload: bool = False
    is_whole: bool = False


class ResponseReader:
    """Reads the events of one response. `is_done` is true once the response has ended: do not read later events."""

    def __init__(self) -> None:
        # By the ids of the item and of the call, and by the number in the output: servers mix them up, or leave some out.
        self._calls: dict[Any, _StreamedCall] = {}
        self._call_count = 0
        self._last_call: _StreamedCall | None = None
        self._whole_items: list[Mapping[str, Any]] = []
        self._shown: set[Any] = set()  # the types of items of which some content was shown
        self._texts: list[str] = []  # the pieces of text that were shown
        self._next_message = ""  # what stands between the texts of two messages, once the second one begins
        self._reasoning_place: Any = None
        self.is_done = False

    def read(self, event: Mapping[str, Any]) -> Sequence[Chunk]:
        """The chunks that the event stands for, normally one or none.

        Raises CompletionError for an event of a known type in a shape that it never has, and ConfigurationError for a call
        of a hosted tool that the provider does not run itself.
        """
        try:
            kind = event.get("type")
            # Most events are of these: a generator for each would be a third of the cost.
            return self._text(event["delta"], _TEXT[kind]) if kind in _TEXT else list(self._read(event, kind))
        except (AttributeError, KeyError, TypeError) as error:
            raise CompletionError(f"the provider sent an event that cannot be read: {shown(event, _SHOWN)}") from error

    def _read(self, event: Mapping[str, Any], kind: Any) -> Iterator[Chunk]:
        if kind in _PAYLOADS:
            yield from self._payload(event, _PAYLOADS[kind])
        elif kind in _REASONING:
            yield self._reasoning(event, event.get(_REASONING[kind]))
        elif kind == "response.output_item.added":
            yield from self._begin(event)
        elif kind == "response.output_item.done":
            yield from self._end(event)
        elif kind in _ENDS:
            yield from self._finish(event["response"])
        elif kind == "error" or event.get("error"):
            yield {"error": event.get("error") or event}
        elif kind is None or is_array(event.get("output")):
            self.is_done = True
            yield _whole(event)
        # Other types say nothing of the answer: what hosted tools do, "keepalive", and what the API will have tomorrow.

    def _text(self, delta: str, key: str) -> Sequence[Chunk]:
        if key == "content" and delta:
            if self._next_message:
                delta, self._next_message = self._next_message + delta, ""
            self._texts.append(delta)
        self._shown.add("message")
        return ({"choices": [{"index": 0, "delta": {key: delta}, "finish_reason": None}]},)

    def _payload(self, event: Mapping[str, Any], kind: str) -> Iterator[Chunk]:
        call = self._find(event) or self._last_call
        # A server that does not announce its calls sends them whole at their end.
        if call is not None and not call.is_whole:
            call.has_payload = True
            yield _chunk({"tool_calls": [{"index": call.index, kind: {_PAYLOAD_KEYS[kind]: event["delta"]}}]})

    def _reasoning(self, event: Mapping[str, Any], part: Any) -> Chunk:
        number = event.get("output_index")
        place = (event.get("item_id") if number is None else number, part)
        before = NEXT_PART if "reasoning" in self._shown and place != self._reasoning_place else ""
        self._reasoning_place = place
        self._shown.add("reasoning")
        return _chunk({"reasoning_content": before + event["delta"]})

    def _begin(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        wire = event["item"]
        kind = wire.get("type")
        if kind in CALL_TYPES:
            call = self._new_call(event)
            yield _chunk({"tool_calls": [{"index": call.index, **call_of(wire)}]})
        elif kind == "message" and self._texts:
            self._next_message = NEXT_PART

    def _end(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """An item is whole. A server may have sent nothing of it before, or a call without its payload."""
        wire = event["item"]
        self._whole_items.append(wire)
        if wire.get("type") not in CALL_TYPES:
            yield from self._content(wire)
            return
        call = self._find(event)
        if call is None or call.is_whole:
            call = self._new_call(event)
            yield _chunk({"tool_calls": [{"index": call.index, **call_of(wire)}]})
        call.is_whole = True
        if not call.has_payload:
            yield _chunk({"tool_calls": [{"index": call.index, **_payload_of(wire)}]})

    def _content(self, wire: Mapping[str, Any]) -> Iterator[Chunk]:
        """The content of a whole item, if nothing of its type was shown: then the server streams nothing of it."""
        kind = wire.get("type")
        content = {key: value for key, value in message_of([wire]).items() if key in _CONTENT_KEYS}
        if content and kind not in self._shown:
            self._shown.add(kind)
            self._texts += [content["content"]] if "content" in content else []
            yield _chunk(content)

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
        failure = _failure(response)
        yield from self._complete(response) if failure is None else (failure,)

    def _complete(self, response: Mapping[str, Any]) -> Iterator[Chunk]:
        output: list[Any] = response.get("output") or self._whole_items.copy()
        streamed = self._shown.copy()
        for wire in output:
            if wire.get("type") not in streamed:
                yield from self._end({"item": wire})
        yield from self._unstreamed(output)
        check_hosted_calls(output)
        ending = _ending(response, has_calls=self._call_count > 0)
        choice = {"index": 0, "delta": {OUTPUT_ITEMS: output}, **ending}
        yield {**_source(response), "choices": [choice], "usage": _usage(response)}

    def _unstreamed(self, output: Sequence[Mapping[str, Any]]) -> Iterator[Chunk]:
        """The text and the calls that only the final output has, after others of their type were streamed."""
        text, shown_text = message_of(output).get("content", ""), "".join(self._texts)
        if len(text) > len(shown_text) and text.startswith(shown_text):
            yield _chunk({"content": text[len(shown_text) :]})
        calls = [wire for wire in output if wire.get("type") in CALL_TYPES]
        # A server may have changed the ids, so the number of calls decides.
        if (missing := len(calls) - self._call_count) > 0:
            unknown = [wire for wire in calls if self._find({"item": wire}) is None]
            for wire in unknown[-missing:]:
                yield from self._end({"item": wire})


def _keys_of(event: Mapping[str, Any]) -> list[Any]:
    item: Mapping[str, Any] = event.get("item") or {}
    keys = (event.get("item_id"), item.get("id"), item.get("call_id"), event.get("output_index"))
    return [key for key in keys if key is not None]


def _chunk(delta: dict[str, Any]) -> Chunk:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _payload_of(item: Mapping[str, Any]) -> dict[str, Any]:
    call = call_of(item)
    return {call["type"]: {key: value for key, value in call[call["type"]].items() if key != "name"}}


# --- the end of a response --------------------------------------------------------------------------------------------


def _whole(response: Mapping[str, Any]) -> Chunk:
    """The chunk of an answer that is one object. What is not a response comes back as it is: the reader reports it."""
    if not is_array(response.get("output")) or response.get("error"):
        return response
    if (failure := _failure(response)) is not None:
        return failure
    check_hosted_calls(response["output"])
    message = message_of(response["output"])
    ending = _ending(response, has_calls="tool_calls" in message)
    choice = {"index": 0, "message": message, **ending}
    return {**_source(response), "choices": [choice], "usage": _usage(response)}


def _source(response: Mapping[str, Any]) -> Chunk:
    """What a completion says of where it comes from; traces show it."""
    return {key: response[key] for key in ("id", "model") if key in response}


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
