"""`Facts`: the recorded facts of a run, for a replay, and the fingerprints that compare a run with its record. No I/O.

The number of a turn is the field `turn` of its TurnStarted. If a run is resumed, its open calls belong to turn 0. If a turn has
no recorded completion, the whole turn runs again.

A fingerprint is a hash. It shows whether an item or a request differs from the recorded item or request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from pydantic_core import to_json

from aswarm._run.calls_inside import CODE_STARTED
from aswarm._values.agent import Agent
from aswarm._values.decisions import Resume, recorded_resume
from aswarm._values.messages import has_started_inside, normalize
from aswarm._wire.request import CompletionRequest

from .entries import Entry, as_json


def item_fingerprint(
    agent: Agent, messages: Any, context_variables: Mapping[str, Any] | None, resume: Resume = False
) -> str:
    """Return a hash of an item: of its messages, its context variables, its decisions and the name of its first agent.

    Raises ConfigurationError for invalid messages.
    """
    variables = [_variables(context_variables)] if context_variables else []
    decided = [{"resume": recorded_resume(resume)}] if resume is not False else []
    return _digests({"item": [agent.name, normalize(messages), *variables, *decided]})["item"]


def request_fingerprint(request: CompletionRequest) -> dict[str, str]:
    """Return a hash of each part of a request that affects its answer, by the name of the part."""
    body = request.body
    messages: list[Any] = body["messages"]
    is_instructed = bool(messages) and messages[0].get("role") == "system"
    parts = {"tools": body.get("tools"), "messages": messages[1:] if is_instructed else messages}
    if is_instructed:
        parts["instructions"] = messages[0]
    if "response_format" in body:
        parts["response_format"] = body["response_format"]
    return {"model": str(body.get("model")), "tools": "", "instructions": "", **_digests(parts)}


def differences(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Return the names of the parts in which two fingerprints of a request differ."""
    return [name for name, fingerprint in current.items() if recorded.get(name) != fingerprint]


def _variables(context: Mapping[str, Any]) -> str:
    # For a value that is not JSON, hash only the type, because the text of a set may differ in the next process.
    try:
        return json.dumps(dict(context), default=_type_name, sort_keys=True, skipkeys=True)
    except (TypeError, ValueError, RecursionError):  # keys that cannot be sorted, or a container that contains itself
        return ""


def _digests(values: Mapping[str, Any]) -> dict[str, str]:
    digests: dict[str, str] = {}
    for name, value in values.items():
        try:
            text = to_json(value, fallback=_type_name)
        except ValueError:  # half a surrogate pair
            text = json.dumps(value, default=_type_name).encode()
        digests[name] = blake2b(text, digest_size=8).hexdigest()
    return digests


def _type_name(value: object) -> str:
    # The provider's client may accept a value that is not JSON. Here, only its type can be compared.
    return type(value).__name__


_OF_CALLS = frozenset({"ToolCallStarted", "ToolProgress", "ToolCallFinished", "CallWaiting"})
# The place of a call in its turn: its position in the message, and its number inside code; None for a call of the message.
CallPlace: TypeAlias = tuple[int, int | None]
# The mark of a ToolProgress that records a call inside code, or the start of the code.
INSIDE = "_inside"
_OF_A_START = ("ToolCallStarted", "ToolCallWithdrawn")
_OF_A_CALL_INSIDE = ("ToolCallStarted", "CallWaiting", "ToolCallFinished")
_Key = tuple[object, ...]


class CallKey(NamedTuple):
    """The key of a call: the number of its turn, and its position in the assistant message.

    `inside`: for a call that code makes, its number in the code at this position; None for the call of the message itself.
    """

    turn: int
    position: int
    inside: int | None = None


class Facts:
    """The recorded facts of one run.

    `completions`: the fields of each CompletionFinished, by the number of its turn.
    `started`: the calls whose functions have started.
    `waiting`, `finished`: the fields of each CallWaiting and each ToolCallFinished, in recorded order.
    `outcomes`: the places and outcomes of the calls of each turn that finished or waited, in recorded order.
    `made`: the name of each call inside code, and its arguments if they are known.
    `code_starts`: the recorded data of each start of code.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.completions: dict[int, Mapping[str, Any]] = {}
        self.started: set[CallKey] = set()
        self.waiting: dict[CallKey, Mapping[str, Any]] = {}
        self.finished: dict[CallKey, Mapping[str, Any]] = {}
        self.made: dict[CallKey, tuple[str, str | None]] = {}
        self.code_starts: dict[CallKey, Mapping[str, Any]] = {}
        self.outcomes: dict[int, list[tuple[CallPlace, Mapping[str, Any]]]] = {}
        self._keys: set[_Key] = set()
        turn = 0
        for entry in entries:
            turn = entry.fields["turn"] if entry.type == "TurnStarted" else turn
            if entry.type != "RunStarted":  # a replay does not create this entry again
                self._add(turn, entry)

    def _add(self, turn: int, entry: Entry) -> None:
        self._keys.add(key_of(turn, entry))
        if entry.type == "CompletionFinished":
            self.completions[turn] = entry.fields
        elif entry.type == "ToolCallStarted":
            self.started.add(CallKey(turn, entry.fields["index"]))
        elif entry.type == "ToolCallWithdrawn":
            # The call may start again, and be withdrawn again.
            self.started.discard(CallKey(turn, entry.fields["index"]))
            self._keys -= {key_of(turn, entry), (turn, "ToolCallStarted", entry.fields["index"])}
        elif entry.type == "CallWaiting":
            self._end(self.waiting, CallKey(turn, entry.fields["index"]), entry.fields)
        elif entry.type == "ToolCallFinished":
            self._end(self.finished, CallKey(turn, entry.fields["index"]), entry.fields)
        elif entry.type == "ToolProgress" and entry.fields.get(INSIDE):
            self._add_inside(turn, entry.fields)

    def _add_inside(self, turn: int, progress: Mapping[str, Any]) -> None:
        fields = {**progress["value"], **{key: value for key, value in progress.items() if key.startswith("_")}}
        if fields["type"] == CODE_STARTED:
            self.code_starts[CallKey(turn, progress["index"])] = progress["value"]
            return
        key = CallKey(turn, progress["index"], fields["index"])
        if fields["type"] == "ToolCallWithdrawn":
            self.started.discard(key)
            self._keys -= {(turn, "ToolProgress", key.position, kind, key.inside) for kind in _OF_A_START}
            return
        if fields["type"] not in _OF_A_CALL_INSIDE:  # a newer version has written it
            return
        self.made.setdefault(key, (fields["name"], fields.get("_made")))
        if fields["type"] == "ToolCallStarted":
            self.started.add(key)
        elif fields["type"] == "CallWaiting":
            self._end(self.waiting, key, fields)
        else:
            self._end(self.finished, key, fields)

    def _end(self, kind: dict[CallKey, Mapping[str, Any]], key: CallKey, fields: Mapping[str, Any]) -> None:
        kind[key] = fields
        self.outcomes.setdefault(key.turn, []).append((key[1:], fields.get("_outcome", {})))

    def inside(self, call: CallKey) -> Iterator[tuple[CallKey, Mapping[str, Any]]]:
        """Yield the calls inside a call that have finished, with their outcomes, in recorded order."""
        for key, fields in self.finished.items():
            if key[:2] == call[:2] and key.inside is not None:
                yield key, fields.get("_outcome", {})

    def unknown_inside(self, call: CallKey) -> list[CallKey]:
        """Return the calls inside a call that have no recorded result, and have started, or have functions started inside."""
        waiting = {key for key, fields in self.waiting.items() if not has_started_inside(fields.get("data"))}
        return sorted(
            key
            for key in self.started.union(self.waiting) - self.finished.keys() - waiting
            if key[:2] == call[:2] and key.inside is not None
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to replay."""
        return not self._keys

    @property
    def last_turn(self) -> int:
        """The number of the last turn with a recorded completion; 0 if there is none."""
        return max(self.completions, default=0)

    def has(self, turn: int, entry: Entry) -> bool:
        """Return whether the log already has this entry of a replay."""
        turn = entry.fields["turn"] if entry.type == "TurnFinished" else turn  # made at the start of the next turn
        if turn and turn not in self.completions:
            return False
        return (turn > 0 and entry.type.endswith("Delta")) or key_of(turn, entry) in self._keys


def key_of(turn: int, entry: Entry) -> _Key:
    """Return a key that is equal for a recorded entry and for the entry that its replay makes."""
    if entry.type == "ToolProgress" and entry.fields.get(INSIDE):
        value = entry.fields["value"]
        return turn, entry.type, entry.fields["index"], value["type"], value.get("index")
    if entry.type in _OF_CALLS:
        return turn, entry.type, entry.fields["index"]
    if (
        entry.type == "TurnFinished"
    ):  # an attempt may end before the end of its run, and the next one ends the turn otherwise
        return entry.fields["turn"], entry.type, as_json(entry.fields)
    if entry.type == "ContextChanged":
        return turn, entry.type, tuple(entry.fields["by"])
    return turn, entry.type
