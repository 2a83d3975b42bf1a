"""PostgreSQL: a connection for the thread of a `Database`. Only this module and `processes` import psycopg. Every call blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg

from aswarm._values.errors import ConfigurationError, StoreError

from .transactions import Schema, in_use

CHANNEL = "aswarm_runs"
_TYPES = {
    # Compare code points, as SQLite and Python do. In the sort order of a language, texts with the same prefix may not be
    # neighbours.
    "text": 'TEXT COLLATE "C"',
    "number": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "blob": "BYTEA",
    "big": "BIGINT",
}
# A machine that crashes does not close its connections. With these settings, the other side detects the crash after about 15
# seconds, instead of 2 hours by default: https://www.postgresql.org/docs/current/runtime-config-connection.html
_KEEPALIVE: Any = {
    "connect_timeout": 10, "keepalives_idle": 5, "keepalives_interval": 3, "keepalives_count": 3, "tcp_user_timeout": 15_000
}  # fmt: skip
# These settings are sent after connecting, because `options=` would replace the `options` of a connection string. While a
# transaction waits for a lock, all other transactions of the process wait too. So this time has a limit, as for SQLite, unless
# the caller has already set a `lock_timeout`.
_SETTINGS = b"""
    SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3; SET tcp_keepalives_count = 3; SET tcp_user_timeout = 15000;
    SELECT set_config('lock_timeout', '10s', false) WHERE current_setting('lock_timeout') = '0'
"""
# Each connection shares this lock until it ends. A migration needs the lock for itself alone. The key contains the number of the
# table, because a database may have several stores, each in a schema.
_OPEN = "hashtextextended('aswarm' || to_regclass(?)::oid, 0)"


def connected(conninfo: str) -> psycopg.Connection[Any]:
    """Connect to a server, with settings that detect its loss. Raises the errors of psycopg."""
    connection = psycopg.connect(conninfo, autocommit=True, **_KEEPALIVE)
    try:
        connection.execute(_SETTINGS)
    except BaseException:
        connection.close()
        raise
    return connection


class PostgresConnection:
    """A connection to PostgreSQL, with the tables of a schema. Any thread may use it, but only one at a time.

    `sender`: the text in the notifications of this process, so that this process can ignore its own notifications.

    Opening raises ConfigurationError if the server cannot be reached, or if the tables are of a newer version.
    """

    is_exclusive = False

    def __init__(self, conninfo: str, schema: Schema, sender: str = "") -> None:
        self._conninfo = conninfo
        self._schema = schema
        self._commit = f"NOTIFY {CHANNEL}, '{sender}'; COMMIT".encode()
        try:
            self._connection = connected(conninfo)
            self._prepare()
        except (psycopg.Error, OSError) as error:
            raise ConfigurationError(f"{schema.kind} cannot be opened in PostgreSQL: {str(error).strip()}") from error

    def _prepare(self) -> None:
        """Create the tables, or migrate the tables of an older version. A lock lets only one process at a time do this."""
        schema, place = self._schema, f"{self._schema.kind} in PostgreSQL"
        table = f"aswarm_format_{schema.application:x}"
        try:
            with self._connection.transaction():
                self.execute("SELECT pg_advisory_xact_lock(?)", (schema.application,))
                if self.execute("SELECT to_regclass(?)", (table,)) == [(None,)]:
                    self.execute(f"CREATE TABLE {table} (version INTEGER NOT NULL)")
                    self.execute(f"INSERT INTO {table} VALUES (?)", (schema.format,))  # noqa: S608 - of our own names
                    for statement in schema.tables:
                        self.execute(statement.format(**_TYPES))
                ((version,),) = self.execute(f"SELECT version FROM {table}")  # noqa: S608 - as above
                if schema.check(version, place):
                    self._lock_alone(table, place)
                    schema.migrate(version, self._migrate)
                    self.execute(f"UPDATE {table} SET version = ?", (schema.format,))  # noqa: S608 - as above
                self.execute(f"SELECT pg_advisory_lock_shared({_OPEN})", (table,))
        except BaseException:
            self.close()
            raise

    def _lock_alone(self, table: str, place: str) -> None:
        """Lock out all other connections until the end of the transaction. Raises ConfigurationError if the store is in use."""
        # A server notices the end of a connection a moment later, so wait for the lock.
        ((timeout,),) = self.execute("SELECT current_setting('lock_timeout')")
        self.execute("SELECT set_config('lock_timeout', '500ms', true)")
        try:
            self.execute(f"SELECT pg_advisory_xact_lock({_OPEN})", (table,))
        except psycopg.errors.LockNotAvailable as error:
            raise in_use(place, self._schema) from error
        self.execute("SELECT set_config('lock_timeout', ?, true)", (timeout,))

    def _migrate(self, statement: str | Callable[[Any], object], parameters: Sequence[object]) -> Any:
        return self.execute(statement.format(**_TYPES) if isinstance(statement, str) else statement, parameters)

    def execute(self, statement: str | Callable[[Any], object], parameters: Sequence[object] = ()) -> Any:
        """Execute a statement with `?` for its parameters."""
        if not isinstance(statement, str):
            return statement(self._connection)
        cursor = self._connection.execute(statement.replace("?", "%s").encode(), parameters)
        return [(cursor.rowcount,)] if cursor.description is None else cursor.fetchall()

    def begin(self, *, reads_only: bool, durable: bool) -> None:  # noqa: ARG002 - the server waits for its disk
        """Start a transaction. All queries of a read-only transaction read one state."""
        self._connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if reads_only else b"BEGIN")

    def commit(self, *, notifies: bool) -> None:
        self._connection.execute(self._commit if notifies else b"COMMIT")

    def rollback(self) -> None:
        with suppress(psycopg.Error):
            self._connection.execute(b"ROLLBACK")

    def is_lost(self, error: Exception) -> bool:
        return isinstance(error, OSError) or (isinstance(error, psycopg.Error) and self._connection.closed)

    def reconnect(self) -> None:
        """Connect again. Raises StoreError if a newer version has migrated the tables meanwhile."""
        self._connection.close()
        self._connection = connected(self._conninfo)
        try:
            self._prepare()
        except ConfigurationError as error:
            raise StoreError(str(error)) from error

    def failure(self, error: Exception) -> Exception:
        if not isinstance(error, psycopg.Error | OSError):
            return error
        failure = StoreError(f"PostgreSQL cannot be used: {str(error).strip()}")
        failure.__cause__ = error
        return failure

    def close(self) -> None:
        self._connection.close()
