"""The accumulator of one completion: makes one message from chunks of any size.

Sans-IO. `feed` reads a chunk, and accepts the deviations of real servers. `finish` checks that the completion is whole. A
completion that was not streamed is one chunk, with `message` instead of `delta`.

Servers in JavaScript may split an emoji into two pieces, each with half a surrogate pair. JSON allows an escaped half (RFC 8259,
section 8.2), but UTF-8 cannot encode it. So a half waits for the next piece.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from pydantic_core import to_json

from aswarm._values.errors import CompletionError, StreamInterrupted
from aswarm._values.json import is_array, is_object, is_zero, sendable_data, shown, whole_characters
from aswarm._values.messages import SENT_INPUT, Message, as_plain, text_of
from aswarm._values.usage import Usage, latest_usage
from aswarm._values.wire_messages import ITEM_KEYS

from .calls import CallAccumulator, Pieces, check_parts, is_text, join_pieces, merge_own_key, merge_parts
from .failures import failure_in
from .responses_items import DONE_CALL, WITHOUT_CALLS
from .sse import DONE

_Place: TypeAlias = tuple[object, ...]
_FIRST_HALVES = ("\ud800", "\udbff")


class CutCharacters:
    """Joins the halves of characters in consecutive deltas.

    A half without its other half becomes U+FFFD. At the end of a text it is left out.
    """

    __slots__ = ("halves",)

    def __init__(self) -> None:
        self.halves: dict[_Place, str] = {}  # the first half at the end of the last piece, by the place in the delta

    def joined(self, delta: Mapping[str, Any]) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self._joined(delta, ()))

    def _joined(self, value: Any, place: _Place) -> Any:
        if isinstance(value, str):
            text = self.halves.pop(place, "") + value
            if text and _FIRST_HALVES[0] <= text[-1] <= _FIRST_HALVES[1]:
                self.halves[place] = text[-1]
                text = text[:-1]
            return whole_characters(text)
        if is_object(value):
            return {key: self._joined(item, (*place, key)) for key, item in value.items()}
        if is_array(value):
            return [self._joined(item, (*place, _number(item, at))) for at, item in enumerate(value)]
        return value


def _number(item: Any, position: int) -> object:
    return item.get("index", position) if is_object(item) else position


Delta = dict[str, Any]
_SHOWN = 200  # characters of a wrong chunk that an error text quotes

# Keys of a delta with special rules. The rules of `merge` apply to all other keys.
_OWN_RULES = frozenset({"role", "content", "tool_calls"})
_WHOLE = ITEM_KEYS | {SENT_INPUT}  # keys whose values are never sent in pieces
_OPTIONAL = ("refusal", "function_call", "audio")  # fields of the API that servers in Go send with zero values


@dataclass(slots=True)
class Completion:
    """One whole completion. `message` has the form of `Response.messages`, without the sender."""

    message: Message
    finish_reason: str | None
    usage: Usage

    def as_chunk(self) -> dict[str, Any]:
        """Return the completion as one chunk. Every accumulator makes the same message from this chunk."""
        calls: list[Message] = self.message["tool_calls"] or []
        # The indexes keep calls with equal ids or names separate.
        numbered: list[Message] = [{"index": position, **call} for position, call in enumerate(calls)]
        message: Message = {**self.message, "tool_calls": numbered or None}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        return {"choices": [choice], "usage": self.usage._reported}


class Accumulator:
    """Accumulator of the chunks of one completion: `feed` each chunk, then `finish`."""

    # The halves of characters so far; None if UTF-8 can encode each delta. A class attribute, because most answers need none.
    _cut: CutCharacters | None = None
    _ends_with_usage = False  # whether the only usage came after content
    _is_done = False  # whether the server has reported the end of the stream

    def __init__(self) -> None:
        self._text: list[str] = []
        self._parts: list[Any] | None = None  # content that is a list of parts
        self._calls = CallAccumulator()
        self._extra: dict[str, Any] = {}
        self._whole: dict[str, Any] = {}  # the values of `_WHOLE`
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._started = False
        self._is_whole = False  # whether a chunk with `message` has arrived
        self._odd: Mapping[str, Any] | None = None  # the first chunk without choices and without an error

    @property
    def text(self) -> str:
        """Text so far."""
        return "".join(self._text)

    def arguments_of(self, name: str) -> str:
        """Return the arguments so far of the first call of this function; empty if there is no such call."""
        return next(("".join(call.arguments) for call in self._calls.calls if call.name == name), "")

    def feed(self, chunk: Mapping[str, Any]) -> Delta | None:
        """Add one chunk. Return the delta to show, or None if there is nothing to show.

        The delta has `role` (only the first delta), `content`, `tool_calls` and other keys of the provider. It does not
        change later. Raises CompletionError if the chunk reports an error or is malformed.
        """
        try:
            if (error := chunk.get("error")) and not is_zero(error):
                raise provider_error(error)
            if usage := chunk.get("usage"):
                self._feed_usage(usage)
            elif "x_groq" in chunk and is_object(groq := chunk["x_groq"]):
                self._feed_usage(groq.get("usage"))
            for choice in chunk.get("choices") or ():
                if choice.get("index") in (None, 0):
                    return self._feed_choice(choice)
            self._is_done = self._is_done or DONE in chunk
            if "choices" not in chunk:
                if "error" in (chunk.get("object"), chunk.get("type")):  # vLLM before 0.10
                    raise provider_error(chunk)
                self._odd = self._odd or chunk
        except (AttributeError, TypeError, ValueError) as error:
            raise CompletionError(
                f"the provider sent something that is not a completion: {shown(chunk, _SHOWN)}"
            ) from error
        return None

    def _feed_usage(self, usage: Any) -> None:
        if is_object(reported := as_plain(usage)):
            self._ends_with_usage = self._started and is_zero(self._usage) and self._has_content()
            self._usage = latest_usage(self._usage, reported) if self._usage else reported

    def _feed_choice(self, choice: Mapping[str, Any]) -> Delta | None:
        if (error := choice.get("error")) and not is_zero(error):
            raise provider_error(error)
        if finish_reason := choice.get("finish_reason"):
            self._end(choice, finish_reason)
        wire = choice.get("delta")
        if message := choice.get("message"):
            if wire is None:
                self._is_whole, wire = True, message
            else:
                wire = self._delta_or_message(wire, message)
        if wire and not _WHOLE.isdisjoint(wire):
            # These values are recorded unchanged. The shown delta omits them, because its other keys have the same content.
            whole = self._whole | {key: value for key, value in wire.items() if key in _WHOLE}
            self._whole = {key: value for key, value in whole.items() if value not in (None, [])}
            wire = {key: value for key, value in wire.items() if key not in _WHOLE}
        if wire:
            return self._feed_delta(wire)
        if DONE_CALL in choice:
            self._calls.mark_done(choice[DONE_CALL])
        return None

    def _end(self, choice: Mapping[str, Any], reason: str) -> None:
        self._finish_reason = reason
        if reason == "error":
            raise CompletionError("the provider ended the completion with finish_reason 'error'")
        if WITHOUT_CALLS in choice:
            self._calls = CallAccumulator()
        if usage := choice.get("usage"):  # Moonshot
            self._feed_usage(usage)

    def _delta_or_message(self, delta: Any, message: Mapping[str, Any]) -> Any:
        """Return the part of a choice to read. Perplexity streams both; then `message` has the text so far."""
        # One chunk may also be a whole completion with an empty delta. A cut stream must not pass for one.
        is_empty = all(is_zero(value) for key, value in message.items() if key != "role")
        return message if self._finish_reason and not self._has_content() and not is_empty else delta

    def _has_content(self) -> bool:
        return bool(self._text or self._parts or self._calls.calls or self._extra)

    def _feed_delta(self, wire: Mapping[str, Any]) -> Delta:
        try:  # in C, and without a function of Python, because each delta is checked
            to_json(wire)
            is_whole = self._cut is None
        except Exception:  # noqa: BLE001 - half a surrogate pair, or an object of a client
            is_whole = False
        if not is_whole:
            self._cut = self._cut or CutCharacters()
            wire = self._cut.joined(wire)
        content = wire.get("content") or None
        if content is not None:
            content = self._add_text(content) if isinstance(content, str) else self._add_parts(content)
        delta: Delta = {"role": None, "content": content, "tool_calls": None}
        if not self._started:
            self._started = True
            delta["role"] = "assistant"
        if fragments := wire.get("tool_calls"):
            delta["tool_calls"] = self._calls.feed(fragments)
        for key, value in wire.items():
            if key not in _OWN_RULES:
                delta[key] = value
                if isinstance(value, str) and isinstance(old := self._extra.get(key), Pieces) and value != old[0]:
                    old.append(value)  # most values are the next piece of a text
                elif value is not None and value != []:
                    self._add_extra(key, value)
        return delta

    def _add_extra(self, key: str, value: Any) -> None:
        if self._is_whole and key not in self._extra:
            self._extra[key] = join_pieces(value)  # a whole message has no pieces
        else:
            merge_own_key(self._extra, key, value)

    def _add_text(self, text: str) -> str:
        self._text.append(text)
        if self._parts is not None:
            merge_parts(self._parts, [{"type": "text", "text": text}])
        return text

    def _add_parts(self, content: Any) -> Any:
        """Add content that is not a text. Return the content to show."""
        if _is_json_answer(content):
            text = json.dumps(content, ensure_ascii=False)
            self._add_text(text)
            return text
        check_parts(content)
        parts: Any = content
        if self._parts is None:
            earlier = self.text
            self._parts = [{"type": "text", "text": Pieces([earlier])}] if earlier else []
        self._text.append(text_of(parts))
        merge_parts(self._parts, parts)
        return parts

    def finish(self) -> Completion:
        """Return the whole completion. Raises StreamInterrupted if the end of the completion has not arrived."""
        if not (self._finish_reason or self._is_whole or self._has_ended()):
            raise StreamInterrupted(self._missing_part())
        calls = [call.message() for call in self._calls.calls]
        extra: dict[str, Any] = {}
        if self._extra:
            joined = join_pieces(self._extra)
            extra = {key: value for key, value in joined.items() if key not in _OPTIONAL or not is_zero(value)}
        if calls:
            extra.pop("function_call", None)  # the deprecated form of the first call; llama-cpp-python sends both forms
        content: Any = self.text if self._parts is None or all(map(is_text, self._parts)) else join_pieces(self._parts)
        if not content and (calls or extra.get("refusal")):
            content = None
        message = {"role": "assistant", "content": content, "tool_calls": calls or None, **extra, **self._whole}
        if self._cut is not None or self._whole:
            message = sendable_data(message)
        return Completion(message, self._finish_reason, Usage.of_completion(self._usage, is_checked=True))

    def _has_ended(self) -> bool:
        """Return whether the stream is whole without a finish reason, as from Snowflake and from Novita.

        Such a stream has an answer, its usage and `[DONE]`. A proxy may send `[DONE]` after a cut, but it does not know the usage.
        A usage in several chunks, before content, or without the tokens of the answer, says nothing about the end (Perplexity, Azure).
        """
        is_at_end = self._is_done and self._ends_with_usage
        return is_at_end and Usage.of_completion(self._usage, is_checked=True).completion_tokens > 0

    def _missing_part(self) -> str:
        if self._started:
            odd = "" if self._odd is None else f"; it has something else: {shown(self._odd, _SHOWN)}"
            return f"the stream ended without a finish_reason{odd}"
        if self._odd is not None:
            return f"the answer does not contain a completion: {shown(self._odd, _SHOWN)}"
        return "the answer was empty: no completion and no error (some servers send this if a prompt is too long)"


def provider_error(error: Any) -> CompletionError:
    """Return the CompletionError for an error inside an answer of a provider."""
    text, status, retryable = failure_in(as_plain(error))
    return CompletionError(f"the provider reported an error: {text}", status_code=status, retryable=retryable)


def _is_json_answer(content: Any) -> bool:
    """Return whether a content is the object of a JSON answer, as from Cloudflare, and not a single part."""
    kind = content.get("type") if is_object(content) else None
    return is_object(content) and not (isinstance(kind, str) and kind in content)
