"""The log of durable runs in PostgreSQL, and the lock by which a process there shows that it lives.

Decides how the statements of the log become those of PostgreSQL, and that a connection that was lost is made again.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, ClassVar

import anyio
import psycopg

from aswarm._errors import ConfigurationError
from aswarm._run.handlers import NO_RUN
from aswarm.serve._log import FORMAT, LogRow
from aswarm.serve._runs import Limits, NewRun, RunRecord

from ._leases import SAME_ID, left_to_parent
from ._log import DurableLog, QueuedWork

logger = logging.getLogger("aswarm")

_CHANNEL = "aswarm_runs"
_TABLES_LOCK = 0x61737764  # under which the tables are made
_STARTS_LOCK = 0x61737761  # with a number for the user
_SECONDS_AFTER_FAILURE = 1.0
# A machine that is gone closes no connection. With these, each side notices it after about 15 seconds; by default after 2 hours.
_NOTICES_LOSS: Any = {
    "connect_timeout": 10, "keepalives_idle": 5, "keepalives_interval": 3, "keepalives_count": 3, "tcp_user_timeout": 15_000
}  # fmt: skip
_SERVER_NOTICES_LOSS = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3; SET tcp_keepalives_count = 3; SET tcp_user_timeout = 15000"


class PostgresLog(DurableLog):
    """The log in a PostgreSQL database, for any number of machines."""

    errors: ClassVar[tuple[type[Exception], ...]] = (psycopg.Error, OSError)
    _order: ClassVar[str] = "number"
    _locked: ClassVar[str] = " FOR UPDATE"
    _skip_locked: ClassVar[str] = " FOR UPDATE SKIP LOCKED"  # of both tables: others lock a run before its work
    _connection: Any

    def _connect(self) -> None:
        self.changes = 0  # what the other processes have written, see `PostgresLeases`
        self._is_in_transaction = False
        try:
            self._connection = connected(str(self.path))
            with closed_on_error(self._connection):
                self._open()
        except self.errors as error:
            raise ConfigurationError(f"the log of runs cannot be in PostgreSQL: {str(error).strip()}") from error

    def _open(self) -> None:
        self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_TABLES_LOCK,))
        for statement in self.tables():
            if statement.strip():
                self._rows(_of_postgres(statement))
        if not self._rows("SELECT format FROM aswarm_run_format"):
            self._rows("INSERT INTO aswarm_run_format VALUES (?)", FORMAT)
        ((found,),) = self._rows("SELECT format FROM aswarm_run_format")
        self._connection.execute("COMMIT")
        if found != FORMAT:
            raise ConfigurationError(
                f"the log of runs in this database was written by another version of aswarm (its format is {found}, this "
                f"version reads {FORMAT}); use that version, or another database"
            )

    def _rows(self, statement: str, *values: Any) -> list[Any]:
        cursor = self._stream(statement, *values)
        return [] if cursor.description is None else cursor.fetchall()

    def _stream(self, statement: str, *values: Any) -> Any:
        return self._connected_execute(statement.replace("?", "%s"), values)

    def _connected_execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Execute a statement; once more on a new connection if the server has closed this one before a transaction."""
        try:
            return self._connection.execute(statement, values)
        except psycopg.OperationalError:
            if self._is_in_transaction:
                raise
        self._connection.close()
        self._connection = connected(str(self.path))
        return self._connection.execute(statement, values)

    @contextmanager
    def _transaction(self, begin: str, *last: str) -> Generator[Any]:
        self._connected_execute(begin)
        self._is_in_transaction = True
        try:
            yield self._rows
            for statement in (*last, "COMMIT"):
                self._connection.execute(statement)
        except BaseException:
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")
            raise
        finally:
            self._is_in_transaction = False

    @contextmanager
    def _writing(self) -> Generator[Any]:
        with self._transaction("BEGIN ISOLATION LEVEL READ COMMITTED", f"NOTIFY {_CHANNEL}") as execute:
            yield execute

    def _claiming(self) -> AbstractContextManager[Any]:
        return self._transaction(
            "BEGIN ISOLATION LEVEL READ COMMITTED"
        )  # without a notification, which would cause the next attempt

    @contextmanager
    def _reading(self) -> Generator[Any]:
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as execute:
            yield execute

    def begin(self, new: NewRun, run_id: str, limits: Limits) -> RunRecord:
        """As of `DurableLog`. It looks again after another user has begun a run with this id, or the connection was lost."""
        with suppress(psycopg.errors.UniqueViolation, psycopg.OperationalError):
            return super().begin(new, run_id, limits)
        return super().begin(new, run_id, limits)

    def begun(self, run_id: str, row: LogRow, work: QueuedWork, *, claims: bool) -> bool:
        """As of `DurableLog`; once more if the connection was lost."""
        with suppress(psycopg.OperationalError):
            return super().begun(run_id, row, work, claims=claims)
        return super().begun(run_id, row, work, claims=claims)

    def _lock_starts(self, user: str) -> None:
        key = int.from_bytes(hashlib.blake2b(user.encode(), digest_size=4).digest(), signed=True)
        self._rows("SELECT pg_advisory_xact_lock(?, ?)", _STARTS_LOCK, key)

    def data_version(self) -> int:
        """A number that changes when a process has written."""
        return self.changes

    def lock(self, key: int) -> bool:
        """Take a lock that ends with the connection. False if another session has it."""
        ((is_taken,),) = self._rows("SELECT pg_try_advisory_lock(?)", key)
        return bool(is_taken)

    def unlock(self, key: int) -> None:
        """Give it up."""
        self._rows("SELECT pg_advisory_unlock(?)", key)


@contextmanager
def closed_on_error(connection: Any) -> Generator[None]:
    """Close the connection if the block raises."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


def connected(conninfo: str) -> Any:
    """A connection without transactions of its own."""
    connection = psycopg.connect(conninfo, autocommit=True, **_NOTICES_LOSS)
    connection.execute(_SERVER_NOTICES_LOSS)
    return connection


def _of_postgres(statement: str) -> str:
    statement = statement.replace("INTEGER", "BIGINT").replace("BLOB", "BYTEA").replace(" WITHOUT ROWID", "")
    return statement.replace(
        "(\n    id TEXT PRIMARY KEY", "(\n    number BIGINT GENERATED ALWAYS AS IDENTITY, id TEXT PRIMARY KEY"
    )


class PostgresLeases:
    """Locks of sessions. The connection that holds the own lock also hears what other processes write.

    If it is lost, this process takes no work until it has its lock again.
    """

    def __init__(self, log: PostgresLog, on_regained: Callable[[], Awaitable[None]]) -> None:
        self._log = log
        self._on_regained = on_regained
        self._own = 0
        self._connection: Any

    async def hold(self, executor: str) -> None:
        """See `Leases`."""
        left_to_parent(self)
        self._own = _key(executor)
        try:
            await self._regain()
        except psycopg.Error as error:
            raise ConfigurationError(f"{SAME_ID.format(executor)} ({error})") from error

    async def _regain(self) -> None:
        self._connection = connection = await psycopg.AsyncConnection.connect(
            str(self._log.path), autocommit=True, **_NOTICES_LOSS
        )
        await connection.execute(_SERVER_NOTICES_LOSS)
        row = await (await connection.execute("SELECT pg_try_advisory_lock(%s)", (self._own,))).fetchone()
        if row != (True,):  # another process is about to adopt the runs of this one; it has finished soon
            await connection.close()
            raise psycopg.OperationalError("the lock of this process is taken")
        await connection.execute(f"LISTEN {_CHANNEL}".encode())

    @property
    def is_held(self) -> bool:
        """See `Leases`."""
        return not self._connection.closed

    async def watch(self) -> None:
        """Listen, without end; and get the lock again when it is lost."""
        while True:
            try:
                if not self.is_held:
                    await self._regain()
                    await self._on_regained()
                    logger.warning("the connection to PostgreSQL is there again", extra=NO_RUN)
                self._log.changes += 1
                news = self._connection.notifies()
                while True:
                    await anext(news)
                    self._log.changes += 1
            except self._log.errors:
                with suppress(Exception):
                    await self._connection.close()
                logger.warning(
                    "the connection to PostgreSQL is lost; no run begins here until it is back", extra=NO_RUN
                )
            await anyio.sleep(_SECONDS_AFTER_FAILURE)

    def take(self, executor: str) -> bool:
        """See `Leases`."""
        return self._log.lock(_key(executor))

    def drop(self, executor: str) -> None:
        """See `Leases`."""
        self._log.unlock(_key(executor))

    async def aclose(self) -> None:
        """See `Leases`."""
        await self._connection.close()

    def leave_to_parent(self) -> None:
        """See `Leases`. The session ends when no process has its socket; closing the connection would end it at once."""
        nothing = os.open(os.devnull, os.O_RDWR)
        for connection in (self._connection, self._log._connection):  # noqa: SLF001 - of this module
            with suppress(psycopg.Error):  # it is closed
                os.dup2(nothing, connection.fileno(), inheritable=False)
        os.close(nothing)


def _key(executor: str) -> int:
    return int.from_bytes(hashlib.blake2b(executor.encode(), digest_size=8).digest(), signed=True)
