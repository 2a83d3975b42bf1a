"""Where finished outcomes wait for whoever reads them: as they came, or in the order of the batch.

Plain bookkeeping; who waits for what is decided elsewhere.
"""

from __future__ import annotations

from collections import deque

from ._item import Outcome


class Shelf:
    """The outcomes that wait. `take` gives the next one that may be read."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._ready: deque[Outcome] = deque()
        self._early: dict[int, Outcome] = {}  # those that wait for one before them
        self._next = 0

    def put(self, outcome: Outcome) -> None:
        """Lay one down."""
        if not self._ordered:
            self._ready.append(outcome)
            return
        self._early[outcome.index] = outcome
        while (due := self._early.pop(self._next, None)) is not None:
            self._ready.append(due)
            self._next += 1

    def take(self) -> Outcome | None:
        """The next one; None where none may be read yet."""
        return self._ready.popleft() if self._ready else None

    def clear(self) -> None:
        """Throw away what waits."""
        self._ready.clear()
        self._early.clear()
