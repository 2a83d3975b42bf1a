"""`SQLiteStore`: conversations in one file, for one machine and any number of processes.

One thread has the connection. It takes all transactions that wait and commits them together, so that many runs share one
wait for the disk.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import suppress
from os import PathLike, fspath
from queue import SimpleQueue
from typing import Any, Self, TypeVar

import anyio

from aswarm._errors import ConfigurationError, RunError
from aswarm._runtime.backend import scheduler, wait_shielded

from ._base import SQLStore
from ._sqlite_driver import make_tables, step_through
from ._statements import FORMAT, Transaction

T = TypeVar("T")
_APPLICATION_ID = 0x61737763  # "aswc"; a SQLite file says in its header which application it belongs to
_BUSY_SECONDS = 10.0
_TOGETHER = 200  # transactions in one commit


class _Job:
    """A transaction on its way through the thread; without one, the store is opened or closed."""

    def __init__(self, transaction: Transaction[Any] | None, *, reads_only: bool = True) -> None:
        self.transaction = transaction
        self.reads_only = reads_only
        self.ended = anyio.Event()
        self.value: Any = None
        self.error: BaseException | None = None
        self._call_soon = scheduler()

    def end(self) -> None:
        """Wake the task that waits; to be called in the thread."""
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            self._call_soon(self.ended.set)


class SQLiteStore(SQLStore):
    """Conversations in the SQLite file `path`, which only its owner can read. `async with` opens it, or makes it.

    Several processes may have it open, on a local disk. Each write is on the disk when it returns. What is deleted is
    overwritten, once the store is closed at the latest. Opening raises ConfigurationError for a file of another kind or of a newer version; a method
    raises RunError if the file cannot be read or written.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = fspath(path)
        if self.path in ("", ":memory:"):  # SQLite accepts these names, and keeps nothing on disk
            raise ConfigurationError(f"a SQLiteStore needs the path of a file, not {self.path!r}; use a MemoryStore")
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._process = 0  # the one that has it open

    async def __aenter__(self) -> Self:
        opening = _Job(None)
        self._process = os.getpid()
        threading.Thread(target=self._work, args=(opening,), name="aswarm conversations", daemon=True).start()
        try:
            await opening.ended.wait()
        except BaseException:
            await self.aclose()
            raise
        if opening.error is not None:
            self._process = 0
            raise opening.error
        return self

    async def aclose(self) -> None:
        """Close the file, after all transactions that were begun."""
        if self._process == os.getpid():
            self._process = 0
            closing = _Job(None)
            self._jobs.put(closing)
            await wait_shielded(closing.ended)

    async def _transact(self, transaction: Transaction[T], *, reads_only: bool = False) -> T:
        if self._process != os.getpid():
            raise ConfigurationError(
                f"the store {self.path} is not open in this process; use `async with SQLiteStore(...)`, also after a fork"
            )
        job = _Job(transaction, reads_only=reads_only)
        self._jobs.put(job)
        await job.ended.wait()
        if job.error is not None:
            raise job.error
        value: T = job.value
        return value

    # --- in the thread ---

    def _work(self, opening: _Job) -> None:
        try:
            connection = _open(self.path)
        except Exception as error:  # noqa: BLE001 - raised by `__aenter__`
            opening.error = error
            opening.end()
            return
        opening.end()
        closing = None
        while closing is None:
            jobs = self._next_jobs()
            if jobs[-1].transaction is None:
                closing = jobs.pop()
            self._carry_out(connection, jobs)
        with suppress(sqlite3.Error):  # everything is committed; only the clean-up of SQLite can fail here
            connection.close()
        closing.end()

    def _next_jobs(self) -> list[_Job]:
        """Wait for a job, and take those that are there already; a closing one is the last."""
        jobs = [self._jobs.get()]
        while jobs[-1].transaction is not None and len(jobs) < _TOGETHER and not self._jobs.empty():
            jobs.append(self._jobs.get())
        return jobs

    def _carry_out(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        try:
            if jobs:
                # A transaction that begins by reading, and then writes, fails if another process has written in between.
                connection.execute("BEGIN" if all(job.reads_only for job in jobs) else "BEGIN IMMEDIATE")
                for job in jobs:
                    self._carry_out_one(connection, job)
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            for job in jobs:
                job.error = self._error(error)
        for job in jobs:
            job.end()

    def _carry_out_one(self, connection: sqlite3.Connection, job: _Job) -> None:
        connection.execute("SAVEPOINT one")
        try:
            job.value = None if job.transaction is None else step_through(connection, job.transaction)
        except Exception as error:  # noqa: BLE001 - raised to the task that waits
            job.error = self._error(error) if isinstance(error, sqlite3.Error) else error
            connection.execute("ROLLBACK TO one")
        connection.execute("RELEASE one")

    def _error(self, error: sqlite3.Error) -> RunError:
        failure = RunError(f"the store {self.path} cannot be used: {error}")
        failure.__cause__ = error
        return failure


def _open(path: str) -> sqlite3.Connection:
    """Open the file, or make it. Raises ConfigurationError for a file of another kind or of a newer version."""
    try:
        # SQLite gives the files beside it the mode of this one.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error, ValueError) as error:
        raise ConfigurationError(f"the store {path} cannot be opened: {error}") from error
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise ConfigurationError(f"the store {path} cannot be opened: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    _check_kind(connection, path)
    connection.execute("COMMIT")
    _use_write_ahead_log(connection, path)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")  # what a user has deleted is not in the file
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # on macOS a plain sync may leave data in the cache of the disk


def _check_kind(connection: sqlite3.Connection, path: str) -> None:
    """Check whose file it is, and make the tables of a new one. A file of another program is not changed."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (application or version or tables):
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        make_tables(connection)
    elif application != _APPLICATION_ID:
        raise ConfigurationError(
            f"{path} is a database of another program, not a store of aswarm; give the store another path"
        )
    elif version > FORMAT:
        raise ConfigurationError(
            f"the store {path} was written by a newer version of aswarm (its format is {version}, this version reads "
            f"{FORMAT}); use that version, or give the store another path"
        )


def _use_write_ahead_log(connection: sqlite3.Connection, path: str) -> None:
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except (
            sqlite3.OperationalError
        ) as error:  # another process is making the same change: SQLite does not wait here
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            break
    if mode != "wal":
        raise ConfigurationError(
            f"the store {path} cannot be on this file system, because SQLite has no write-ahead log there; give it a path "
            "on a local disk"
        )
