"""The tool calls of one completion, from fragments of any size, and the merge rules for a provider's own keys.

Strings are joined, dicts are merged, and lists are extended. Any other value replaces the old value. But only what the model wrote
(reasoning, a refusal, audio) is sure to arrive in pieces. For another key, a second value that is equal to the first is a repeat,
and so is a list that starts with the whole list so far. The strings of an answer key, such as Groq's `channel`, are never pieces.

Two items of a list are pieces of one item if they have the same `index`, and no different `type`, `id`, `format` or `data`:
gateways give a summary and the encrypted reasoning beside it the same number. A thinking block without an index ends with its signature:
LiteLLM streams such blocks in pieces in `thinking_blocks`, and Anthropic requires the whole block in the next request.

A fragment belongs to the call with the same `index`. But a fragment with a name and a new id always starts a new call, because
some servers, such as vLLM and Ollama, send the index 0 for all calls (https://github.com/huggingface/smolagents/issues/1569).
Other servers send no index (https://github.com/openai/openai-python/issues/2806): such a fragment continues the call with the
same id. If no call has this id, the fragment continues the last call. Sans-IO.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._runtime import clocks
from aswarm._values.json import is_array, is_object, is_zero
from aswarm._values.messages import Message
from aswarm._values.text import whole_escapes
from aswarm._values.wire_messages import ANSWER_KEYS, is_json_object, is_of_model

# The values of these keys are never sent in pieces: a second value only repeats the first value.
_NAMES = frozenset({"id", "type", "index", "format", "name", "role"})
# The fields of the API that arrive in pieces. The keys of `is_of_model` do too.
_IN_PIECES = frozenset({"refusal", "function_call", "audio"})
_PIECES, _MAYBE_REPEATED, _LABELS = range(3)  # what the strings of a key are
# If two items have different values of one of these keys, they are two items.
_IDENTITY = ("type", "id", "format")


class Pieces(list[str]):
    """A string in pieces. They are joined once at the end, because joining at every chunk would take quadratic time."""


class Items(list[Any]):
    """A merged list with the last object of each `index`, because a search at every chunk would take quadratic time."""

    def __init__(self) -> None:
        self._by_index: dict[Any, dict[str, Any]] = {}

    def continued_by(self, item: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the object that this item continues, or None."""
        if (index := item.get("index")) is not None:
            earlier = self._by_index.get(_place(index, item)) or self._by_index.get(_hashable(index))
            return earlier if earlier is not None and _may_continue(earlier, item) else None
        last: Mapping[str, Any] = self[-1] if self and is_object(self[-1]) else {}
        is_thinking = last.get("type") == item.get("type") == "thinking"
        return self[-1] if is_thinking and "signature" not in last else None  # a signature ends a block

    def note(self, item: dict[str, Any]) -> None:
        """Remember an object under its index."""
        if (index := item.get("index")) is not None:
            self._by_index[_hashable(index)] = self._by_index[_place(index, item)] = item


def _place(index: Any, item: Mapping[str, Any]) -> tuple[Any, ...]:
    return (_hashable(index), *(_hashable(item.get(key)) for key in _IDENTITY))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else repr(value)


def _may_continue(last: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Return whether an item with the same index may be the next piece of this object."""
    for key in _IDENTITY:
        old, new = last.get(key), item.get(key)
        if old is not None and new is not None and old != new:
            return False
    data = last.get("data")
    if isinstance(data, Pieces) and item.get("data") not in (None, data[0]) and item.get("id") is None:
        return False  # encrypted reasoning is never sent in pieces
    # A signature ends a block of reasoning. More text belongs to the next block.
    return not (item.get("text") and _has_text(last.get("signature")) and _has_text(last.get("text")))


def _has_text(value: Any) -> bool:
    return isinstance(value, Pieces) and any(value)


def merge_own_key(into: dict[str, Any], key: str, value: Any) -> None:
    is_text = key in _IN_PIECES or is_of_model(key)
    merge_key(into, key, value, _PIECES if is_text else _LABELS if key in ANSWER_KEYS else _MAYBE_REPEATED)


def merge_key(into: dict[str, Any], key: str, value: Any, strings: int = _PIECES) -> None:
    """Merge the next value of a key, by the rules of this module. `join_pieces` joins the strings at the end."""
    old = into.get(key)
    if isinstance(value, str) and strings != _LABELS and key not in _NAMES:
        if not isinstance(old, Pieces):
            into[key] = Pieces([value])
        elif strings == _PIECES or old != [value]:
            old.append(value)
    elif is_object(value):
        target: Any = old if is_object(old) else {}
        into[key] = target
        merge_object(target, value, strings)
    elif is_array(value):
        items = old if isinstance(old, Items) else Items()
        if strings != _PIECES and 0 < len(items) <= len(value) and join_pieces(items) == [*value[: len(items)]]:
            items = Items()  # the server repeats the whole list
        into[key] = items
        _merge_list(items, value, strings)
    elif strings == _LABELS or key not in _NAMES or old is None:
        into[key] = value


def merge_object(into: dict[str, Any], wire: Mapping[str, Any], strings: int = _PIECES) -> None:
    """Merge the keys of an object. Ignore keys with None."""
    for key, value in wire.items():
        if value is not None:
            merge_key(into, key, value, strings)


def _merge_list(into: Items, items: list[Any], strings: int) -> None:
    for item in items:
        if not is_object(item):
            into.append(item)
            continue
        target = into.continued_by(item)
        if target is None:
            target = {}
            into.append(target)
        repeats_data = target.get("data") == [item.get("data")]
        merge_object(target, {key: item[key] for key in item if key != "data"} if repeats_data else item, strings)
        into.note(target)


def merge_parts(into: list[Any], parts: list[Any]) -> None:
    """Merge parts of a content. A piece of text or thinking is appended to the last part if that part has the same type."""
    for part in parts:
        kind = part.get("type") if is_object(part) else None
        if kind not in ("text", "thinking") or not isinstance(part.get(kind), str | list):
            into.append(part)  # a whole part, such as an image
            continue
        last: Any = into[-1] if into else None
        form = Pieces if isinstance(part[kind], str) else list
        continues = is_object(last) and last.get("type") == kind and type(last.get(kind)) is form
        target: dict[str, Any] = into[-1] if continues else {}
        if not continues:
            into.append(target)
        for key, value in part.items():
            if is_array(value):
                # Never merge into a list of the provider, because the deltas contain it.
                old = target.get(key)
                target[key] = inner = old if is_array(old) and not isinstance(old, Pieces) else []
                merge_parts(inner, value)
            else:
                merge_key(target, key, value)


def check_parts(parts: Any) -> None:
    """Raise TypeError for parts that no API accepts: no list, an item that is no object, a text that is a list or object."""
    if not is_array(parts) or not all(
        is_object(part) and not is_object(text := part.get("text")) and not is_array(text) for part in parts
    ):
        raise TypeError("the content has a malformed part")


def is_text(part: Any) -> bool:
    """Return whether a part of a content is a text without other keys."""
    return is_object(part) and part.get("type") == "text" and set(part) == {"type", "text"}


def join_pieces(value: Any) -> Any:
    """Return a copy of the value with joined strings."""
    if isinstance(value, Pieces):
        return "".join(value)
    if is_object(value):
        return {key: join_pieces(item) for key, item in value.items()}
    return [join_pieces(item) for item in value] if is_array(value) else value


# Keys with special rules: of a call, and of its function. The rules of `merge` apply to all other keys.
_CALL_RULES = frozenset({"index", "id", "type", "function", "custom"})
_NAMED_RULES = frozenset({"name", "arguments", "input"})
_MARKS = re.compile(r'["{}\[\]]|\\(?:.|\Z)', re.DOTALL)  # quotes, brackets, and escapes with their character
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}


class _Brackets:
    """Counter of the open brackets of a JSON text that arrives in pieces."""

    __slots__ = ("_depth", "_escape", "_has_any", "_is_in_text", "pieces")

    def __init__(self) -> None:
        self.pieces = 0
        self._depth = 0
        self._has_any = False
        self._is_in_text = False
        self._escape = ""  # a backslash at the end of the last piece

    def feed(self, piece: str) -> bool:
        """Read the next piece. Return whether all brackets are closed."""
        self.pieces += 1
        marks: list[str] = _MARKS.findall(self._escape + piece)
        self._escape = "\\" if marks[-1:] == ["\\"] else ""
        for mark in marks:
            if mark == '"':
                self._is_in_text = not self._is_in_text
            elif not self._is_in_text and (step := _STEPS.get(mark)):
                self._has_any = True
                self._depth += step
        return self._has_any and not self._depth and not self._is_in_text


@dataclass(slots=True)
class CallSoFar:
    """The part of a call that has arrived. `position`: the position among the calls of the message."""

    position: int
    id: str = ""
    type: str = ""
    kind: str = "function"  # the key of name and arguments: "function" or "custom"
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    named_extra: dict[str, Any] = field(default_factory=dict[str, Any])
    brackets: _Brackets | None = None  # the bracket counter of the arguments, created by `is_complete`
    is_object: bool | None = None  # None until the brackets of the arguments are closed
    is_done: bool = False  # whether the API has reported the end of the arguments

    def add(self, fragment: _Fragment) -> Message:
        """Add a fragment. Return its new parts in the form of a delta."""
        wire = fragment.wire
        new_id = None if self.id else fragment.id or None
        new_type = None if self.type else wire.get("type") or None
        # Some servers repeat the whole name in each fragment, other servers send the name in pieces. A text that differs from
        # the name so far is a piece.
        new_name = fragment.name if fragment.name and fragment.name != self.name else None
        self.id = self.id or fragment.id
        self.type = self.type or new_type or ""
        self.name += new_name or ""
        self.kind = fragment.kind if self.kind == "function" else self.kind
        self.arguments.append(fragment.text)
        function = {"name": new_name, "arguments": fragment.text if fragment.has_text else None}
        if not fragment.named.keys() <= _NAMED_RULES:
            function |= _merge_rest(fragment.named, _NAMED_RULES, self.named_extra)
        rest = {} if wire.keys() <= _CALL_RULES else _merge_rest(wire, _CALL_RULES, self.extra)
        return {"index": self.position, "id": new_id, "type": new_type, "function": function, **rest}

    def is_complete(self) -> bool:
        """Return whether the arguments so far are one whole JSON object. A repeated call of this method reads only new pieces."""
        self.brackets = brackets = self.brackets or _Brackets()
        are_closed = False
        for piece in self.arguments[brackets.pieces :]:
            if self.is_object and piece.strip():
                self.is_object = False
            are_closed = brackets.feed(piece)
        if self.is_object is None and are_closed:
            # Parse only once: after the last bracket, only white space may follow.
            self.is_object = is_json_object(whole_escapes("".join(self.arguments)))
        return bool(self.is_object)

    def message(self) -> Message:
        """Return the call for the history. A call without an id gets a new id."""
        payload, text = "input" if self.kind == "custom" else "arguments", "".join(self.arguments)
        if self.kind == "function" and "\\u" in text:
            text = whole_escapes(text)
        message: Message = {
            "id": self.id or f"call_{clocks.urandom(12).hex()}",
            "type": self.type or self.kind,
            self.kind: {"name": self.name, payload: text},
        }
        if self.named_extra:
            message[self.kind] |= join_pieces(self.named_extra)
        return message | join_pieces(self.extra) if self.extra else message


class _Fragment:
    def __init__(self, wire: Mapping[str, Any]) -> None:
        self.wire = wire
        # Snowflake sends an empty `custom` beside each `function`.
        is_custom = wire.get("custom") and (not is_zero(wire["custom"]) or wire.get("function") is None)
        self.kind = "custom" if is_custom else "function"
        self.named: Mapping[str, Any] = wire.get(self.kind) or {}
        # Some servers send the id as a number. But the next request needs a text, in the call and in its answer.
        self.id = "" if (sent_id := wire.get("id")) is None else str(sent_id)
        self.index: int | None = wire.get("index")
        self.name: str = self.named.get("name") or ""
        sent = self.named.get("input" if self.kind == "custom" else "arguments")
        self.has_text = sent is not None
        # Some servers send the arguments as an object.
        self.text: str = sent or "" if sent is None or isinstance(sent, str) else json.dumps(sent, ensure_ascii=False)


class CallAccumulator:
    """Accumulator of the tool calls of one completion: `feed` the fragments of each delta. `calls`: the calls in order."""

    def __init__(self) -> None:
        self.calls: list[CallSoFar] = []
        self._by_index: dict[int, CallSoFar] = {}
        self._by_id: dict[str, CallSoFar] = {}

    def feed(self, fragments: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Add the fragments of one delta. Return the new parts of each fragment as a dict, with the keys of a delta."""
        named: set[int] = set()  # the positions of the calls with a name in this delta
        deltas: list[Message] = []
        for wire in fragments:
            fragment = _Fragment(wire)
            call = self._call_of(fragment, named)
            if fragment.name:
                named.add(call.position)
            deltas.append(call.add(fragment))
            if call.id:
                self._by_id.setdefault(call.id, call)
        return deltas

    def mark_done(self, index: int) -> None:
        """Mark the call with this index: its arguments are complete."""
        if (call := self._by_index.get(index)) is not None:
            call.is_done = True

    def _call_of(self, fragment: _Fragment, named: Collection[int]) -> CallSoFar:
        call = self._existing_call(fragment)
        # In a list without indexes, as in a whole message, each item with a name is a new call.
        is_next = bool(fragment.name) and fragment.index is None and call is not None and call.position in named
        if call is None or is_next or _starts_another(call, fragment):
            call = CallSoFar(position=len(self.calls))
            self.calls.append(call)
            if fragment.index is not None:
                self._by_index[fragment.index] = call
        return call

    def _existing_call(self, fragment: _Fragment) -> CallSoFar | None:
        last = self.calls[-1] if self.calls else None
        if fragment.index is not None:
            call = self._by_index.get(fragment.index)
            is_late_index = call is None and not (fragment.id or fragment.name)
            return last if is_late_index else call
        return self._by_id.get(fragment.id, last)


def _starts_another(call: CallSoFar, fragment: _Fragment) -> bool:
    if not fragment.name:
        return False
    has_other_id = bool(fragment.id and call.id and fragment.id != call.id)
    # With equal or missing ids, a fragment with a name and arguments starts another call only if `call` is complete.
    return has_other_id or bool(fragment.text.strip() and call.is_complete())


def _merge_rest(wire: Mapping[str, Any], own_keys: frozenset[str], into: dict[str, Any]) -> Message:
    rest = {key: value for key, value in wire.items() if key not in own_keys and value is not None}
    for key, value in rest.items():
        merge_own_key(into, key, value)
    return rest
