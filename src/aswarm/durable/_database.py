"""Opens what durable runs keep in the database of a URL: the log, the locks, the conversations."""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from aswarm._errors import ConfigurationError
from aswarm._text import how_to_install
from aswarm.conversations import PostgresStore, SQLiteStore

from ._leases import FileLeases, Leases
from ._log import DurableLog

_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Database:
    """A database. `url`: "sqlite:///path", or "postgresql://...". `synchronous`: of the log, in SQLite; the conversations are "full"."""

    url: str
    synchronous: Literal["normal", "full"] = "normal"

    def __post_init__(self) -> None:
        if not self.url.startswith((_SQLITE, "postgresql://", "postgres://")):
            raise ConfigurationError(
                f"store must be a URL, sqlite:///runs.db or postgresql://user@host/database, not {self.url!r}"
            )
        if self.path == "" or ":memory:" in self.url:
            raise ConfigurationError(
                "durable runs need a file: sqlite:///runs.db; LocalRuns of aswarm.serve works in memory"
            )
        if self.path is None and importlib.util.find_spec("psycopg") is None:
            raise ConfigurationError(f"PostgreSQL needs psycopg: {how_to_install('durable')}")

    @property
    def path(self) -> str | None:
        """The path of a SQLite file; None for PostgreSQL."""
        return self.url.removeprefix(_SQLITE) if self.url.startswith(_SQLITE) else None

    def conversations(self) -> SQLiteStore | PostgresStore:
        """The store of the conversations."""
        return PostgresStore(self.url) if self.path is None else SQLiteStore(self.path)

    def log(self, owner: str) -> DurableLog:
        """Open the log of the runs. Blocks."""
        if self.path is not None:
            return DurableLog(self.path, owner=owner, synchronous=self.synchronous)
        from ._postgres import PostgresLog  # noqa: PLC0415 - it imports psycopg

        return PostgresLog(self.url, owner=owner)

    def leases(self, log: DurableLog, on_regained: Callable[[], Awaitable[None]]) -> Leases:
        """The locks of the processes that share the database. `on_regained`: called when the own lock was lost, and is held again."""
        if self.path is not None:
            return FileLeases(self.path)
        from ._postgres import PostgresLeases, PostgresLog  # noqa: PLC0415 - as above

        assert isinstance(log, PostgresLog)  # noqa: S101 - it is what `log` has opened
        return PostgresLeases(log, on_regained)
