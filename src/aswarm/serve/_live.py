"""The end of the log of a run that runs here, and the readers that wait for more.

Only the newest entries are here. Older ones are in the log, where a reader finds them.
"""

from __future__ import annotations

import anyio

from ._entries import Entry
from ._log import Lot
from ._runs import RunRecord

_KEPT = 256  # entries that stay here after they were written, for readers that are close to the end


class LiveEntries:
    """Entries as they are made: one writer adds, any number of readers wait for more."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self._first: int = 0  # the number of the oldest entry that is here
        self._entries: list[Entry] = []
        self._news: anyio.Event | None = None

    @property
    def last(self) -> int:
        """The number of the last entry so far."""
        return self._first + len(self._entries) - 1

    def add(self, entry: Entry) -> None:
        """Add the next entry, and wake the readers."""
        self._entries.append(entry)
        self._wake()

    def end(self) -> None:
        """There are no more entries."""
        self.ended.set()
        self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    def has(self, after: int) -> bool:
        """Whether a reader at this position finds its next entry here, now or later."""
        return self._first <= after + 1

    async def read(self, after: int) -> list[Entry]:
        """The entries above `after`, once there is one. Empty after the last one, and if the entries are no longer here."""
        while self.has(after) and not self.ended.is_set() and self.last <= after:
            if self._news is None:
                self._news = anyio.Event()
            await self._news.wait()
        return self._entries[after + 1 - self._first :] if self.has(after) else []


class LiveRun(LiveEntries):
    """A run of this process. `scope` is the cancel scope of its task, `reason` says why it was cancelled.

    `readers`: how many there are now. `unread_since`: since when there is none, on the clock of anyio. `bytes`: of its log.
    """

    def __init__(self, record: RunRecord) -> None:
        super().__init__()
        self.record = record
        self.scope = anyio.CancelScope()
        self.reason: str | None = None
        self.readers = 0
        self.unread_since: float | None = None
        self.bytes = 0
        self._is_fenced = False
        self._written = 0  # how many entries are in the log

    def cancel(self, reason: str) -> None:
        """Stop the run. The first reason counts."""
        if self.reason is None:
            self.reason = reason
            self.scope.cancel()

    def fence(self) -> None:
        """Another process has closed the run, so that this one must not write to it any more."""
        self._is_fenced = True
        self.cancel("its lease was lost")
        self._wake()

    def has(self, after: int) -> bool:
        """As above; of a run that another process has closed, the log has the end."""
        return not self._is_fenced and super().has(after)

    def unwritten(self, last: Entry | None = None) -> Lot | None:
        """What is to be written: the entries that are not in the log, and `last`, which readers do not see yet."""
        entries = self._entries[self._written - self._first :]
        if last is not None:
            entries.append(last)
        if not entries:
            return None
        return Lot(entries[0].seq, entries[-1].seq, b"\n".join(entry.to_json() for entry in entries))

    def written(self, lot: Lot) -> None:
        """Note that a lot is in the log: its entries need not stay here."""
        self._written, self.bytes = lot.last + 1, self.bytes + len(lot.data)
        unneeded = max(0, min(self._written - self._first, len(self._entries)) - _KEPT)
        self._first = self._first + unneeded
        del self._entries[:unneeded]
