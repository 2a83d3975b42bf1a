"""`MemoryStore`: conversations that end with the process."""

from __future__ import annotations

import sqlite3
import threading
from typing import TypeVar

from ._base import SQLStore
from ._sqlite_driver import make_tables, step_through
from ._statements import Transaction

T = TypeVar("T")


class MemoryStore(SQLStore):
    """Conversations in the memory of this process, for tests and for what may be forgotten.

    It does all that a SQLiteStore does, in a database of SQLite without a file. Any number of event loops may use it.
    """

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA foreign_keys = ON")
        make_tables(self._connection)
        self._lock = threading.Lock()

    async def _transact(self, transaction: Transaction[T], **_: bool) -> T:
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                value = step_through(self._connection, transaction)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            return value
