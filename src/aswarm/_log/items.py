"""The log of a batch: a SQLite file in which each item is a run. Only one process at a time can use it, on one machine.

While the file is open, a write-ahead log and a lock file are in the same folder. A rerun of an item is another attempt of its
run. One thread writes the entries of all items, each in order, many in one commit. So a crash can lose only the last entries. A
written entry survives a crash of the process. After a wait for the disk, all earlier entries also survive a power failure.

Two additional tables identify the batch, and keep the long results of the items. The lock file reserves the log for one batch at
a time, until the process ends. SQLite's own lock is not enough: a process loses it when it closes any descriptor of the file, for
example after copying the file.
"""

# ruff: noqa: S608 - statements contain only names of this module; all data is passed as parameters

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike

from pydantic_core import to_jsonable_python

from aswarm._record.entries import Entry, entries_of, now
from aswarm._run.options import RunOwner
from aswarm._runtime import clocks
from aswarm._runtime.files import SideLock
from aswarm._sql.database import DatabaseConnection
from aswarm._sql.databases import SQLiteFile
from aswarm._sql.sqlite import is_busy
from aswarm._sql.transactions import Schema, Transaction, marks
from aswarm._values.agent import Response
from aswarm._values.errors import ConfigurationError, RunError, StoreError
from aswarm._values.json import shown

from . import results
from . import runs as log
from .runs import ATTEMPT_NUMBERS, Ending, LogRow
from .writer import WITHIN, LogWriter

_BATCH = "CREATE TABLE aswarm_batch (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_COLUMNS = log.ADDED_IN_FORMAT_4[:2]  # the indexes after them are for queries that a journal does not have


def _to_format_3() -> Transaction[None]:
    for statement in _COLUMNS:
        yield statement, ()


def _to_format_4() -> Transaction[None]:
    for statement in results.TABLES_OF_RUNS:
        yield statement, ()


SCHEMA = Schema(
    0x6173776D,  # "aswm"
    4,
    "a journal",
    (*log.TABLES, *_COLUMNS, _BATCH, *results.TABLES_OF_RUNS),
    {2: _to_format_3, 3: _to_format_4},
)
# Seconds until an entry is written, if no run waits for it; other entries are written with the next one.
_WITHIN = {"ToolCallFinished": 0.0, "ToolCallWithdrawn": 0.0, "ToolProgress": WITHIN}
# A provider's client may put objects into a message. They are recorded in the form in which they are sent.
_encode = json.JSONEncoder(separators=(",", ":"), default=to_jsonable_python).encode
_BUSY_SECONDS = 1.0  # the lock of a killed process may exist for a moment
_SHOWN = 80  # characters of a value in an error message
_LAST_ROWID = 2**63 - 1
_ID = "id"  # the key of the id of the journal
_RUN = 'aswarm_run (id, digest, owner, started, "user", status, on_disconnect, version, attempt, deaths)'


class ItemFile(SQLiteFile):
    """The open log of one batch. It belongs to one event loop.

    Opening raises ConfigurationError for the log of another batch or of a newer version, for a log that another process has open,
    and for a file of another kind.

    `failure`: the error after which nothing can be written, or None. `id`: a random id of the file, which it keeps.
    """

    def __init__(self, path: str | PathLike[str], fingerprint: Mapping[str, str]) -> None:
        """`fingerprint`: identifies the batch; error messages name its keys."""
        super().__init__(path, SCHEMA, exclusive=True)
        if self.path in ("", ":memory:"):  # SQLite accepts these names, and keeps nothing on disk
            raise ConfigurationError(f"journal must be the path of a file, or None for no journal, not {self.path!r}")
        self.failure: BaseException | None = None
        self._fingerprint = fingerprint
        self._owner = clocks.urandom(16).hex()
        self.id: str  # of the open file
        self._lock: SideLock

    async def open(self) -> None:
        await super().open()
        try:
            self.id = await self.run(_check_batch, self.path, self._fingerprint, self._owner)
        except StoreError as error:
            await self.aclose()
            raise ConfigurationError(f"the journal {self.path} cannot be opened: {error.__cause__}") from error
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await super().aclose()
        self._lock.release()  # the next batch may open the file

    async def take(self, item_id: str, digest: str, messages: object) -> ItemLog:
        """Start an attempt of an item. `digest`: identifies the item. `messages`: of the item.

        Raises RunError if the file cannot be written. Raises ConfigurationError if the item has another digest, or if this batch
        has taken it before.
        """
        try:
            item_id.encode()
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                f"the journal cannot hold the id {item_id!r}: {error.reason}. Use an id that UTF-8 can encode"
            ) from error
        self.check()
        try:
            taken = await self.submit(partial(_take, self.path, item_id, digest, self._owner, messages))
        except StoreError as error:
            self.note_failure(error)
            raise self.lost() from self.failure
        return ItemLog(self, item_id, *taken)

    async def recent_requests(self, seconds: float) -> list[tuple[float, int]]:
        """Return the age in seconds and the tokens of each completion that finished in the last `seconds`."""
        at = now()
        entries = await self.run(_entries_since, at - round(seconds * 1000))
        return [
            (max(0, at - entry.at_ms) / 1000, entry.fields["usage"]["total_tokens"])
            for entry in entries
            if entry.type == "CompletionFinished"
        ]

    def note_failure(self, error: Exception | None) -> None:
        """Note the error of a write; None for an item that another program has changed."""
        refused = StoreError("another program has changed the journal")
        self.failure = self.failure or (refused if error is None else error.__cause__ or error)

    def check(self) -> None:
        """Raise RunError if nothing can be written."""
        if not self.is_open:
            raise RunError("the journal is closed")
        if self.failure is not None:
            raise self.lost()

    def lost(self) -> RunError:
        """Return the error of a run after `failure`."""
        error = RunError(f"the journal cannot be written: {self.failure}")
        error.__cause__ = self.failure
        return error

    # --- in the thread of the database ---

    def _open_file(self) -> DatabaseConnection:
        self._lock = self._acquire()
        try:
            return super()._open_file()
        except ConfigurationError as error:
            self._lock.release()
            if is_busy(error.__cause__):
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


class ItemLog:
    """One attempt of an item: a sink of `EntryRecorder`.

    `owner`: the owner of the long results. `is_finished`: whether an earlier attempt has finished the item. `entries`: the entries
    of the earlier attempts; of a finished item, only the last entries. `last_entry`: makes the last entry; set it before `finish`.
    """

    awaits_results = False
    last_entry: Callable[[Response], Entry]

    def __init__(
        self, file: ItemFile, item_id: str, attempt: int = 1, is_finished: bool = False, rows: Sequence[LogRow] = ()
    ) -> None:
        # Items of two batches may have the same id, and the same place of the user for their results.
        self.owner = RunOwner(f"run:{file.id}/{item_id}", results=results.SQLResults(file, f"run:{item_id}"))
        self.is_finished = is_finished
        self.entries = entries_of(rows)
        self._file = file
        self._number = (attempt - 1) * ATTEMPT_NUMBERS  # of the next entry
        self._writer = LogWriter(file, item_id, attempt, self._number, file.note_failure)

    def add(self, entry: Entry) -> None:
        line = _encode({"seq": self._number, "at": entry.at_ms, "type": entry.type, **entry.fields})
        self._number += 1
        self._writer.add(line.encode(), _WITHIN.get(entry.type, math.inf))

    async def commit(self) -> None:
        """Wait until all entries are on disk. Raises RunError if they cannot be written."""
        await self._written(self._writer.commit)

    async def finish(self, response: Response | None, error: Exception | None) -> None:  # noqa: ARG002 - a failed item has no response
        """Finish the item with its last entry, like `commit`. Only then may the response be returned.

        An item without a response was cancelled or has failed. It runs again, so this writes only its entries, without waiting.
        """
        if response is None:
            with suppress(ConfigurationError):  # the file is closed
                self._writer.schedule()
            return
        last = self.last_entry(response)
        line = _encode({"seq": self._number, "at": last.at_ms, "type": last.type, **last.fields})
        await self._written(partial(self._writer.end, line.encode(), Ending("finished"), last.at_ms))

    async def _written(self, write: Callable[[], Awaitable[bool]]) -> None:
        self._file.check()
        with suppress(StoreError):  # the writer has noted the failure
            if await write():
                return
        raise self._file.lost()


# --- transactions ---


def _check_batch(name: str, fingerprint: Mapping[str, str], new_id: str) -> Transaction[str]:
    """Record the batch in a new file, and return the id of the file. Raises ConfigurationError for the log of another batch."""
    recorded = dict((yield "SELECT key, value FROM aswarm_batch", ()))
    journal_id = str(recorded.pop(_ID, new_id))
    for pair in {_ID: journal_id, **({} if recorded else fingerprint)}.items():
        yield "INSERT INTO aswarm_batch VALUES (?, ?) ON CONFLICT DO NOTHING", pair
    for key in {**recorded, **fingerprint} if recorded else ():
        then, current = recorded.get(key), fingerprint.get(key)
        if then != current:
            verb = "are" if key.endswith("s") else "is"
            raise ConfigurationError(
                f"{name} is the journal of another batch: its {key} {verb} {shown(then, _SHOWN)}, and in this batch "
                f"{shown(current, _SHOWN)}. Continue that batch with its settings, or give this batch a journal of its own"
            )
    return journal_id


def _take(
    path: str, item_id: str, digest: str, owner: str, messages: object
) -> Transaction[tuple[int, bool, Sequence[LogRow]]]:
    """Insert an item, or start its next attempt. Return the number of the attempt, and the other arguments of `ItemLog`.

    `owner`: the batch. A new item gets the long results whose handles are in its messages, because it continues another item.
    """
    values = (item_id, digest, owner, now(), "", "running", "finish", "", 1, 0)
    if (yield f"INSERT INTO {_RUN} VALUES ({marks(values)}) ON CONFLICT DO NOTHING", values)[0][0]:
        if not isinstance(messages, str):  # as most items are
            yield from results.copy_to_run(item_id, messages)
        return 1, False, ()
    columns = "digest, attempt + 1, owner, status = 'finished'"
    (row,) = yield f"SELECT {columns} FROM aswarm_run WHERE id = ?", (item_id,)
    recorded, attempt, last_owner, is_finished = row
    if recorded != digest:
        raise ConfigurationError(
            f"the item {item_id!r} differs from the item with this id in the journal {path}: in its messages, its context "
            "variables, its decisions or the name of its agent. Give the item another id, or the batch another journal"
        )
    if last_owner == owner:
        raise ConfigurationError(
            f"two items of the batch have the id {item_id!r}; with a journal, each item needs an id of its own"
        )
    yield "UPDATE aswarm_run SET owner = ?, attempt = ? WHERE id = ?", (owner, attempt, item_id)
    rows = yield from (log.last if is_finished else log.entries)(item_id)
    return attempt, bool(is_finished), rows


def _entries_since(at: int) -> Transaction[list[Entry]]:
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
