"""`PostgresStore`: conversations in PostgreSQL, for any number of machines. The only module that imports psycopg."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
import sniffio

from aswarm._errors import ConfigurationError, RunError
from aswarm._runtime.backend import current_loop
from aswarm._text import how_to_install

from ._base import SQLStore
from ._statements import FORMAT, TABLES, Transaction

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
_LOCK = 0x61737763  # of the advisory lock under which the tables are made
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"  # all queries of a transaction see one state


class PostgresStore(SQLStore):
    """Conversations in a PostgreSQL database. `async with` connects, and makes the tables in an empty database.

    `conninfo`: a connection string such as "postgresql://user@host/database". `max_connections`: how many transactions go
    at once. `timeout`: seconds for one transaction, with connecting.

    It needs the extra `postgres`, and asyncio: psycopg does not run on trio. A store belongs to the event loop that opened
    it.

    Opening raises ConfigurationError where the server cannot be reached, and for tables of a newer version. A method raises
    RunError if the server fails.
    """

    def __init__(self, conninfo: str, *, max_connections: int = 5, timeout: float = 30.0) -> None:
        if importlib.util.find_spec("psycopg") is None:
            raise ConfigurationError(f"a PostgresStore needs psycopg: {how_to_install('postgres')}")
        if max_connections < 1:
            raise ConfigurationError(f"max_connections must be at least 1, not {max_connections}")
        self._conninfo = conninfo
        self._timeout = timeout
        self._max_connections = max_connections
        self._loop: object = None
        self._free: anyio.Semaphore
        self._idle: list[psycopg.AsyncConnection[Any]] = []

    async def __aenter__(self) -> Self:
        if sniffio.current_async_library() != "asyncio":
            raise ConfigurationError(
                "a PostgresStore runs on asyncio only, because psycopg does; on trio, use a SQLiteStore"
            )
        self._loop = current_loop()
        self._free = anyio.Semaphore(self._max_connections)
        try:
            await self._transact(_prepare())
        except RunError as error:
            await self.aclose()
            raise ConfigurationError(f"the store cannot be opened: {error}") from error.__cause__
        except BaseException:
            await self.aclose()
            raise
        return self

    async def aclose(self) -> None:
        """Close the connections."""
        self._loop = None
        while self._idle:
            await self._idle.pop().close()

    async def _transact(self, transaction: Transaction[T], *, reads_only: bool = False) -> T:
        import psycopg  # noqa: PLC0415 - of an extra

        if self._loop is None or current_loop() is not self._loop:
            raise ConfigurationError(
                "the store is not open in this event loop; use `async with PostgresStore(...)` in each event loop and process"
            )
        try:
            with anyio.fail_after(self._timeout):
                async with self._begun(_READ if reads_only else "BEGIN") as connection:
                    return await _step_through(connection, transaction)
        except (psycopg.Error, OSError) as error:
            why = f"no answer within {self._timeout:g} s" if isinstance(error, TimeoutError) else str(error).strip()
            raise RunError(f"PostgreSQL cannot be used: {why}") from error

    @asynccontextmanager
    async def _begun(self, begin: str) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
        """A connection on which a transaction has begun. It is committed, or else rolled back.

        A connection that has failed, or was cancelled, is closed.
        """
        async with self._free:
            connection = await self._connection(begin)
            is_usable = False
            try:
                try:
                    yield connection
                except (ConfigurationError, RunError):
                    await connection.execute("ROLLBACK")
                    is_usable = True
                    raise
                await connection.execute("COMMIT")
                is_usable = True
            finally:
                if is_usable and self._loop is not None:
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def _connection(self, begin: str) -> psycopg.AsyncConnection[Any]:
        import psycopg  # noqa: PLC0415 - as above

        while self._idle:
            connection = self._idle.pop()
            try:
                await connection.execute(begin.encode())
            except psycopg.Error:  # the server has closed it, and has done nothing
                await connection.close()
            except BaseException:
                await connection.close()
                raise
            else:
                return connection
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        await connection.execute(begin.encode())
        return connection


async def _step_through(connection: psycopg.AsyncConnection[Any], transaction: Transaction[T]) -> T:
    """Run the statements of a transaction that has begun."""
    rows: Any = None
    try:
        while True:
            statement, parameters = transaction.send(rows)
            cursor = await connection.execute(statement.replace("?", "%s").encode(), parameters)
            rows = [(cursor.rowcount,)] if cursor.description is None else await cursor.fetchall()
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        transaction.close()


def _prepare() -> Transaction[None]:
    """Check the version of the tables, or make them."""
    yield "SELECT pg_advisory_xact_lock(?)", (_LOCK,)
    if (yield "SELECT to_regclass('aswarm_store')", ()) == [(None,)]:
        yield "CREATE TABLE aswarm_store (version INTEGER NOT NULL)", ()
        yield "INSERT INTO aswarm_store VALUES (?)", (FORMAT,)
        # By the code points, as SQLite and Python compare: the order of a language has no range for a prefix.
        for statement in TABLES.format(text='TEXT COLLATE "C"').split(";"):
            yield statement, ()
    ((version,),) = yield "SELECT version FROM aswarm_store", ()
    if version > FORMAT:
        raise ConfigurationError(
            f"the tables were made by a newer version of aswarm (their format is {version}, this version reads {FORMAT}); use "
            "that version, or give the store another database"
        )
