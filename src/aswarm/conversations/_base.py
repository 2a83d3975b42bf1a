"""The included stores: in memory, in a SQLite file, and in PostgreSQL. Each method is a transaction of a `Database`.

Security: A deleted conversation is overwritten in the file, at the latest when the store is closed, and so are its long results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from os import PathLike, fspath
from typing import Self, get_args

from aswarm._log import conversations as _statements
from aswarm._log.results import SQLResults
from aswarm._log.stored import Change, ConversationSummary, Stored, checked_id, database_text
from aswarm._run.options import ResultStore
from aswarm._runtime import clocks
from aswarm._sql.database import Database
from aswarm._sql.databases import PostgresServer, SQLiteFile, memory
from aswarm._sql.transactions import single
from aswarm._values.agent import StopReason
from aswarm._values.errors import ConfigurationError

from ._store import Store


class SQLStore(Store):
    """Base class of the included stores, which are databases. The same database also keeps the runs of `aswarm.runs`."""

    _database: Database

    @property
    def results(self) -> ResultStore:
        """The place for long results of this store's conversations and runs, in the same database.

        A fork copies them, and deleting the owner deletes them. It is no place for the results of another store.
        """
        return SQLResults(self._database)

    async def load(self, conversation_id: str, /, *, until: int | None = None) -> Stored | None:
        """See `Store`."""
        key = checked_id(conversation_id)
        return await self._database.submit(partial(_statements.load, key, until), reads_only=True, snapshot=True)

    async def write(self, conversation_id: str, change: Change, /) -> None:
        """See `Store`."""
        key, now = checked_id(conversation_id), clocks.time()
        await self._database.submit(partial(_statements.write, key, change, now), durable=True)

    async def fork(self, conversation_id: str, new_id: str, /, *, until: int | None = None) -> None:
        """See `Store`."""
        source, copy, revision = checked_id(conversation_id), checked_id(new_id), clocks.urandom(8).hex()
        now = clocks.time()
        await self._database.submit(partial(_statements.fork, source, copy, until, revision, now), durable=True)

    async def list(
        self,
        *,
        prefix: str = "",
        limit: int = 100,
        before: float | None = None,
        stop: StopReason | None = None,
        search: str = "",
    ) -> Sequence[ConversationSummary]:
        """See `Store`. `search`: return only conversations with this text in the title, or in a message of the user or an agent.

        The search ignores case, and the kind and number of spaces. It does not include results of tools. It runs beside the
        writes of the store, and reads all messages if few conversations have the text.
        """
        if stop is not None and stop not in get_args(StopReason):
            raise ConfigurationError(f"stop must be one of {', '.join(get_args(StopReason))}, not {stop!r}")
        if limit < 1:
            return []
        words, wanted = database_text(search), _statements.Wanted(database_text(prefix), limit, before, stop)
        if words.strip():
            return await self._database.read(partial(_statements.search, wanted, words))
        return await self._database.read(partial(_statements.summaries, wanted))

    async def rename(self, conversation_id: str, title: str, /) -> bool:
        """Set the title of the conversation; an empty text removes it. Returns False for an unknown conversation.

        The revision does not change, so a running run gets no `Conflict`.
        """
        statement, key = "UPDATE aswarm_conversation SET title = ? WHERE id = ?", checked_id(conversation_id)
        rename = partial(single, statement, database_text(title), key)
        return bool((await self._database.submit(rename, durable=True))[0][0])

    async def delete(self, conversation_id: str, /) -> bool:
        """See `Store`."""
        delete = partial(single, "DELETE FROM aswarm_conversation WHERE id = ?", checked_id(conversation_id))
        return bool((await self._database.submit(delete, durable=True))[0][0])

    async def purge(self, *, older_than_seconds: float) -> int:
        """See `Store`."""
        if not older_than_seconds >= 0:
            raise ConfigurationError(f"older_than_seconds must be a number, at least 0, not {older_than_seconds!r}")
        purge = partial(single, "DELETE FROM aswarm_conversation WHERE updated < ?", clocks.time() - older_than_seconds)
        return int((await self._database.submit(purge, durable=True))[0][0])

    async def aclose(self) -> None:
        """Run the pending transactions, and close the file or the connection; see `Store`."""
        await self._database.aclose()

    async def __aenter__(self) -> Self:
        await self._database.open()
        return self


class MemoryStore(SQLStore):
    """Conversations in the memory of this process, for tests and for data that may be lost.

    The store is a SQLite database without a file. Any number of event loops may use it.
    """

    def __init__(self) -> None:
        self._database = memory(_statements.SCHEMA)


class SQLiteStore(SQLStore):
    """Conversations in the SQLite file `path`, which only the owner of the file can read.

    `async with` opens or creates the file. Several processes may open the file at the same time if it is on a local disk. Each
    write is on disk when its method returns. Deleted data is overwritten, at the latest when the store is closed. Opening
    raises ConfigurationError if the file is not a store, or has another version. A method raises StoreError if the file cannot
    be read or written.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        if path in ("", ":memory:"):  # with these names, SQLite would keep nothing on disk
            raise ConfigurationError(f"a SQLiteStore needs the path of a file, not {path!r}; use a MemoryStore")
        self.path: str = fspath(path)
        self._database = SQLiteFile(path, _statements.SCHEMA)


class PostgresStore(SQLStore):
    """Conversations in a PostgreSQL database. `async with` connects, and creates the tables in an empty database.

    `conninfo`: a connection string such as "postgresql://user@host/database". Needs the extra `postgres`.

    Opening raises ConfigurationError if the server cannot be reached, or if its tables have a newer version. A method raises
    StoreError if the server cannot be reached for ten seconds.
    """

    def __init__(self, conninfo: str) -> None:
        self._database = PostgresServer(conninfo, _statements.SCHEMA)
