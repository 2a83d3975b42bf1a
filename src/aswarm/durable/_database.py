"""Makes the store of durable runs from a URL."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import sys

from aswarm._log.conversations import SCHEMA
from aswarm._sql.databases import SQLiteFile
from aswarm._values.errors import ConfigurationError
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
