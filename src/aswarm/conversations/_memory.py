"""`MemoryStore`: conversations that end with the process."""

from __future__ import annotations

import threading
from typing import TypeVar

from ._base import SQLStore
from ._statements import Transaction

T = TypeVar("T")


class MemoryStore(SQLStore):
    """Conversations in the memory of this process, for tests and for what may be forgotten.

    It does all that a SQLiteStore does, in a database of SQLite without a file. Any number of event loops may use it.
    """

    def __init__(self) -> None:
        from ._sqlite_driver import in_memory  # noqa: PLC0415 - a database is imported once it is used

        self._connection = in_memory()
        self._lock = threading.Lock()

    async def _transact(self, transaction: Transaction[T], *, reads_only: bool = False) -> T:
        from ._sqlite_driver import DatabaseJob, carry_out  # noqa: PLC0415 - as above

        job = DatabaseJob(transaction, reads_only)
        with self._lock:
            carry_out(self._connection, [job], "in memory")
        if job.error is not None:
            raise job.error
        value: T = job.value
        return value
