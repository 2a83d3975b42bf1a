"""The accumulator: it takes the chunks of one completion and makes one message, however the completion was cut.

Sans-IO. Decides what a chunk of a real server means (`feed`) and whether the completion is whole (`finish`). Never
reads a socket, never decides what happens next. A whole completion is a chunk that has `message` in place of `delta`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aswarm._errors import CompletionError, StreamInterrupted
from aswarm._json import is_array, is_object, shown
from aswarm._messages import Message, as_plain, text_of
from aswarm._usage import Usage

from .call_accumulator import CallAccumulator
from .failures import may_pass, status_of
from .merge import Pieces, is_text, join_pieces, merge_key, merge_parts
from .responses_items import OUTPUT_ITEMS

Delta = dict[str, Any]
_SHOWN = 200  # how many characters of a wrong chunk an error text quotes

# Keys with rules of their own. Every other key of a delta is the provider's, and is merged by general rules.
_OWN_RULES = frozenset({"role", "content", "tool_calls"})


@dataclass(slots=True)
class Completion:
    """One whole completion. `message` is in the form of `Response.messages`, without the sender."""

    message: Message
    finish_reason: str | None
    usage: Usage


class Accumulator:
    """Accumulates the chunks of one completion. `feed` each of them, then `finish`."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._parts: list[Any] | None = None  # content that came as a list of parts
        self._calls = CallAccumulator()
        self._extra: dict[str, Any] = {}
        self._items: dict[str, Any] = {}  # the items of the Responses API, under their key; they come whole
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._started = False
        self._is_whole = False
        self._odd: Mapping[str, Any] | None = None  # the first chunk that has nothing of a completion

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def arguments_of(self, name: str) -> str:
        """The arguments so far of the first call of this function."""
        return self._calls.arguments_of(name)

    def feed(self, chunk: Mapping[str, Any]) -> Delta | None:
        """Take one chunk. Returns the delta to show, or None if the chunk has nothing to show.

        The delta has `role` (once), `content`, `tool_calls` and the other keys that the provider sent; it is not changed
        later. Raises CompletionError if the chunk reports an error, or has a shape that no completion has.
        """
        try:
            return self._feed(chunk)
        except (AttributeError, TypeError, ValueError) as error:
            raise CompletionError(
                f"the provider sent something that is not a completion: {shown(chunk, _SHOWN)}"
            ) from error

    def _feed(self, chunk: Mapping[str, Any]) -> Delta | None:
        if error := chunk.get("error"):
            raise provider_error(error)
        if usage := chunk.get("usage"):
            self._feed_usage(usage)
        for choice in chunk.get("choices") or ():
            if choice.get("index") in (None, 0):
                return self._feed_choice(choice)
        if self._odd is None and "choices" not in chunk:
            self._odd = chunk
        return None

    def _feed_usage(self, usage: Any) -> None:
        if is_object(reported := as_plain(usage)):
            self._usage = reported  # some servers report running totals: the last one counts

    def _feed_choice(self, choice: Mapping[str, Any]) -> Delta | None:
        if error := choice.get("error"):
            raise provider_error(error)
        if usage := choice.get("usage"):  # Moonshot
            self._feed_usage(usage)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        if self._finish_reason == "error":
            raise CompletionError("the provider ended the completion with finish_reason 'error'")
        self._is_whole = self._is_whole or bool(choice.get("message"))
        wire = choice.get("delta") or choice.get("message")
        if wire and OUTPUT_ITEMS in wire:
            wire = self._take_items(wire)
        return self._feed_delta(wire) if wire else None

    def _take_items(self, wire: Mapping[str, Any]) -> Mapping[str, Any]:
        # They are recorded exactly, and not shown: what they say has been shown, or stands beside them.
        self._items = {OUTPUT_ITEMS: wire[OUTPUT_ITEMS]} if wire[OUTPUT_ITEMS] else {}
        return {key: value for key, value in wire.items() if key != OUTPUT_ITEMS}

    def _feed_delta(self, wire: Mapping[str, Any]) -> Delta:
        delta: Delta = {"role": None, "content": wire.get("content") or None, "tool_calls": None}
        if not self._started:
            self._started = True
            delta["role"] = "assistant"
        if delta["content"]:
            self._take_content(delta["content"])
        if fragments := wire.get("tool_calls"):
            delta["tool_calls"] = self._calls.feed(fragments)
        for key, value in wire.items():
            if key not in _OWN_RULES:
                delta[key] = value
                if value is not None and value != []:
                    merge_key(self._extra, key, value)
        return delta

    def _take_content(self, content: Any) -> None:
        if isinstance(content, str):
            self._text.append(content)
            if self._parts is not None:
                merge_parts(self._parts, [{"type": "text", "text": content}])
        elif is_array(content):
            if self._parts is None:
                earlier = self.text
                self._parts = [{"type": "text", "text": Pieces([earlier])}] if earlier else []
            self._text.append(text_of(content))
            merge_parts(self._parts, content)

    def finish(self) -> Completion:
        """The whole completion. Raises StreamInterrupted if no finish reason has come."""
        if self._finish_reason is None and not self._is_whole:
            raise StreamInterrupted(self._what_is_missing())
        calls = self._calls.messages()
        extra = join_pieces(self._extra)
        if calls:
            extra.pop("function_call", None)  # the deprecated form of the first call (llama-cpp-python sends both)
        content: Any = self.text if self._parts is None or all(map(is_text, self._parts)) else join_pieces(self._parts)
        if not content and (calls or extra.get("refusal")):
            content = None
        message = {"role": "assistant", "content": content, "tool_calls": calls or None, **extra, **self._items}
        return Completion(message, self._finish_reason, Usage.of_completion(self._usage))

    def _what_is_missing(self) -> str:
        if self._started:
            return "the stream ended without a finish_reason"
        if self._odd is not None:
            return f"the answer does not contain a completion: {shown(self._odd, _SHOWN)}"
        return "the answer was empty: no completion and no error (some servers answer so if a prompt is too long)"


def provider_error(error: Any) -> CompletionError:
    """The error that a provider reports inside an answer, as an error of aswarm."""
    plain = as_plain(error)
    details: Mapping[str, Any] = plain if is_object(plain) else {"message": str(plain)}
    kind: Any = details.get("type")
    code: Any = details.get("code") or details.get("status") or kind
    status = status_of(code)
    text = str(details.get("message") or json.dumps(details, default=str, ensure_ascii=False))
    shown = f" (code {code})" if code else ""
    retryable = any(may_pass(f"{text} {code} {kind}", status, name) for name in (code, kind))
    return CompletionError(f"the provider reported an error: {text}{shown}", status_code=status, retryable=retryable)
