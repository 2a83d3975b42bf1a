"""The accumulator of tool calls: it takes fragments and makes calls.

A fragment belongs to the call of its `index`. A new id with a name is a new call even if the index is that of another
(vLLM and others send 0 for all calls). A fragment without an index continues the call of its id, or the last call.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._messages import Message

from .merge import join_pieces, merge_key

# Keys with rules of their own. Every other key is the provider's, and is merged by general rules.
_OWN_RULES = frozenset({"index", "id", "type", "function", "custom"})
_NAMED_OWN_RULES = frozenset({"name", "arguments", "input"})


@dataclass(slots=True)
class _Call:
    position: int
    id: str = ""
    type: str = ""
    kind: str = "function"  # the key that holds name and arguments: "function", or "custom"
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    named_extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def take(self, fragment: _Fragment) -> Message:
        """Take a fragment. Returns its new parts in the form of a delta."""
        wire = fragment.wire
        new_id = None if self.id else fragment.id or None
        new_type = None if self.type else wire.get("type") or None
        # An equal name is a repetition; any other continues the name.
        new_name = fragment.name if fragment.name and fragment.name != self.name else None
        self.id, self.type, self.name = (
            self.id or new_id or "",
            self.type or new_type or "",
            self.name + (new_name or ""),
        )
        self.kind = fragment.kind if self.kind == "function" else self.kind
        self.arguments.append(fragment.text)
        function = {"name": new_name, "arguments": fragment.text if fragment.has_text else None}
        return {
            "index": self.position,
            "id": new_id,
            "type": new_type,
            "function": function | _merge_rest(fragment.named, _NAMED_OWN_RULES, self.named_extra),
            **_merge_rest(wire, _OWN_RULES, self.extra),
        }

    def is_complete(self) -> bool:
        """Whether the arguments so far are one whole JSON object."""
        last = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        return last.rstrip().endswith("}") and _is_json("".join(self.arguments))

    def message(self) -> Message:
        """The call as it is recorded; a call without an id gets one."""
        payload = "input" if self.kind == "custom" else "arguments"
        return {
            "id": self.id or f"call_{uuid.uuid4().hex[:24]}",
            "type": self.type or self.kind,
            self.kind: {"name": self.name, payload: "".join(self.arguments), **join_pieces(self.named_extra)},
            **join_pieces(self.extra),
        }


class _Fragment:
    """A piece of a call as the server sent it."""

    def __init__(self, wire: Mapping[str, Any]) -> None:
        self.wire = wire
        self.kind = "custom" if wire.get("custom") else "function"
        self.named: Mapping[str, Any] = wire.get(self.kind) or {}
        self.id = _as_id(wire.get("id"))
        self.index: int | None = wire.get("index")
        self.name: str = self.named.get("name") or ""
        sent = self.named.get("input" if self.kind == "custom" else "arguments")
        self.has_text = sent is not None
        self.text = _as_text(sent)


class CallAccumulator:
    """Accumulates the tool calls of one completion. `feed` the fragments of each delta, then read `messages`."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def feed(self, fragments: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Take the fragments of one delta. Returns the new parts of each: `index`, `id`, `type`, `function`, other keys."""
        named: list[_Call] = []  # the calls whose names stand in this delta
        deltas: list[Message] = []
        for wire in fragments:
            fragment = _Fragment(wire)
            call = self._call_of(fragment, named)
            if fragment.name:
                named.append(call)
            deltas.append(call.take(fragment))
        return deltas

    def _call_of(self, fragment: _Fragment, named: Sequence[_Call]) -> _Call:
        known = self._known(fragment)
        # Each item with a name is a call of its own if the list has no indexes, as in a whole message.
        is_next = bool(fragment.name) and fragment.index is None and any(known is call for call in named)
        if known is None or is_next or _begins_another(known, fragment):
            known = _Call(position=len(self._calls))
            self._calls.append(known)
            if fragment.index is not None:
                self._by_index[fragment.index] = known
        return known

    def _known(self, fragment: _Fragment) -> _Call | None:
        last = self._calls[-1] if self._calls else None
        if fragment.index is not None:
            known = self._by_index.get(fragment.index)
            began_without = known is None and not (fragment.id or fragment.name)  # the server sent the index late
            return last if began_without else known
        return next((call for call in self._calls if fragment.id and call.id == fragment.id), last)

    def arguments_of(self, name: str) -> str:
        """The arguments so far of the first call of this function; empty if there is none."""
        return next(("".join(call.arguments) for call in self._calls if call.name == name), "")

    def messages(self) -> list[Message]:
        """The calls as they are recorded, in the order in which they began."""
        return [call.message() for call in self._calls]


def _begins_another(known: _Call, fragment: _Fragment) -> bool:
    if not fragment.name:
        return False
    has_other_id = bool(fragment.id and known.id and fragment.id != known.id)
    # If the ids are equal, a named fragment with arguments is the next call once the arguments so far are complete.
    return has_other_id or bool(fragment.text.strip() and known.is_complete())


def _merge_rest(wire: Mapping[str, Any], own: frozenset[str], into: dict[str, Any]) -> Message:
    rest = {key: value for key, value in wire.items() if key not in own and value is not None}
    for key, value in rest.items():
        merge_key(into, key, value)
    return rest


def _as_id(sent: Any) -> str:
    # Odd servers send numbers, or worse. The API takes only text, and the answer must have the same.
    return "" if sent is None else str(sent)


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
