"""Which ids have come, of millions of lines, in twenty bytes or so for each. A set of them takes five times as much."""

from __future__ import annotations

from array import array
from hashlib import blake2b


class Ids:
    """Keeps 64 bits of each. That two of ten million ids share theirs has a chance of one in 400,000."""

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * 1024))  # open addressing; 0 is a free place
        self._count = 0

    def add(self, key: str) -> bool:
        """Note it; whether it is new."""
        digest = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") or 1
        place = self._place(digest)
        if self._table[place]:
            return False
        self._table[place] = digest
        self._count += 1
        if self._count * 3 > len(self._table) * 2:  # fuller, it would be slow
            self._grow()
        return True

    def _place(self, digest: int) -> int:
        """Where it is, or else belongs."""
        last = len(self._table) - 1
        place = digest & last
        while self._table[place] not in (0, digest):
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        before = self._table
        self._table = array("Q", bytes(8 * 2 * len(before)))
        for digest in before:
            if digest:
                self._table[self._place(digest)] = digest
