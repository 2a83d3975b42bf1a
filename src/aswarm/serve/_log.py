"""The log of runs, in a SQLite database: a file that several processes share, or memory.

Decides who may write to a run (the owner of its lease), which runs may begin, and when an owner is dead. Entries are bytes
here: a row holds those that were written together. Every method is one transaction and blocks.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import accumulate
from os import PathLike, fspath
from pathlib import Path
from secrets import token_hex
from typing import Any, ClassVar, NamedTuple

from aswarm._errors import ConfigurationError

from ._entries import now
from ._runs import KeyReused, Limits, NewRun, RunActive, RunLimit, RunNotFound, RunRecord, RunStatus

FORMAT = 1
_ROWS_AT_ONCE = 200
_BYTES_AT_ONCE = 256_000
# ruff: noqa: S608 - statements are put together from names of this module; all data is passed as parameters
TABLES = """
CREATE TABLE IF NOT EXISTS aswarm_run_format (format INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS aswarm_run (
    id TEXT PRIMARY KEY, "user" TEXT NOT NULL, conversation TEXT, agent TEXT, key TEXT, digest TEXT NOT NULL,
    status TEXT NOT NULL, reason TEXT, started INTEGER NOT NULL, ended INTEGER, on_disconnect TEXT NOT NULL,
    owner TEXT NOT NULL, leased_until INTEGER NOT NULL, cancel TEXT, last_read INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX IF NOT EXISTS aswarm_run_key ON aswarm_run ("user", key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS aswarm_run_active ON aswarm_run ("user", conversation)
    WHERE status = 'running' AND conversation IS NOT NULL;
CREATE INDEX IF NOT EXISTS aswarm_run_running ON aswarm_run (owner) WHERE status = 'running';
CREATE INDEX IF NOT EXISTS aswarm_run_of_user ON aswarm_run ("user", conversation, started);
CREATE TABLE IF NOT EXISTS aswarm_run_entries (
    run TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (run, first)
) WITHOUT ROWID;
"""
# A connection may be lost after the commit and before its answer: then the same entries are written again, with more behind them.
INSERT_ENTRIES = (
    "INSERT INTO aswarm_run_entries VALUES (?, ?, ?, ?) "
    "ON CONFLICT (run, first) DO UPDATE SET last = excluded.last, data = excluded.data"
)
RECORD = (
    'id, "user", conversation, agent, status, started, ended, reason, digest, on_disconnect, '
    "coalesce((SELECT last FROM aswarm_run_entries WHERE run = id ORDER BY first DESC LIMIT 1), -1), key"
)


class LogRow(NamedTuple):
    """Entries that are written together: their first and last number, and their bytes, a line for each."""

    first: int
    last: int
    data: bytes


class Ending(NamedTuple):
    """How a run ends."""

    status: RunStatus
    reason: str | None = None


class RunLog:
    """The log of all runs in one database. Any thread may use it, but only one at a time.

    The statements are those that SQLite and PostgreSQL have in common, apart from the class attributes.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = (sqlite3.Error,)
    _order: ClassVar[str] = "rowid"  # the column that counts runs
    _locked: ClassVar[str] = ""  # what a SELECT needs that keeps its rows for the transaction
    _busy_seconds: ClassVar[float] = 5.0  # how long a call waits for other writers
    _synchronous = "NORMAL"  # SQLite does not wait for the disk

    def __init__(self, path: str | PathLike[str] | None, *, lease: float, owner: str | None = None) -> None:
        """`path`: None for memory. `lease`: seconds after which another process may close the runs of this one.

        `owner`: the name of this process, made of its id if it is None.
        """
        self.path = None if path is None else fspath(path)
        self.owner = f"{_place()}/{os.getpid()}/{token_hex(8)}" if owner is None else owner
        self._lease = int(lease * 1000)
        self._unsettled: set[str] = set()  # runs that may be there or not: the database has not said so
        self._connect()

    def _connect(self) -> None:
        if self.path is not None:
            _make_private(self.path)
        self._connection = sqlite3.connect(
            self.path or ":memory:", timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            self._open()
        except sqlite3.Error as error:
            self._connection.close()
            raise ConfigurationError(f"the log of runs cannot be in {self.path}: {error}") from error

    def _open(self) -> None:
        if self.path is not None:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            self._connection.execute("PRAGMA secure_delete = ON")  # what a user has deleted is not in the file
        with self._writing() as execute:
            for statement in TABLES.split(";\n"):
                execute(statement)
            execute("INSERT OR IGNORE INTO aswarm_run_format SELECT ? WHERE NOT EXISTS (SELECT 1 FROM aswarm_run_format)", FORMAT)  # fmt: skip
            ((found,),) = execute("SELECT format FROM aswarm_run_format")
        if found != FORMAT:
            self._connection.close()
            raise ConfigurationError(
                f"the log of runs in {self.path} was written by another version of aswarm (its format is {found}, this "
                f"version reads {FORMAT}); use that version, or another file"
            )

    def close(self) -> None:
        """Close the database. What is in memory is gone."""
        self._connection.close()

    @contextmanager
    def _writing(self) -> Generator[Any]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._rows
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        return self._connection.execute(statement, values).fetchall()

    def _stream(self, statement: str, *values: Any) -> Any:
        return self._connection.execute(statement, values)

    # --- beginning and ending ---

    def begin(self, new: NewRun, run_id: str, limits: Limits) -> RunRecord:
        """Add a run, or return the one that has its id or its key. Raises KeyReused, RunActive, RunLimit."""
        for unsettled in list(self._unsettled):
            self.withdraw(unsettled)
        record = self._begin(new, run_id, limits)
        self._unsettled.discard(run_id)
        return record

    def _begin(self, new: NewRun, run_id: str, limits: Limits) -> RunRecord:
        with self._writing() as execute:
            self._lock_starts(new.user)
            if known := self._known(new, run_id):
                return known
            self._check_free(new, limits)
            started = now()
            record = RunRecord(
                run_id, new.user, new.conversation, new.agent, "running", started,
                digest=new.digest, on_disconnect=new.on_disconnect, key=new.key, is_new=True,
            )  # fmt: skip
            values = (
                run_id, new.user, new.conversation, new.agent, new.key, new.digest, "running", started,
                str(new.on_disconnect), self.owner, started + self._lease,
            )  # fmt: skip
            self._unsettled.add(run_id)
            execute(
                'INSERT INTO aswarm_run (id, "user", conversation, agent, key, digest, status, started, on_disconnect, owner,'
                f" leased_until) VALUES ({', '.join('?' * len(values))})",
                *values,
            )
            return record

    def _lock_starts(self, user: str) -> None:
        """Let the runs of a user begin one after another, until the transaction ends. In SQLite, all writers do."""

    def withdraw(self, run_id: str) -> None:
        """Delete a run of this process that could not begin. If this fails, the next `begin` repeats it."""
        self._unsettled.add(run_id)
        with self._writing() as execute:
            if execute(f"SELECT 1 FROM aswarm_run WHERE id = ? AND owner = ?{self._locked}", run_id, self.owner):
                self._delete_rows(run_id)
        self._unsettled.discard(run_id)

    def _known(self, new: NewRun, run_id: str) -> RunRecord | None:
        rows = self._rows(f"SELECT {RECORD} FROM aswarm_run WHERE id = ?", run_id)
        if not rows and new.key is not None:
            rows = self._rows(f'SELECT {RECORD} FROM aswarm_run WHERE "user" = ? AND key = ?', new.user, new.key)
        if not rows and new.answers:  # a second click, while the run of the first one goes on
            same = """"user" = ? AND conversation = ? AND digest = ? AND status = 'running'"""
            rows = self._rows(f"SELECT {RECORD} FROM aswarm_run WHERE {same}", new.user, new.conversation, new.digest)
        for known in map(record_of, rows):
            if known.user != new.user or known.digest != new.digest:
                raise KeyReused(run_id if known.user != new.user else known.id)
            return known
        return None

    def _check_free(self, new: NewRun, limits: Limits) -> None:
        running = """FROM aswarm_run WHERE status = 'running' AND "user" = ?"""
        if new.conversation is not None:
            for (active,) in self._rows(f"SELECT id {running} AND conversation = ?", new.user, new.conversation):
                raise RunActive(active)
        ((count,),) = self._rows(f"SELECT count(*) {running}", new.user)
        if count >= limits.runs_per_user:
            raise RunLimit("user")
        ((count,),) = self._rows("SELECT count(*) FROM aswarm_run WHERE status = 'running'")
        if count >= limits.runs:
            raise RunLimit("service")

    def append(self, rows: Mapping[str, LogRow], endings: Mapping[str, Ending]) -> set[str]:
        """Write entries of several runs, and end some. Returns the runs that this process does not own any more."""
        with self._writing() as execute:
            owned = self._owned(rows)
            lost = {run_id for run_id in rows.keys() - owned if not self._has_row(run_id, rows[run_id])}
            for run_id in owned:
                execute(INSERT_ENTRIES, run_id, *rows[run_id])
            for run_id in owned & endings.keys():
                self._end(run_id, endings[run_id])
        return lost

    def _has_row(self, run_id: str, row: LogRow) -> bool:
        """Whether this process has written the row, and ended the run by that."""
        mine = (
            "SELECT data FROM aswarm_run_entries JOIN aswarm_run ON run = id WHERE run = ? AND first = ? AND owner = ?"
        )
        return [bytes(data) for (data,) in self._rows(mine, run_id, row.first, self.owner)] == [row.data]

    def _owned(self, rows: Mapping[str, LogRow]) -> set[str]:
        mine = f"SELECT id FROM aswarm_run WHERE id = ? AND owner = ? AND status = 'running'{self._locked}"
        return {run_id for run_id in rows if self._rows(mine, run_id, self.owner)}

    def _end(self, run_id: str, ending: Ending) -> None:
        self._rows(
            "UPDATE aswarm_run SET status = ?, reason = ?, ended = ? WHERE id = ?",
            ending.status, ending.reason, now(), run_id,
        )  # fmt: skip

    # --- reading ---

    def find(self, run_id: str, user: str) -> RunRecord:
        """The record of a run. Raises RunNotFound where it is of another user."""
        for row in self._rows(f'SELECT {RECORD} FROM aswarm_run WHERE id = ? AND "user" = ?', run_id, user):
            return record_of(row)
        raise RunNotFound(run_id)

    def records(self, user: str, conversation: str | None, limit: int) -> list[RunRecord]:
        """The newest runs of a user, or of one conversation."""
        if conversation is None:
            where, order, values = "", f"started DESC, {self._order} DESC", []
        else:  # of which the last run decides on more than a list; clocks differ
            where, order, values = "AND conversation = ?", f"{self._order} DESC", [conversation]
        statement = f'SELECT {RECORD} FROM aswarm_run WHERE "user" = ? {where} ORDER BY {order} LIMIT ?'
        rows = self._rows(statement, user, *values, limit)
        return [record_of(row) for row in rows]

    def entry_rows(self, run_id: str, after: int) -> tuple[list[LogRow], bool]:
        """The next rows with entries above `after`, and whether the run is still running; read in one transaction."""
        found: list[LogRow] = []
        with self._reading() as execute:
            rows = self._stream(
                "SELECT first, last, data FROM aswarm_run_entries WHERE run = ? AND first >= coalesce((SELECT max(first) "
                "FROM aswarm_run_entries WHERE run = ? AND first <= ?), 0) ORDER BY first LIMIT ?",
                run_id, run_id, after + 1, _ROWS_AT_ONCE,
            )  # fmt: skip
            with closing(rows):
                found.extend(_first_rows((LogRow(*row) for row in rows if row[1] > after), _BYTES_AT_ONCE))
            status = execute("SELECT status FROM aswarm_run WHERE id = ?", run_id)
        return found, status == [("running",)]

    @contextmanager
    def _reading(self) -> Generator[Any]:
        self._connection.execute("BEGIN")
        try:
            yield self._rows
        finally:
            self._connection.execute("COMMIT")

    def data_version(self) -> int:
        """A number that changes when another connection has written to the file."""
        ((version,),) = self._rows("PRAGMA data_version")
        return int(version)

    # --- leases ---

    def renew(self, run_ids: Sequence[str]) -> None:
        """Renew the leases of these runs. A run that this process has begun and does not run is left to expire."""
        until = now() + self._lease
        with self._writing() as execute:
            for run_id in run_ids:
                execute("UPDATE aswarm_run SET leased_until = ? WHERE id = ? AND owner = ?", until, run_id, self.owner)

    def ask_cancel(self, run_id: str, reason: str) -> None:
        """Ask the owner of a run to stop it."""
        with self._writing() as execute:
            execute(
                "UPDATE aswarm_run SET cancel = ? WHERE id = ? AND status = 'running' AND cancel IS NULL",
                reason,
                run_id,
            )

    def asked_to_cancel(self) -> dict[str, str]:
        """The running runs of this process that another process asks to stop, with the reasons."""
        return dict(
            self._rows(
                "SELECT id, cancel FROM aswarm_run WHERE owner = ? AND status = 'running' AND cancel IS NOT NULL",
                self.owner,
            )
        )

    def touch(self, run_ids: Sequence[str]) -> None:
        """Record that these runs have readers in this process."""
        with self._writing() as execute:
            for run_id in run_ids:
                execute("UPDATE aswarm_run SET last_read = ? WHERE id = ?", now(), run_id)

    def last_read(self, run_id: str) -> int:
        """When a reader of another process was last there, in milliseconds since the epoch."""
        return int(next(iter(self._rows("SELECT last_read FROM aswarm_run WHERE id = ?", run_id)), (0,))[0])

    def take_expired(self) -> list[RunRecord]:
        """Take over the runs whose owner is dead or has let the lease run out. The caller closes them with `append`."""
        running = "SELECT id, owner, leased_until FROM aswarm_run WHERE status = 'running'"
        if not any(_is_dead(owner, until) for _, owner, until in self._rows(running)):
            return []
        with self._writing() as execute:
            dead = [run_id for run_id, owner, until in execute(running) if _is_dead(owner, until)]
            for run_id in dead:
                execute(
                    "UPDATE aswarm_run SET owner = ?, leased_until = ? WHERE id = ?",
                    self.owner, now() + self._lease, run_id,
                )  # fmt: skip
            rows = [execute(f"SELECT {RECORD} FROM aswarm_run WHERE id = ?", run_id) for run_id in dead]
        return [record_of(row) for (row,) in rows]

    # --- deleting ---

    def old(self, before: int, keep: int, size: int) -> list[str]:
        """The ended runs but the newest ones: those that ended before this time, and those above a number or a size.

        `keep`: how many runs may stay. `size`: how many bytes their entries may have together.
        """
        ended = self._rows(
            "SELECT id, ended, (SELECT coalesce(sum(length(data)), 0) FROM aswarm_run_entries WHERE run = id) "
            f"FROM aswarm_run WHERE {self._forgettable} ORDER BY ended DESC, {self._order} DESC"
        )
        totals = accumulate(row[2] for row in ended)
        return [
            run_id
            for at, ((run_id, time_of_end, _), total) in enumerate(zip(ended, totals, strict=True))
            if time_of_end < before or at >= keep or total > size
        ]

    @property
    def _forgettable(self) -> str:
        """Runs that limits may delete."""
        return "status <> 'running'"

    def of_conversation(self, user: str, conversation: str) -> list[str]:
        """The runs of a conversation, which may be deleted. Raises RunActive if one has not ended."""
        rows = self._rows('SELECT id, status FROM aswarm_run WHERE "user" = ? AND conversation = ?', user, conversation)
        for run_id, status in rows:
            if status == "running":
                raise RunActive(run_id)
        return [run_id for run_id, _ in rows]

    def delete(self, run_ids: Sequence[str]) -> None:
        """Delete runs."""
        if run_ids:
            with self._writing():
                for run_id in run_ids:
                    self._delete_rows(run_id)

    def _delete_rows(self, run_id: str) -> None:
        self._rows("DELETE FROM aswarm_run_entries WHERE run = ?", run_id)
        self._rows("DELETE FROM aswarm_run WHERE id = ?", run_id)


def _first_rows(rows: Iterable[LogRow], size: int) -> Generator[LogRow]:
    """The first rows, until they have so many bytes together."""
    for row in rows:
        yield row
        size -= len(row.data)
        if size <= 0:
            return


def record_of(row: Sequence[Any]) -> RunRecord:
    """The record that the columns of `RECORD` say."""
    record = RunRecord(*row)
    policy = str(record.on_disconnect)
    return record if policy in ("finish", "cancel") else replace(record, on_disconnect=float(policy))


def _make_private(path: str) -> None:
    """Make the file with a mode that only its owner can read. SQLite gives its side files the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _is_dead(owner: str, until: int) -> bool:
    return until < now() or not _is_alive(owner)


def _place() -> str:
    """Where process ids mean something: the host, and on Linux the namespace of the ids."""
    space = Path("/proc/self/ns/pid")
    number = space.stat().st_ino if space.exists() else 0
    return f"{socket.gethostname()}:{number}"


def _is_alive(owner: str) -> bool:
    """Whether the process of an owner may be alive. Only False is certain."""
    place, pid, _ = owner.rsplit("/", 2)
    if place != _place() or os.name != "posix":  # on Windows, os.kill(pid, 0) would end the process
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
