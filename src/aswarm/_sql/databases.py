"""The kinds of databases: a SQLite file, a PostgreSQL server, and memory. A driver is imported when it is first used."""

from __future__ import annotations

import importlib.util
import os
from os import PathLike, fspath

from aswarm._runtime import clocks
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import how_to_install

from .database import DatabaseConnection, MemoryDatabase, ThreadedDatabase
from .transactions import Schema

_RETRY_SECONDS = 10.0  # a server restarts in this time


class SQLiteFile(ThreadedDatabase):
    """A SQLite file on a local disk, readable only by its owner. Several processes may have it open.

    `is_durable`: whether each commit waits for the disk. If not, only a commit with a durable transaction waits. `exclusive`:
    whether only one process at a time may open the file.
    """

    def __init__(
        self, path: str | PathLike[str], schema: Schema, *, is_durable: bool = False, exclusive: bool = False
    ) -> None:
        self.path = fspath(path)
        self._schema = schema
        self._options = {"is_durable": is_durable, "exclusive": exclusive}
        super().__init__(f"{schema.kind} {self.path}", self._open_file, self._open_for_reads)

    def _open_file(self) -> DatabaseConnection:
        from .sqlite import open_file  # noqa: PLC0415 - a driver is imported when it is first used

        connection = open_file(self.path, self._schema, **self._options)
        self._opened = os.path.realpath(self.path)  # a program may change its working directory
        return connection

    def _open_for_reads(self) -> DatabaseConnection:
        from .sqlite import open_for_reads  # noqa: PLC0415 - as above

        return open_for_reads(self._opened, self._schema)


class PostgresServer(ThreadedDatabase):
    """A database of a PostgreSQL server, at an address such as "postgresql://user@host/database". Needs the extra `postgres`."""

    def __init__(self, conninfo: str, schema: Schema) -> None:
        if importlib.util.find_spec("psycopg") is None:
            raise ConfigurationError(f"PostgreSQL needs psycopg: {how_to_install('postgres')}")
        self.conninfo = conninfo
        self.sender = ""  # identifies the notifications of this process
        self._schema = schema
        connect = self._connect_to_server
        super().__init__("PostgreSQL", connect, connect, retry_seconds=_RETRY_SECONDS)

    def _connect_to_server(self) -> DatabaseConnection:
        from .postgres import PostgresConnection  # noqa: PLC0415 - a driver is imported when it is first used

        self.sender = self.sender or clocks.urandom(6).hex()
        return PostgresConnection(self.conninfo, self._schema, self.sender)


def memory(schema: Schema) -> MemoryDatabase:
    from .sqlite import in_memory  # noqa: PLC0415 - a driver is imported when it is first used

    return MemoryDatabase(in_memory(schema))
