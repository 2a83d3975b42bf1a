"""The SQLite file of a journal: its tables, its lock, its transactions, and a writer that commits many items together.

The file has the tables of `log`. Each item of the batch is a run; its owner is the batch. An additional table identifies the
batch. A lock file in the same folder reserves the journal for one batch at a time. This lock ends with the process. SQLite's
own lock is not enough: a process loses it when it closes any descriptor of the file, for example after copying the file.
"""
# ruff: noqa: S608 - statements contain only names of this module; all data is passed as parameters

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from functools import partial
from itertools import chain
from os import PathLike
from typing import Any, NamedTuple

from aswarm._log import runs as log
from aswarm._record.entries import Entry, entries_of, now
from aswarm._runtime.files import SideLock
from aswarm._sql.database import DatabaseConnection
from aswarm._sql.databases import SQLiteFile
from aswarm._sql.transactions import PendingTransaction, Schema, ThreadEvent, Transaction, chunks, marks
from aswarm._values.errors import ConfigurationError, RunError
from aswarm._values.json import shown

_BATCH = "CREATE TABLE aswarm_batch (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_SCHEMA = Schema(0x6173776D, 2, "a journal", (*log.TABLES, _BATCH))  # "aswm"
_BUSY_SECONDS = 1.0  # the lock of a killed process may exist for a moment
_SHOWN = 80  # characters of a value in an error message
_LAST_ROWID = 2**63 - 1
_VALUES_PER_STATEMENT = 750  # below the limit of every SQLite version
_RUN = 'aswarm_run (id, digest, owner, started, "user", status, on_disconnect, version, attempt, deaths)'


class StoredItem(NamedTuple):
    """An item in the file. `rows`: the entries of earlier processes; for a finished item, only the last row.

    `is_repeated`: whether this batch has looked up the item before.
    """

    digest: str
    is_repeated: bool = False
    is_finished: bool = False
    rows: Sequence[tuple[int, int, bytes]] = ()


# --- the file ---


class JournalFile(SQLiteFile):
    """The open file of a journal. Opening raises ConfigurationError if another batch has the file open."""

    def __init__(self, path: str | PathLike[str]) -> None:
        super().__init__(path, _SCHEMA, exclusive=True)
        self._lock: SideLock | None = None

    def _open_file(self) -> DatabaseConnection:
        self._lock = self._acquire()
        try:
            return super()._open_file()
        except ConfigurationError as error:
            self._lock.release()
            code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF  # the higher bits hold the extended code
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise self._in_use() from error
            raise

    def _acquire(self) -> SideLock:
        try:
            lock = SideLock.acquire(self.path, _BUSY_SECONDS)
        except OSError as error:
            raise ConfigurationError(
                f"the journal {self.path} cannot be opened: {error.strerror}: {error.filename}. A journal needs a folder in "
                "which this process may create files"
            ) from error
        if lock is None:
            raise self._in_use()
        return lock

    def _in_use(self) -> ConfigurationError:
        return ConfigurationError(
            f"the journal {self.path} is in use: another batch has it open; wait until that batch has finished, or use another journal"
        )

    async def aclose(self) -> None:
        await super().aclose()
        if self._lock is not None:
            self._lock.release()  # the next batch may open the file


# --- its transactions ---


def check_batch(name: str, fingerprint: Mapping[str, str]) -> Transaction[None]:
    """Record the batch in a new file. Raises ConfigurationError for the journal of another batch."""
    recorded = dict((yield "SELECT key, value FROM aswarm_batch", ()))
    if not recorded:
        yield from _insert("aswarm_batch", list(fingerprint.items()))
        return
    for key in {**recorded, **fingerprint}:
        then, current = recorded.get(key), fingerprint.get(key)
        if then != current:
            verb = "are" if key.endswith("s") else "is"
            raise ConfigurationError(
                f"{name} is the journal of another batch: its {key} {verb} {shown(then, _SHOWN)}, and in this batch "
                f"{shown(current, _SHOWN)}. Continue that batch with its settings, or give this batch a journal of its own"
            )


def look_up(wanted: Sequence[tuple[str, str]], owner: str) -> Transaction[list[StoredItem]]:
    """Return the `wanted` items for the batch `owner`. Add the new items to the file. `wanted`: id and digest of each item."""
    statement = "SELECT id, digest, owner, status FROM aswarm_run WHERE id"
    rows = yield from _select(statement, {item_id: None for item_id, _ in wanted})
    known = {item_id: (digest, last_owner, status) for item_id, digest, last_owner, status in rows}
    of_others = [(item_id, status) for item_id, (_, last_owner, status) in known.items() if last_owner != owner]
    claimed = {item_id: status == "finished" for item_id, status in of_others}
    entries = yield from _entries(claimed)
    items: list[StoredItem] = []
    new: list[Sequence[object]] = []
    for item_id, digest in wanted:
        if item_id not in known:
            new.append((item_id, digest, owner, now(), "", "running", "finish", "", 1, 0))
            known[item_id] = (digest, "", "running")
        recorded, last_owner, status = known[item_id]
        items.append(StoredItem(recorded, last_owner == owner, status == "finished", entries.get(item_id, ())))
        known[item_id] = (recorded, owner, status)
    yield from _insert(_RUN, new)
    for some in chunks(list(claimed), _VALUES_PER_STATEMENT):
        yield f"UPDATE aswarm_run SET owner = ? WHERE id IN ({marks(some)})", (owner, *some)
    return items


def _entries(items: Mapping[str, bool]) -> Transaction[dict[str, list[tuple[int, int, bytes]]]]:
    """Return the rows with the entries of items. `items`: for each id, whether the item has finished."""
    finished = [item_id for item_id, is_finished in items.items() if is_finished]
    unfinished = [item_id for item_id, is_finished in items.items() if not is_finished]
    # In SQLite, the other columns of a query with max() come from the row with the maximum (sqlite.org/lang_select.html).
    columns = "last, data FROM aswarm_entry WHERE run"
    rows = yield from _select(f"SELECT run, max(first), {columns}", finished, "GROUP BY run")
    rows += yield from _select(f"SELECT run, first, {columns}", unfinished, "ORDER BY first")
    by_item: dict[str, list[tuple[int, int, bytes]]] = {}
    for item_id, first, last, data in rows:
        by_item.setdefault(item_id, []).append((first, last, data))
    return by_item


def entries_since(at: int) -> Transaction[list[Entry]]:
    """Return the entries of all items since this time, in milliseconds since the epoch."""
    entries, before = list[Entry](), _LAST_ROWID
    statement = "SELECT rowid, last, data FROM aswarm_entry WHERE rowid < ? ORDER BY rowid DESC LIMIT 200"
    while rows := (yield statement, (before,)):
        recent = [entry for entry in entries_of(rows) if entry.at_ms >= at]
        if not recent:
            break
        entries += recent
        before = rows[-1][0]
    return entries


def write(lines: Mapping[str, tuple[int, list[bytes]]], finished: Sequence[str]) -> Transaction[None]:
    """Write the entries of items, and mark finished items. `lines`: the first number and the entries of each item."""
    rows = [(item, first, first + len(written) - 1, b"\n".join(written)) for item, (first, written) in lines.items()]
    yield from _insert("aswarm_entry", rows)
    for some in chunks(finished, _VALUES_PER_STATEMENT):
        yield f"UPDATE aswarm_run SET status = 'finished', ended = ? WHERE id IN ({marks(some)})", (now(), *some)


def _select(statement: str, values: Collection[object], end: str = "") -> Transaction[list[Any]]:
    rows: list[Any] = []
    for some in chunks(list(values), _VALUES_PER_STATEMENT):
        rows += yield f"{statement} IN ({marks(some)}) {end}", some
    return rows


def _insert(into: str, rows: Sequence[Sequence[object]]) -> Transaction[None]:
    # One statement inserts many rows, because each statement releases the GIL, and then waits until it gets the GIL back.
    width = len(rows[0]) if rows else 1
    for some in chunks(rows, _VALUES_PER_STATEMENT // width):
        values = ", ".join([f"({marks(range(width))})"] * len(some))
        yield f"INSERT INTO {into} VALUES {values}", list(chain.from_iterable(some))


# --- the writer ---


class _Urgency(IntEnum):
    LATER = 0  # together with a later entry
    NOW = 1
    DURABLE = 2  # a task waits until the entries are on disk


class _Writes:
    """The data of one transaction. `lines`: see `write`."""

    def __init__(self) -> None:
        self.urgency = _Urgency.LATER
        self.wanted: list[tuple[str, str]] = []
        self.found: list[StoredItem] = []
        self.lines: dict[str, tuple[int, list[bytes]]] = {}
        self.finished: list[str] = []
        self.written: ThreadEvent | None = None


class JournalWriter:
    """Writes the entries of all items of the batch `owner` to the file, many in one transaction.

    While the thread of the file writes, the writer collects the next entries. It belongs to one event loop, and never blocks
    this loop. `failure`: the error after which the file cannot be written, or None.
    """

    def __init__(self, file: JournalFile, owner: str) -> None:
        self.failure: BaseException | None = None
        self._file = file
        self._owner = owner
        self._lock = threading.Lock()
        self._pending = _Writes()

    def put(self, item_id: str, number: int, line: bytes, *, now: bool) -> None:
        """Add an entry without waiting for the file. `now`: write it at once; otherwise, write it together with a later entry.

        Raises RunError if the file cannot be written.
        """
        self._check()
        with self._lock:
            self._pending.lines.setdefault(item_id, (number, []))[1].append(line)
            self._schedule(_Urgency.NOW if now else _Urgency.LATER)

    async def commit(self, finished: str | None = None) -> None:
        """Wait until all entries are on disk. `finished`: the id of a finished item. Raises RunError like `put`."""
        self._check()
        with self._lock:
            self._pending.finished += [] if finished is None else [finished]
            written = self._schedule_and_wait(_Urgency.DURABLE)
        await written.wait()
        self._check()

    async def find(self, item_id: str, digest: str) -> StoredItem:
        """Return the item from the file. Add it if it is new. Raises RunError like `put`."""
        self._check()
        with self._lock:
            writes, position = self._pending, len(self._pending.wanted)
            writes.wanted.append((item_id, digest))
            written = self._schedule_and_wait(_Urgency.NOW)
        await written.wait()
        self._check()
        return writes.found[position]

    async def aclose(self) -> None:
        if self._file.is_open:
            with self._lock:
                self._schedule(_Urgency.NOW)
        await self._file.aclose()

    def _check(self) -> None:
        if not self._file.is_open:
            raise RunError("the journal is closed")
        if self.failure is not None:
            raise RunError(f"the journal cannot be written: {self.failure}") from self.failure

    def _schedule_and_wait(self, urgency: _Urgency) -> ThreadEvent:
        writes = self._pending
        writes.written = writes.written or ThreadEvent()
        self._schedule(urgency)
        return writes.written

    def _schedule(self, urgency: _Urgency) -> None:
        writes = self._pending
        if urgency > writes.urgency:
            writes.urgency = urgency
            write, note = partial(self._write, writes, urgency), partial(self._note_written, writes, urgency)
            self._file.put(write, note, durable=urgency is _Urgency.DURABLE)

    # In the thread of the file:

    def _write(self, writes: _Writes, urgency: _Urgency) -> Transaction[None]:
        with self._lock:
            if urgency < writes.urgency:  # a more urgent job was scheduled later, and writes these entries
                return
            if self._pending is writes:
                self._pending = _Writes()
        if self.failure is not None:  # the entries before were not written, so later entries must not be written
            raise self.failure
        writes.found = yield from look_up(writes.wanted, self._owner)
        yield from write(writes.lines, writes.finished)

    def _note_written(self, writes: _Writes, urgency: _Urgency, pending: PendingTransaction) -> None:
        if pending.error is not None:
            self.failure = self.failure or pending.error.__cause__ or pending.error
        if urgency is writes.urgency and writes.written is not None:
            writes.written.set()
