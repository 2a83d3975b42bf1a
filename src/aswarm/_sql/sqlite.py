"""SQLite: files, and a database in memory. Every call blocks.

Security: A new file of a store, a journal or a cache has mode 0600, also behind a symbolic link. The files that SQLite puts
beside it and the lock file of a journal also have this mode.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from aswarm._runtime import clocks
from aswarm._runtime.files import create_for_owner
from aswarm._values.errors import ConfigurationError, StoreError

from .transactions import Schema, in_use

_BUSY_SECONDS = 10.0
_BUSY_SECONDS_OF_EXCLUSIVE = 1.0  # short, because the other process has an exclusive lock until it closes the file
_SECONDS_BETWEEN_ATTEMPTS = 0.05
_TYPES = {"text": "TEXT", "number": "INTEGER PRIMARY KEY", "blob": "BLOB", "big": "INTEGER"}
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SQLiteConnection:
    """A connection to a SQLite database. Any thread may use it, but only one at a time. `place`: named in error messages.

    `is_durable`: whether every commit waits for the disk; otherwise only durable commits wait.
    """

    is_exclusive = True

    def __init__(self, connection: sqlite3.Connection, place: str, *, is_durable: bool = False) -> None:
        self._connection = connection
        self._place = place
        self._always_durable = is_durable
        self._is_durable: bool | None = None

    def execute(self, statement: str | Callable[[Any], object], parameters: Sequence[object] = ()) -> Any:
        """Execute a statement without the words of PostgreSQL.

        Clauses for row locks are removed, because a writer of SQLite locks the whole file. LIKE ignores the case of ASCII letters,
        as ILIKE does.
        """
        if not isinstance(statement, str):
            return statement(self._connection)
        cursor = self._connection.execute(_plain(statement), parameters)  # pyright: ignore[reportArgumentType] - SQLite raises an error for a wrong type
        return [(cursor.rowcount,)] if cursor.description is None else cursor.fetchall()

    def begin(self, *, reads_only: bool, durable: bool) -> None:
        if not reads_only:
            is_durable = durable or self._always_durable
            if is_durable is not self._is_durable:
                self._is_durable = is_durable
                # With a write-ahead log, NORMAL may lose the last commits at a power failure, but never corrupts the file:
                # https://sqlite.org/pragma.html#pragma_synchronous
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
        # Without IMMEDIATE, a transaction that first reads and then writes fails if another process writes in between, and no
        # timeout helps: https://sqlite.org/rescode.html#busy_snapshot
        self._connection.execute("BEGIN" if reads_only else "BEGIN IMMEDIATE")

    def commit(self, *, notifies: bool) -> None:  # noqa: ARG002 - other processes read `data_version`
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def is_lost(self, error: Exception) -> bool:
        # Another program has locked the file. Do not retry each single transaction, because each retry would wait for the lock.
        return is_busy(error)

    def reconnect(self) -> None:
        """Do nothing: the connection is open, and the other program may soon release its lock."""

    def failure(self, error: Exception) -> Exception:
        if not isinstance(error, sqlite3.Error | UnicodeEncodeError):
            return error
        failure = StoreError(f"{self._place} cannot be used: {error}")
        failure.__cause__ = error
        return failure

    def close(self) -> None:
        """Close the connection. SQLite moves the write-ahead log into the file."""
        with suppress(sqlite3.Error):  # everything is committed; only the clean-up can fail
            self._connection.close()


@lru_cache(256)
def _plain(statement: str) -> str:
    """Return a statement for SQLite, see `SQLiteConnection.execute`."""
    plain = statement.replace(" FOR UPDATE", "").replace(" FOR SHARE", "").replace(' COLLATE "C" ILIKE ', " LIKE ")
    # Before Python 3.13, `rowcount` of an INSERT is -1 in a Turkish locale, where the C function `tolower` has no "i" for "I".
    # So the word is in lower case.
    return plain.replace("INSERT ", "insert ", 1)


def is_busy(error: BaseException | None) -> bool:
    """Return whether another connection has locked the database, so that another attempt may succeed."""
    # The low byte is the primary code. Python reports extended codes, such as SQLITE_BUSY_SNAPSHOT.
    return isinstance(error, sqlite3.Error) and (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _BUSY


def in_memory(schema: Schema) -> SQLiteConnection:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    _make_tables(connection, schema)
    return SQLiteConnection(connection, "the database in memory", is_durable=True)


def open_file(path: str, schema: Schema, *, is_durable: bool = False, exclusive: bool = False) -> SQLiteConnection:
    """Open a file, or create one that only its owner can read.

    `exclusive`: whether to lock the file until the connection is closed. Raises ConfigurationError for a file of another kind
    or of a newer version, and if the file cannot be opened.
    """
    place = f"{schema.kind} {path}"
    try:
        # SQLite creates its log files in the same folder with the same mode.
        create_for_owner(path)
        if not exclusive:
            _migrate_alone(path, place, schema)
        seconds = _BUSY_SECONDS_OF_EXCLUSIVE if exclusive else _BUSY_SECONDS
        connection = _connected(path, place, schema, exclusive=exclusive, seconds=seconds)
    except (OSError, sqlite3.Error, ValueError) as error:
        raise ConfigurationError(f"{place} cannot be opened: {error}") from error
    return SQLiteConnection(connection, place, is_durable=is_durable)


def open_for_reads(path: str, schema: Schema) -> SQLiteConnection:
    """Open a second connection to an open file. It refuses to write. `path`: an absolute path."""
    place = f"{schema.kind} {path}"
    try:
        connection = sqlite3.connect(
            f"{Path(path).as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise StoreError(f"{place} cannot be read: {error}") from error
    return SQLiteConnection(connection, place)


def _connected(path: str, place: str, schema: Schema, *, exclusive: bool, seconds: float) -> sqlite3.Connection:
    """Connect to a file and prepare its tables. `seconds`: how long SQLite waits for the locks of other connections."""
    connection = sqlite3.connect(path, timeout=seconds, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, place, schema, exclusive=exclusive)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate_alone(path: str, place: str, schema: Schema) -> None:
    """Migrate a file of an older version with a connection of its own, which locks out all other connections.

    Raises ConfigurationError if another connection stays open.
    """
    deadline = clocks.monotonic() + _BUSY_SECONDS
    while _is_older(path, place, schema):  # another process of this version may migrate the file meanwhile
        try:
            # SQLite must not wait: two exclusive connections that wait keep their read locks, and block each other until one is closed.
            _connected(path, place, schema, exclusive=True, seconds=0).close()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if clocks.monotonic() > deadline:
                raise in_use(place, schema) from error
            clocks.sleep(random.uniform(0, _SECONDS_BETWEEN_ATTEMPTS))  # noqa: S311 - so that processes take turns


def _is_older(path: str, place: str, schema: Schema) -> bool:
    with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
        application, version = _kind_of(connection)
    return application == schema.application and schema.check(version, place)


def _kind_of(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version


def _prepare(connection: sqlite3.Connection, place: str, schema: Schema, *, exclusive: bool) -> None:
    if exclusive:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE" if exclusive else "BEGIN IMMEDIATE")
    _check_kind(connection, place, schema)
    connection.execute("COMMIT")
    _use_write_ahead_log(connection, place)
    # After its first read, a connection with a write-ahead log has a lock of the file until it is closed, so that no other process
    # can migrate the file. A process may have migrated it before this read.
    schema.check(_kind_of(connection)[1], place)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")  # deleted data is overwritten in the file
    connection.execute("PRAGMA fullfsync = ON")  # on macOS, fsync may leave data in the cache of the disk


def _make_tables(connection: sqlite3.Connection, schema: Schema) -> None:
    for statement in schema.tables:
        connection.execute(statement.format(**_TYPES))
    connection.execute(f"PRAGMA user_version = {schema.format}")


def _check_kind(connection: sqlite3.Connection, place: str, schema: Schema) -> None:
    """Check the kind of the file; create the tables of a new file, and migrate the tables of an older version.

    A file of another program, or of a newer version, is not changed.
    """
    application, version = _kind_of(connection)
    # If the program has launched DBOS itself, the file of its durable runs may already have the tables of DBOS.
    foreign = "SELECT count(*) FROM sqlite_master WHERE NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'dbos_migrations')"
    (tables,) = connection.execute(foreign).fetchone()
    if not (application or version or tables):
        connection.execute(f"PRAGMA application_id = {schema.application}")
        _make_tables(connection, schema)
    elif application != schema.application:
        raise ConfigurationError(
            f"{place} is a database of another program, not {schema.kind} of aswarm; give another path"
        )
    elif schema.check(version, place):
        schema.migrate(version, partial(_migrate, connection))
        connection.execute(f"PRAGMA user_version = {schema.format}")


def _migrate(
    connection: sqlite3.Connection, statement: str | Callable[[Any], object], parameters: Sequence[object]
) -> Any:
    assert isinstance(statement, str)  # noqa: S101 - the only kind in a migration
    return connection.execute(statement.format(**_TYPES), parameters).fetchall()  # pyright: ignore[reportArgumentType] - as above


def _use_write_ahead_log(connection: sqlite3.Connection, place: str) -> None:
    deadline = clocks.monotonic() + _BUSY_SECONDS
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            # Another process is changing the mode too, and SQLite does not wait for that process.
            if not is_busy(error) or clocks.monotonic() > deadline:
                raise
            clocks.sleep(0.02)
        else:
            break
    if mode != "wal":
        raise ConfigurationError(
            f"{place} cannot be on this file system, because SQLite has no write-ahead log there; give it a path on a "
            "local disk"
        )
