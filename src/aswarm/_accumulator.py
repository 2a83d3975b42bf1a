"""The fold: chunks of one completion in, one message out, whatever way it was cut.

Sans-IO. Decides what a chunk of a real server means (`feed`) and whether the completion is whole (`finish`). Never
reads a socket, never decides what happens next. A whole completion is a chunk that has `message` in place of `delta`.

Tool-call fragments belong to the call of their `index`; a new id with a name is a new call even where the index says
otherwise (vLLM and others send 0 for all); without an index a fragment continues the call of its id, or the last one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._errors import CompletionError, StreamInterrupted, is_retryable_status
from ._json import is_array, is_object
from ._messages import Message, as_plain, text_of
from ._usage import Usage

Delta = dict[str, Any]

# Folded by their own rules; every other key of a delta is the provider's and is folded generically.
_OWN_RULES = frozenset({"role", "content", "tool_calls"})
_CALL_OWN_RULES = frozenset({"index", "id", "type", "function", "custom"})
# Values that name a thing: a second one is a repetition, not a continuation.
_NAMES = frozenset({"id", "type", "index", "format", "name", "role"})


@dataclass(slots=True)
class Completion:
    """One whole completion. `message` is in the form of `Response.messages`, without the sender."""

    message: Message
    finish_reason: str | None
    usage: Usage


@dataclass(slots=True)
class _Call:
    position: int
    id: str = ""
    type: str = ""
    kind: str = "function"  # the key that holds name and text: "function", or "custom"
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def is_complete(self) -> bool:
        text = "".join(self.arguments).strip()
        return text.endswith("}") and _is_json(text)

    def message(self) -> Message:
        payload = "input" if self.kind == "custom" else "arguments"
        return {
            "id": self.id or f"call_{uuid.uuid4().hex[:24]}",
            "type": self.type or self.kind,
            self.kind: {"name": self.name, payload: "".join(self.arguments)},
            **_joined(self.extra),
        }


class Accumulator:
    """Folds the chunks of one completion. `feed` each, then `finish`."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._parts: list[Any] | None = None  # content that came as a list of parts
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._extra: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._started = False

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def feed(self, chunk: Mapping[str, Any]) -> Delta | None:
        """Take one chunk; the delta to show, or None where there is nothing to show.

        The delta has `role` (once), `content`, `tool_calls` and what else the provider sent; nobody changes it later.
        Raises CompletionError where the chunk reports an error.
        """
        if error := chunk.get("error"):
            raise _provider_error(error)
        if usage := chunk.get("usage"):
            self._usage = as_plain(usage)  # cumulative on some servers: the last one counts
        for choice in chunk.get("choices") or ():
            if choice.get("index") in (None, 0):
                return self._feed_choice(choice)
        return None

    def _feed_choice(self, choice: Mapping[str, Any]) -> Delta | None:
        if error := choice.get("error"):
            raise _provider_error(error)
        if usage := choice.get("usage"):  # Moonshot
            self._usage = as_plain(usage)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        if self._finish_reason == "error":
            raise CompletionError("the provider ended the completion with finish_reason 'error'")
        wire = choice.get("delta") or choice.get("message")
        return self._feed_delta(wire) if wire else None

    def _feed_delta(self, wire: Mapping[str, Any]) -> Delta:
        delta: Delta = {"role": None, "content": wire.get("content") or None, "tool_calls": None}
        if not self._started:
            self._started = True
            delta["role"] = "assistant"
        if delta["content"]:
            self._fold_content(delta["content"])
        if fragments := wire.get("tool_calls"):
            delta["tool_calls"] = [self._feed_call(fragment) for fragment in fragments]
        for key, value in wire.items():
            if key not in _OWN_RULES:
                delta[key] = value
                if value is not None and value != []:
                    _fold(self._extra, key, value)
        return delta

    def _fold_content(self, content: Any) -> None:
        self._text.append(text_of(content))
        if is_array(content):
            if self._parts is None:
                self._parts = [{"type": "text", "text": text} for text in self._text[:-1] if text]
            self._parts.extend(content)
        elif self._parts is not None:
            self._parts.append({"type": "text", "text": content})

    # --- tool calls ---

    def _feed_call(self, wire: Mapping[str, Any]) -> Delta:
        kind = "custom" if wire.get("custom") and not wire.get("function") else "function"
        named: Mapping[str, Any] = wire.get(kind) or {}
        name, text = named.get("name") or "", _as_text(named.get("input" if kind == "custom" else "arguments"))
        call = self._call_for(wire.get("index"), wire.get("id") or "", name, text)
        fresh_id, fresh_type = wire.get("id") if not call.id else None, wire.get("type") if not call.type else None
        # A repeated equal fragment is a repeat; any other continues the name.
        fresh_name = name if name and name != call.name else None
        call.id, call.type, call.name = (
            call.id or fresh_id or "",
            call.type or fresh_type or "",
            call.name + (fresh_name or ""),
        )
        call.kind = kind if call.kind == "function" else call.kind
        call.arguments.append(text)
        shown: Delta = {
            "index": call.position,
            "id": fresh_id or None,
            "type": fresh_type or None,
            "function": {"name": fresh_name, "arguments": text or None},
        }
        for key, value in wire.items():
            if key not in _CALL_OWN_RULES and value is not None:
                shown[key] = value
                _fold(call.extra, key, value)
        return shown

    def _call_for(self, index: int | None, call_id: str, name: str, text: str) -> _Call:
        if index is not None:
            known = self._by_index.get(index)
        else:
            known = next((call for call in self._calls if call_id and call.id == call_id), None)
            known = known or (self._calls[-1] if self._calls else None)
        if known is None or _begins_another(known, call_id, name, text):
            known = _Call(position=len(self._calls))
            self._calls.append(known)
            if index is not None:
                self._by_index[index] = known
        return known

    # --- the end ---

    def finish(self) -> Completion:
        """The whole completion. Raises StreamInterrupted where no finish reason has come."""
        if self._finish_reason is None:
            raise StreamInterrupted(
                "the stream ended without a finish_reason"
                if self._started
                else "the answer was empty: no completion and no error (some servers do this for a prompt that is too long)"
            )
        calls = [call.message() for call in self._calls]
        extra = _joined(self._extra)
        if calls:
            extra.pop("function_call", None)  # the deprecated twin of the first call (llama-cpp-python sends both)
        content: Any = self._parts if self._parts is not None else self.text
        if not content and (calls or extra.get("refusal")):
            content = None
        message = {"role": "assistant", "content": content, "tool_calls": calls or None, **extra}
        return Completion(message, self._finish_reason, Usage.of_completion(self._usage))


def _begins_another(known: _Call, call_id: str, name: str, text: str) -> bool:
    if not name:
        return False
    if call_id and known.id:
        return call_id != known.id
    # No ids to go by: a named fragment that brings arguments after complete ones is the next call.
    return bool(text.strip()) and known.is_complete()


def _as_text(arguments: Any) -> str:
    # Some servers send the arguments as an object.
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return json.dumps(arguments, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _provider_error(error: Any) -> CompletionError:
    plain = as_plain(error)
    details: Mapping[str, Any] = plain if is_object(plain) else {"message": str(plain)}
    code: Any = details.get("code") or details.get("status") or details.get("type")
    status = int(code) if str(code).isdigit() else None
    text = str(details.get("message") or json.dumps(details, default=str, ensure_ascii=False))
    shown = f" (code {code})" if code else ""
    retryable = is_retryable_status(status) or code in ("server_error", "rate_limit_exceeded", "overloaded_error")
    return CompletionError(f"the provider reported an error: {text}{shown}", status_code=status, retryable=retryable)


# --- the generic fold of keys that only the provider knows ------------------------------------------------------------


class _Pieces(list[str]):
    """A string in pieces, joined once at the end: joining at every chunk would cost the square of the length."""


def _fold(into: dict[str, Any], key: str, value: Any) -> None:
    """Strings are joined, dicts are merged, lists are extended (items with an `index` merged); the rest is replaced."""
    known = into.get(key)
    if isinstance(value, str) and key not in _NAMES:
        if isinstance(known, _Pieces):
            known.append(value)
        else:
            into[key] = _Pieces([value])
    elif is_object(value):
        target: dict[str, Any] = known if isinstance(known, dict) else {}  # pyright: ignore[reportUnknownVariableType]
        into[key] = target
        for name, item in value.items():
            if item is not None:
                _fold(target, name, item)
    elif is_array(value) and not isinstance(known, _Pieces):
        _fold_list(into.setdefault(key, []), value)
    elif key not in _NAMES or known is None:
        into[key] = value


def _fold_list(into: list[Any], items: list[Any]) -> None:
    for item in items:
        if not is_object(item):
            into.append(item)
            continue
        place = item.get("index")
        target: dict[str, Any] | None = next((known for known in into if _is_at(place, known)), None)
        if target is None:
            target = {}
            into.append(target)
        for name, value in item.items():
            if value is not None:
                _fold(target, name, value)


def _is_at(place: Any, item: Any) -> bool:
    return place is not None and is_object(item) and item.get("index") == place


def _joined(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if is_object(value):
        return {key: _joined(item) for key, item in value.items()}
    return [_joined(item) for item in value] if is_array(value) else value
