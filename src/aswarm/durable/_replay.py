"""Which entries of a replay the log has already.

A process that takes over a run replays its steps, and its events come again. What the log has is not written twice; what a
completion that was cut had streamed is, after the beginning of its turn again. Never waits, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

from aswarm.serve._entries import Entry

_OF_CALLS = ("ToolCallStarted", "ToolProgress", "ToolCallFinished", "CallWaiting")
_Key = tuple[object, ...]


class Replay:
    """The entries of a log, as far as they can come again."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._known: set[_Key] = set()
        turn, self._complete = 0, set[int]()
        for entry in entries:
            turn += entry.type == "TurnStarted"
            self._known.add(_key(turn, entry))
            if entry.type == "CompletionFinished":
                self._complete.add(turn)
        # The last turn, if its completion was cut, begins again: its text comes from its beginning.
        self._cut = turn if turn not in self._complete else 0
        self._turn = 0

    def is_known(self, entry: Entry) -> bool:
        """Whether the log has this entry. The entries of a run come in order."""
        self._turn += entry.type == "TurnStarted"
        if self._turn and self._turn == self._cut:
            return False
        if self._turn in self._complete and entry.type.endswith("Delta"):
            return True
        return _key(self._turn, entry) in self._known


def _key(turn: int, entry: Entry) -> _Key:
    if entry.type in _OF_CALLS:
        return turn, entry.type, entry.fields["index"]
    if entry.type == "ContextChanged":
        return turn, entry.type, tuple(entry.fields["by"])
    return turn, entry.type
