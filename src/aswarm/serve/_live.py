"""The end of the log of a run that runs here, and the readers that wait for more.

Only the newest entries are here. Older ones are in the log, where a reader finds them.
"""

from __future__ import annotations

import anyio

from ._entries import Entry
from ._log import LogRow
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
        while self.has(after) and not self.ended.is_set() and self.last < max(after + 1, self._first):
            if self._news is None:
                self._news = anyio.Event()
            await self._news.wait()
        return self._entries[max(0, after + 1 - self._first) :] if self.has(after) else []


class LiveRun(LiveEntries):
    """A run of this process. `scope` is the cancel scope of its task, `reason` says why it was cancelled.

    `is_fenced`: another process has the run, so that this one must not write to it any more. `readers`: how many there are now. `unread`: the scope of the task that cancels the run unless a reader comes. `bytes`: of
    its log.
    """

    def __init__(self, record: RunRecord) -> None:
        super().__init__()
        self.record = record
        self.scope = anyio.CancelScope()
        self.reason: str | None = None
        self.readers = 0
        self.unread = anyio.CancelScope()
        self.bytes = 0
        self.is_fenced = False
        self._begins = 0  # the number of the first entry of this process
        self._written = 0  # how many entries are in the log
        self._unwritten: list[bytes] = []  # those that are not, as JSON

    def begin_at(self, number: int) -> None:
        """Count the entries from here: the log has those before, up to `record.last`, and another process has written them."""
        self._first = self._written = self._begins = number

    @property
    def last_seen(self) -> int:
        """The number of the last entry that a reader may have. The numbers before those of this process may have a gap."""
        return self.last if self.last >= self._begins else self.record.last

    def cancel(self, reason: str) -> None:
        """Stop the run. The first reason counts."""
        if self.reason is None:
            self.reason = reason
            self.scope.cancel()

    def add(self, entry: Entry) -> None:
        """As above; the bytes count at once, because a log that cannot be written grows in memory."""
        if entry.seq >= self._written:  # the last one is written before readers see it
            self._unwritten.append(entry.to_json())
            self.bytes += len(self._unwritten[-1])
        super().add(entry)

    def end(self) -> None:
        """As above; the run needs no reader any more."""
        self.unread.cancel()
        super().end()

    def fence(self) -> None:
        """Another process has closed the run, so that this one must not write to it any more."""
        self.is_fenced = True
        self.cancel("lease_lost")
        self._wake()

    def leave(self) -> None:
        """Another process continues the run: its readers find the entries in the log."""
        self.is_fenced = True
        self.end()

    def has(self, after: int) -> bool:
        """As above; of a run that another process has closed, the log has the end."""
        is_behind = self._first == self._begins > after > self.record.last - 1 >= 0
        return not self.is_fenced and (is_behind or super().has(after))

    def unwritten(self, last: Entry | None = None) -> LogRow | None:
        """What is to be written: the entries that are not in the log, and `last`, which readers do not see yet."""
        lines = self._unwritten if last is None else [*self._unwritten, last.to_json()]
        if not lines:
            return None
        return LogRow(self._written, self._written + len(lines) - 1, b"\n".join(lines))

    def written(self, row: LogRow) -> None:
        """Note that a row is in the log: its entries need not stay here."""
        self._written = row.last + 1
        del self._unwritten[: row.last + 1 - row.first]
        unneeded = max(0, min(self._written - self._first, len(self._entries)) - _KEPT)
        self._first = self._first + unneeded
        del self._entries[:unneeded]
