"""The connections of DBOS, some of which it borrows from the store for one transaction; and the store of durable runs from a URL."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sqlite3
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from aswarm._log.conversations import SCHEMA
from aswarm._sql.databases import SQLiteFile
from aswarm._sql.sqlite import is_busy
from aswarm._values.errors import ConfigurationError, StoreError
from aswarm._values.text import how_to_install
from aswarm.conversations import PostgresStore, SQLiteStore

_SQLITE = "sqlite:///"
# The first version with unixepoch('subsec'), https://sqlite.org/releaselog/3_42_0.html. Before it, the function returns NULL.
_SQLITE_WITH_MILLISECONDS = (3, 42)


def _without_secret(url: object) -> str:
    """Return the value for an error text. A URL may have a password, so only its scheme is shown."""
    text = str(url)
    if "://" in text:
        return repr(text.partition("://")[0])
    is_path = isinstance(url, str | os.PathLike)
    return f"{url!r}; for this file, use {_SQLITE}{text}" if is_path else type(url).__name__


def check_sqlite(url: str, *, needed: bool) -> None:
    """Raise ConfigurationError if DBOS needs a newer SQLite for this file. `needed`: whether DBOS stores times in milliseconds.

    DBOS does so on Python 3.12 and later, and in a file that such a Python has created.
    """
    if needed and sqlite3.sqlite_version_info < _SQLITE_WITH_MILLISECONDS:
        raise ConfigurationError(
            f"durable runs in {url} need SQLite 3.42, and this Python has {sqlite3.sqlite_version}: DBOS writes times in "
            "milliseconds on Python 3.12 and later. Use PostgreSQL, a Python with a newer SQLite, or Python 3.11 with a new file"
        )


def store_of(url: str, sync: str) -> SQLiteStore | PostgresStore:
    """Return the store of a URL: "sqlite:///path", or "postgresql://...".

    `sync`: if "full", each commit of SQLite waits for the disk. Raises ConfigurationError for another URL, or if a package is
    missing.
    """
    if not (isinstance(url, str) and url.startswith((_SQLITE, "postgresql://", "postgres://"))):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"store must be a URL, sqlite:///runs.db or postgresql://user@host/database, not {_without_secret(url)}"
        )
    is_server = not url.startswith(_SQLITE)
    if not is_server:
        check_sqlite(url, needed=sys.version_info >= (3, 12))
    for package in ("dbos", "psycopg") if is_server else ("dbos",):
        if importlib.util.find_spec(package) is None:
            raise ConfigurationError(f"durable runs need the package {package}: {how_to_install('durable')}")
    if is_server:
        return PostgresStore(url)
    path = url.removeprefix(_SQLITE)
    if not path or ":memory:" in path:
        raise ConfigurationError("durable runs need a file: use sqlite:///runs.db, or LocalRuns for runs in memory")
    store = SQLiteStore(path)
    store._database = SQLiteFile(path, SCHEMA, is_durable=sync == "full")  # noqa: SLF001 - the store of a URL has settings of its own
    return store


def _sqlalchemy() -> Any:
    return importlib.import_module("sqlalchemy")  # a dependency of DBOS


class Borrower:
    """Enqueues a workflow on a connection of psycopg or sqlite3. DBOS itself accepts only connections of SQLAlchemy."""

    def __init__(self, url: str) -> None:
        alchemy = _sqlalchemy()
        self.client: Any = None
        self._local = threading.local()
        self.error = alchemy.exc.DBAPIError
        arguments: dict[str, Any] = {"creator": lambda: self._local.borrowed, "poolclass": alchemy.pool.NullPool}
        if url.startswith("sqlite"):
            self.engine: Any = alchemy.create_engine("sqlite://", **arguments)
        else:
            self.engine = alchemy.create_engine("postgresql+psycopg://", use_native_hstore=False, **arguments)

    def enqueue(self, connection: Any, options: Any, run_id: str) -> None:
        """Enqueue a workflow in the open transaction of this connection."""
        self._local.borrowed = _Borrowed(connection)
        try:
            with self.engine.connect() as borrowed:
                self.client.enqueue_in_transaction(borrowed, options, run_id)
        except self.error as error:  # the store that owns the connection handles only errors of its driver
            raise (error.orig or error) from error
        finally:
            del self._local.borrowed

    @contextmanager
    def store_errors(self) -> Generator[None]:
        """Raise a StoreError for an error of the database in the block."""
        try:
            yield
        except self.error as error:
            raise StoreError(f"DBOS cannot use its database: {error}") from error


class _Borrowed:
    """A connection that SQLAlchemy can use, but not commit, roll back or close: only its owner does that."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Do nothing."""

    rollback = close = commit

    def add_notice_handler(self, handler: object) -> None:
        """Do nothing. SQLAlchemy would add one more handler at each use."""


def connection_pool(url: str, threads: int, synchronous: str) -> Any:
    """Return a SQLAlchemy engine for DBOS and its client. `synchronous`: the pragma of SQLite."""
    alchemy = _sqlalchemy()
    size = max(4, min(threads, 20))
    if not url.startswith("sqlite"):
        psycopg_url = alchemy.make_url(url).set(drivername="postgresql+psycopg")
        engine = alchemy.create_engine(psycopg_url, pool_size=size, max_overflow=4, pool_pre_ping=True)
        alchemy.event.listen(engine, "handle_error", _note_lost_server)
        return engine
    engine = alchemy.create_engine(url, pool_size=size, max_overflow=4)

    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("busy_timeout=30000", "journal_mode=WAL", f"synchronous={synchronous}", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    alchemy.event.listen(engine, "connect", prepare)
    return engine


def close_pool(engine: Any) -> None:
    """Close all connections of an engine. A connection that a thread of DBOS still uses is closed after its use."""

    def close(_: Any, record: Any) -> None:
        record.close()

    _sqlalchemy().event.listen(engine, "checkin", close)
    engine.dispose()


def may_pass(error: Any) -> bool:
    """Return whether an error of SQLAlchemy means a lost server or a locked file, so that another attempt may succeed."""
    if isinstance(error.orig, sqlite3.Error):
        return is_busy(error.orig)
    return isinstance(error, (_sqlalchemy().exc.OperationalError, _sqlalchemy().exc.InterfaceError))


def has_millisecond_times(engine: Any) -> bool:
    """Return whether the tables of DBOS in this SQLite file call `unixepoch('subsec')`, as DBOS does on Python 3.12 and later."""
    with engine.connect() as connection:
        statement = "SELECT 1 FROM sqlite_master WHERE sql LIKE '%subsec%' LIMIT 1"
        return connection.exec_driver_sql(statement).first() is not None


def _note_lost_server(context: Any) -> None:
    """Mark an error of a lost connection, so that DBOS retries.

    DBOS recognises such errors by their text, but lacks some texts.
    """
    error = context.original_exception
    if type(error).__name__ == "OperationalError" and not getattr(error, "sqlstate", None):
        context.is_disconnect = True
