"""SQLite: opening a file, whose it is, and transactions on a connection. Every call blocks.

The modules that use it import it when a store is opened: `import aswarm.conversations` imports no database.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from aswarm._errors import ConfigurationError, RunError

from ._statements import FORMAT, TABLES, Transaction

T = TypeVar("T")
_APPLICATION_ID = 0x61737763  # "aswc"; a SQLite file says in its header which application it belongs to
BUSY_SECONDS = 10.0


# --- transactions ---


@dataclass(slots=True)
class DatabaseJob:
    """A transaction, and what became of it."""

    transaction: Transaction[Any]
    reads_only: bool
    value: Any = None
    error: Exception | None = None


def carry_out(connection: sqlite3.Connection, jobs: Sequence[DatabaseJob], place: str) -> None:
    """Run these transactions, and commit them together. One that fails has changed nothing. `place` stands in errors."""
    try:
        # A transaction that begins by reading, and then writes, fails if another process has written in between.
        connection.execute("BEGIN" if all(job.reads_only for job in jobs) else "BEGIN IMMEDIATE")
        for job in jobs:
            _carry_out_one(connection, job, place)
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        for job in jobs:
            job.error = _failure(place, error)


def _carry_out_one(connection: sqlite3.Connection, job: DatabaseJob, place: str) -> None:
    connection.execute("SAVEPOINT one")
    try:
        job.value = _step_through(connection, job.transaction)
    except Exception as error:  # noqa: BLE001 - raised to the task that waits
        job.error = _failure(place, error) if isinstance(error, sqlite3.Error) else error
        connection.execute("ROLLBACK TO one")
    connection.execute("RELEASE one")


def _step_through(connection: sqlite3.Connection, transaction: Transaction[T]) -> T:
    rows: Any = None
    try:
        while True:
            statement, parameters = transaction.send(rows)
            cursor = connection.execute(statement.replace(" FOR UPDATE", ""), parameters)
            rows = [(cursor.rowcount,)] if cursor.description is None else cursor.fetchall()
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        transaction.close()


def _failure(place: str, error: sqlite3.Error) -> RunError:
    failure = RunError(f"the store {place} cannot be used: {error}")
    failure.__cause__ = error
    return failure


# --- opening ---


def in_memory() -> sqlite3.Connection:
    """A database without a file. Any thread may use it, but only one at a time."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    _make_tables(connection)
    return connection


def close(connection: sqlite3.Connection) -> None:
    """Close it. SQLite moves the write-ahead log into the file."""
    with suppress(sqlite3.Error):  # everything is committed; only the clean-up of SQLite can fail here
        connection.close()


def open_file(path: str) -> sqlite3.Connection:
    """Open the file, or make it. Raises ConfigurationError for a file of another kind or of a newer version."""
    try:
        # SQLite gives the files beside it the mode of this one.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
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


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in TABLES.format(text="TEXT").split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _check_kind(connection: sqlite3.Connection, path: str) -> None:
    """Check whose file it is, and make the tables of a new one. A file of another program is not changed."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (application or version or tables):
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        _make_tables(connection)
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
    deadline = time.monotonic() + BUSY_SECONDS
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
