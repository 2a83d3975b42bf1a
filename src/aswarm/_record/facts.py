"""`Facts`: the recorded facts of a run, for fast access during a replay. No I/O.

The number of a turn is the field `turn` of its TurnStarted. If a run is resumed, its open calls belong to turn 0. If a turn has
no recorded completion, the whole turn runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .entries import Entry

_OF_CALLS = frozenset({"ToolCallStarted", "ToolProgress", "ToolCallFinished", "CallWaiting"})
_Key = tuple[object, ...]


class CallKey(NamedTuple):
    """The key of a call: the number of its turn, and its position in the assistant message."""

    turn: int
    position: int


class Facts:
    """The recorded facts of one run.

    `completions`: the fields of each CompletionFinished, by the number of its turn.
    `started`: the calls whose functions have started.
    `waiting`, `finished`: the fields of each CallWaiting and each ToolCallFinished, in recorded order.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.completions: dict[int, Mapping[str, Any]] = {}
        self.started: set[CallKey] = set()
        self.waiting: dict[CallKey, Mapping[str, Any]] = {}
        self.finished: dict[CallKey, Mapping[str, Any]] = {}
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
            self.waiting[CallKey(turn, entry.fields["index"])] = entry.fields
        elif entry.type == "ToolCallFinished":
            self.finished[CallKey(turn, entry.fields["index"])] = entry.fields

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to replay."""
        return not self._keys

    @property
    def last_turn(self) -> int:
        """The number of the last turn with a recorded completion; 0 if there is none."""
        return max(self.completions, default=0)

    def outcomes(self, turn: int) -> list[tuple[int, Mapping[str, Any]]]:
        """Return the positions and outcomes of the calls of a turn, in the order in which they finished."""
        return [(key.position, fields.get("_outcome", {})) for key, fields in self.finished.items() if key.turn == turn]

    def has(self, turn: int, entry: Entry) -> bool:
        """Return whether the log already has this entry of a replay."""
        if turn and turn not in self.completions:
            return False
        return (turn > 0 and entry.type.endswith("Delta")) or key_of(turn, entry) in self._keys


def key_of(turn: int, entry: Entry) -> _Key:
    """Return a key that is equal for a recorded entry and for its replayed entry."""
    if entry.type in _OF_CALLS:
        return turn, entry.type, entry.fields["index"]
    if entry.type == "ContextChanged":
        return turn, entry.type, tuple(entry.fields["by"])
    return turn, entry.type
