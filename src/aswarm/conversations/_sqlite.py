"""`SQLiteStore`: conversations in one file, for one machine and any number of processes.

One thread has the connection. It takes all transactions that wait and commits them together, so that many runs share one
wait for the disk.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike, fspath
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self, TypeAlias, TypeVar

import anyio

from aswarm._errors import ConfigurationError
from aswarm._runtime.backend import scheduler, wait_shielded

from ._base import SQLStore
from ._statements import Transaction

if TYPE_CHECKING:
    from ._sqlite_driver import DatabaseJob

T = TypeVar("T")
_TOGETHER = 200  # transactions in one commit


class _EndOfJob:
    """Happens once, in the thread; a task of the running event loop waits for it."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._call_soon = scheduler()

    def set(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            self._call_soon(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()

    async def wait_shielded(self) -> None:
        await wait_shielded(self._event)


@dataclass(slots=True)
class _Opening:
    """The thread has opened the file, or met this error."""

    ended: _EndOfJob = field(default_factory=_EndOfJob)
    error: Exception | None = None


# A transaction, and who waits for it; or the end of the thread.
_Entry: TypeAlias = "tuple[DatabaseJob | None, _EndOfJob]"


class SQLiteStore(SQLStore):
    """Conversations in the SQLite file `path`, which only its owner can read. `async with` opens it, or makes it.

    Several processes may have it open, on a local disk. Each write is on the disk when it returns. What is deleted is
    overwritten, once the store is closed at the latest. Opening raises ConfigurationError for a file of another kind or of a
    newer version; a method raises RunError if the file cannot be read or written.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = fspath(path)
        if self.path in ("", ":memory:"):  # SQLite accepts these names, and keeps nothing on disk
            raise ConfigurationError(f"a SQLiteStore needs the path of a file, not {self.path!r}; use a MemoryStore")
        self._entries: SimpleQueue[_Entry] = SimpleQueue()
        self._process = 0  # the one that has it open

    async def __aenter__(self) -> Self:
        if self._process == os.getpid():
            raise RuntimeError(f"the store {self.path} is open already; share it, or make another SQLiteStore")
        opening = _Opening()
        self._process = os.getpid()
        threading.Thread(target=self._work, args=(opening,), name="aswarm conversations", daemon=True).start()
        try:
            await opening.ended.wait()
        except BaseException:
            await opening.ended.wait_shielded()
            if opening.error is None:
                await self.aclose()
            self._process = 0
            raise
        if opening.error is not None:
            self._process = 0
            raise opening.error
        return self

    async def aclose(self) -> None:
        """Close the file, after all transactions that were begun."""
        if self._process == os.getpid():
            self._process = 0
            closed = _EndOfJob()
            self._entries.put((None, closed))
            await closed.wait_shielded()

    async def _transact(self, transaction: Transaction[T], *, reads_only: bool = False) -> T:
        from ._sqlite_driver import DatabaseJob  # noqa: PLC0415 - a database is imported once it is used

        if self._process != os.getpid():
            raise ConfigurationError(
                f"the store {self.path} is not open in this process; use `async with SQLiteStore(...)`, also after a fork"
            )
        job, ended = DatabaseJob(transaction, reads_only), _EndOfJob()
        self._entries.put((job, ended))
        await ended.wait()
        if job.error is not None:
            raise job.error
        value: T = job.value
        return value

    # --- in the thread ---

    def _work(self, opening: _Opening) -> None:
        from ._sqlite_driver import carry_out, close, open_file  # noqa: PLC0415 - as above

        try:
            connection = open_file(self.path)
        except Exception as error:  # noqa: BLE001 - raised by `__aenter__`
            opening.error = error
            opening.ended.set()
            return
        opening.ended.set()
        is_closing = False
        while not is_closing:
            entries = self._next_entries()
            if jobs := [job for job, _ in entries if job is not None]:
                carry_out(connection, jobs, self.path)
            if is_closing := len(jobs) < len(entries):
                close(connection)
            for _, ended in entries:
                ended.set()

    def _next_entries(self) -> list[_Entry]:
        """Wait for an entry, and take those that are there already; the one that ends the thread is the last."""
        entries = [self._entries.get()]
        while entries[-1][0] is not None and len(entries) < _TOGETHER and not self._entries.empty():
            entries.append(self._entries.get())
        return entries
