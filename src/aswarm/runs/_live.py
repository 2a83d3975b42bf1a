"""`LiveLog`: the newest entries of a running run, in memory. It passes them to readers and writes them to the log.

Readers get older entries from the log.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from aswarm._log.runs import LogRow
from aswarm._log.writer import LogWriter
from aswarm._record.entries import Entry
from aswarm._record.facts import INSIDE
from aswarm._runtime.backend import scheduler
from aswarm._sql.database import Database
from aswarm._values.errors import StoreError

from ._notifier import News

if TYPE_CHECKING:
    from aswarm._log.stored import RunRecord

logger = logging.getLogger("aswarm")

_KEPT = 256  # written entries that stay in memory, for readers that are almost up to date


class LiveEntries:
    """A list of entries with one writer, and any number of readers that wait for more.

    `is_fenced`: if true, readers must read the log instead of this list.
    """

    is_fenced = False
    _hidden_from: int | None = None  # readers do not get the entries from this number on
    _follows_from = math.inf  # readers of an entry from this number on, before the oldest in memory, get this one next

    def __init__(self) -> None:
        self.news = News()
        self.ended = anyio.Event()
        self._first: int = 0  # the number of the oldest entry in memory
        self._entries: list[Entry] = []

    @property
    def last(self) -> int:
        """The number of the last entry so far."""
        return self._first + len(self._entries) - 1

    def add(self, entry: Entry) -> None:
        """Add the next entry, and wake the readers."""
        self._entries.append(entry)
        self.news.wake()

    def end(self) -> None:
        """Mark the list as complete."""
        self.ended.set()
        self.news.end()

    def above(self, after: int) -> list[Entry] | None:
        """Return the entries with numbers above `after`: an empty list if there are none yet, None if they are not in memory."""
        start = after + 1 - self._first
        if self.is_fenced or (start < 0 and after < self._follows_from):
            return None
        shown = self._hidden_from - self._first if self._hidden_from is not None else None
        entries = self._entries[max(0, start) : shown]
        return None if not entries and self.ended.is_set() else entries

    async def next(self, after: int, seconds: float = math.inf) -> Sequence[Entry] | None:
        """Wait for entries with numbers above `after`, and return them.

        The result is empty after the last entry, or if the entries are not in memory. It is None after this number of seconds, or
        earlier.
        """
        has_all = after + 1 >= self._first + len(self._entries)  # as most readers do, after each entry
        entries = [] if has_all and not self.is_fenced and not self.ended.is_set() else self.above(after)
        if entries is None:
            return ()
        if not entries:
            await self.news.next(seconds).wait()
            entries = self.above(after)
        return entries or None


class LiveLog(LiveEntries):
    """One attempt of a run in this process: its entries, its rows in the log, and its cancel scope.

    `first`: the number of the first entry of the attempt. `reason`: why the run was cancelled, or None. `is_fenced`: whether
    another attempt has taken over the run; this attempt must then not write any more. `readers`: the current number of
    readers. `most_bytes`: the largest size of the log. `failure`: the error of the last try to write the end.
    """

    def __init__(
        self, record: RunRecord, attempt: int, database: Database, *, first: int = 0, most_bytes: float | None = None
    ) -> None:
        super().__init__()
        self.record = record
        self.attempt = attempt
        self.scope = anyio.CancelScope()
        self.reason: str | None = None
        self.readers = 0
        self._bytes, self._most_bytes = 0, math.inf if most_bytes is None else most_bytes
        self.failure: StoreError | None = None
        self.stop: Callable[[], None] = self.scope.cancel  # its `Execution` sets what happens at the end of a drain
        self._first = self._starts_at = first
        if record.last >= 0:
            # There is a gap between the numbers of two attempts (see `ATTEMPT_NUMBERS`). A reader that has all entries of the
            # earlier attempts gets the first entry of this attempt next.
            self._follows_from = record.last
        self._writer = LogWriter(database, record.id, attempt, first, self._note_failure, self._note_written)
        self._call_soon = scheduler()
        # The numbers of the started calls that are not committed yet. A process that dies now leaves no trace of such a call, so
        # readers get neither its start nor the entries after it.
        self._starting: deque[int] = deque()

    @property
    def last_seen(self) -> int:
        """The number of the last entry that a reader may have, in this attempt or in an earlier attempt."""
        return self.last if self.last >= self._starts_at else self.record.last

    # --- writing ---

    def add_first(self, entry: Entry) -> None:
        """Add the first entry, which is already in the log."""
        self._writer.next += 1
        super().add(entry)

    def add_last(self, entry: Entry) -> None:
        """Add the last entry, which is already in the log with all entries before it."""
        self._starting.clear()
        self._hidden_from = None
        super().add(entry)

    def add(self, entry: Entry) -> None:
        """Add an entry with the next number. It is written after at most 50 ms, or earlier by the next `commit`.

        A log that is too long stops the run.
        """
        number = self._first + len(self._entries)
        if entry.seq != number:  # the first attempt has the numbers of its `EntryMaker`
            entry = replace(entry, seq=number)
        line = entry.to_log()
        self._bytes += len(line)  # unwritten entries count too, because they need memory
        if self._bytes > self._most_bytes:
            self.cancel("log_too_long")
        kind, fields = entry.type, entry.fields
        if kind == "ToolCallStarted" or (
            kind == "ToolProgress" and INSIDE in fields and fields["value"]["type"] == "ToolCallStarted"
        ):
            self._starting.append(entry.seq)
            self._hidden_from = self._starting[0]
        self._entries.append(entry)
        self._writer.add(line)
        if not self._starting:
            self.news.wake()
        if len(self._entries) > 2 * _KEPT:
            self._forget_old()

    def schedule(self) -> None:
        """Schedule a write of the unwritten entries."""
        self._writer.schedule()

    def _forget_old(self) -> None:
        shown = self.last + 1 if self._hidden_from is None else self._hidden_from
        unneeded = min(self._writer.next, shown) - self._first - _KEPT
        if unneeded > _KEPT:
            self._first, self._follows_from = self._first + unneeded, math.inf
            del self._entries[:unneeded]

    async def commit(self) -> None:
        """Write all entries, and wait until they are on disk.

        Raises StoreError. If another attempt has taken over the run, this attempt is cancelled.
        """
        if not await self.flush():
            self.fence()
            await anyio.sleep_forever()  # until the cancellation arrives

    async def flush(self) -> bool:
        """Write all entries, like `commit`. Returns False if another attempt has taken over the run. Raises StoreError."""
        is_written = await self._writer.commit()
        self._show_written()
        return is_written

    def unschedule(self) -> None:
        """Leave the unwritten entries to the transaction of the end."""
        self._writer.unschedule()

    def unwritten(self, last: Entry | None = None) -> LogRow | None:
        """Return a row of the log with the unwritten entries and `last`. Readers see `last` only after the commit."""
        return self._writer.row(None if last is None else last.to_log())

    def _show_written(self) -> None:
        """Show the calls whose starts are committed to the readers."""
        if self._starting:
            while self._starting and self._starting[0] < self._writer.next:
                self._starting.popleft()
            self._hidden_from = self._starting[0] if self._starting else None
            self.news.wake()

    # In the thread of the database:

    def _note_written(self) -> None:
        if self._starting:
            with suppress(RuntimeError):  # the loop is closed
                self._call_soon(self._show_written)

    def _note_failure(self, error: Exception | None) -> None:
        if error is None:
            with suppress(RuntimeError):  # as above
                self._call_soon(self.fence)
        else:  # the next write includes these entries
            run_id, fields = self.record.id, self.record.log_fields
            logger.warning("the log of the run %s cannot be written", run_id, exc_info=error, extra=fields)

    async def wait_for_end(self) -> None:
        """Wait for the end of the run in this process. Raises StoreError if the end cannot be written."""
        before = self.failure
        while not self.ended.is_set():
            if self.failure is not None and self.failure is not before:
                raise self.failure
            await self.news.next().wait()

    def fail(self, failure: StoreError) -> None:
        """Wake the tasks in `wait_for_end`, so that they raise this error: the end of the run cannot be written."""
        self.failure = failure
        self.news.wake()

    def cancel(self, reason: str) -> None:
        """Stop the run. If it is already stopped, its first reason stays."""
        if self.reason is None:
            self.reason = reason
            self.scope.cancel()

    def fence(self) -> None:
        """Stop this attempt, because another attempt has taken over the run."""
        self.is_fenced = True
        self.cancel("superseded")
        self.news.wake()

    def detach(self) -> None:
        """Mark the run as executed by another process. Its readers continue with the log."""
        self.is_fenced = True
        self.end()
