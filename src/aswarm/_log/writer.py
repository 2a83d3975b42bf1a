"""`LogWriter`: the entries of one attempt of a run that are not yet in its log.

It collects entries while a write is scheduled or runs. The `Database` combines the writes of many runs into one commit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from aswarm._sql.database import Database
from aswarm._sql.transactions import PendingTransaction, Transaction
from aswarm._values.errors import ConfigurationError

from . import runs as log
from .runs import Ending, LogRow, Written

WITHIN = 0.05  # seconds until entries are written together: one commit for each delta would cost 100 times more


class LogWriter:
    """Writes the entries of an attempt in their order, each once.

    It belongs to one event loop. `add` never waits. Only the thread of the database removes entries. If a write fails, the next
    write includes its entries.

    `next`: the number of the first unwritten entry. `failed`: called in the thread of the database with the error of a write, or
    with None if the log refuses the write, because another attempt has started or the run has ended. `written`: called there
    after a write of entries.
    """

    def __init__(
        self,
        database: Database,
        run_id: str,
        attempt: int,
        first: int,
        failed: Callable[[Exception | None], object],
        written: Callable[[], object] | None = None,
    ) -> None:
        self.next = first
        self.run_id = run_id
        self.attempt = attempt
        self._database = database
        self._failed = failed
        self._written = written
        self._unwritten: list[bytes] = []
        self._due = math.inf  # the delay of the scheduled write; infinite without one, or if a commit has replaced it
        self._not_durable: LogRow | None = None  # the last row, if only a write without `durable` contains it

    def add(self, line: bytes, within: float = WITHIN) -> None:
        """Add an entry. It is written with the next write, or after at most `within` seconds."""
        self._unwritten.append(line)
        if self._due > within:
            self.schedule(within)

    def schedule(self, within: float = 0.0) -> None:
        """Schedule a write of the unwritten entries, after at most `within` seconds."""
        self._due = within
        self._database.put(self._write_scheduled, self._note, within=within, notifies=True)

    def unschedule(self) -> None:
        """Leave the unwritten entries to the next `commit`, `row` or `schedule`."""
        self._due = math.inf

    async def commit(self) -> bool:
        """Write all entries, and wait until they are on disk. Returns False if the log refuses them. Raises StoreError."""
        self._due = math.inf
        written = await self._database.submit(self._write_durable, self._note, durable=True, notifies=True)
        return written is not False

    async def end(self, last: bytes, ending: Ending, at: int) -> bool:
        """Write all entries and the last entry, and end the run, like `commit`. `at`: the time of the last entry."""
        self._due = math.inf
        write = partial(self._write_end, last, ending, at)
        written = await self._database.submit(write, self._note, durable=True, notifies=True)
        return written is not False

    def row(self, last: bytes | None = None) -> LogRow | None:
        """Return the unwritten entries and `last` as a row of the log."""
        lines = [*self._unwritten, *(() if last is None else (last,))]  # the event loop may add entries meanwhile
        return LogRow(self.next, self.next + len(lines) - 1, b"\n".join(lines)) if lines else None

    # --- in the thread of the database ---

    def _write_scheduled(self) -> Transaction[Written]:
        return log.append(self.run_id, self.attempt, None if self._due == math.inf else self.row())

    def _write_durable(self) -> Transaction[Written]:
        # Without a change, a commit does not wait for the disk. So it writes the last row again, if it may not be there.
        return log.append(self.run_id, self.attempt, self.row() or self._not_durable)

    def _write_end(self, last: bytes, ending: Ending, at: int) -> Transaction[Written]:
        row = self.row(last)
        assert row is not None  # noqa: S101 - it has the last entry
        return log.end(self.run_id, self.attempt, row, ending, at)

    def _note(self, job: PendingTransaction) -> None:
        row: Written = job.value
        if job.error is not None or row is False:
            self._failed(job.error)
        elif row is not None:
            self._not_durable = None if job.durable else row
            written = row.last + 1 - self.next  # not positive for a row that was written again
            if written > 0:
                self.next += written
                del self._unwritten[:written]
                if self._written is not None:
                    self._written()
        if not job.durable and self._due != math.inf:
            self._due = math.inf
            if self._unwritten and job.error is None and row is not False:  # added while the write ran
                with suppress(ConfigurationError):  # the database is being closed
                    self.schedule(WITHIN)
