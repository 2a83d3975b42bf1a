"""`Processes`: the processes that share a database. It detects that a process has died, or that another process has written."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio

from aswarm._runtime import clocks, seams

from .database import Database
from .databases import PostgresServer, SQLiteFile
from .liveness import FileLocks, Liveness, PostgresLocks
from .transactions import single

_RECONNECT_AFTER = 0.5  # seconds


class Processes:
    """The processes that share a database. `name`: the name of this process.

    `is_shared`: whether other processes may use the database; False for a database in memory.
    """

    def __init__(self, database: Database, name: str | None = None) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{clocks.urandom(6).hex()}"
        self.is_shared = isinstance(database, SQLiteFile | PostgresServer)
        self._database = database
        self._locks: Liveness | None = None
        self._listener: _Listener | None = None
        self._holds = False
        self._limiter: anyio.CapacityLimiter  # a connection serves one call at a time

    @property
    def is_held(self) -> bool:
        """Whether this process has its lock, which shows that it is alive. Without the lock, it must not start work."""
        return self._locks is None or self._locks.is_held

    @asynccontextmanager
    async def joined(self, *, holds: bool = True) -> AsyncGenerator[Liveness | None]:
        """Join the processes during the block, and yield their locks. `holds`: whether to acquire the lock of this process.

        Raises ConfigurationError if the database has no locks.
        """
        self._limiter, self._holds = anyio.CapacityLimiter(1), holds
        if isinstance(self._database, SQLiteFile):
            self._locks = FileLocks(self._database.path)
        elif isinstance(self._database, PostgresServer):
            self._locks = PostgresLocks(self._database.conninfo)
            self._listener = _Listener(self._database)
        try:
            if holds and self._locks is not None:
                await self._call(self._locks.hold, self.name)
            yield self._locks
        finally:
            if self._listener is not None:
                self._listener.stop()
            if self._locks is not None:
                with anyio.CancelScope(shield=True):
                    await self._call(self._locks.close)

    async def _call(self, function: Any, *args: object) -> Any:
        return await seams.run_sync(partial(function, *args), limiter=self._limiter)

    @property
    def may_lose_lock(self) -> bool:
        """Whether this process has its lock only as long as a connection. Then it must call `check` again and again."""
        return self._holds and isinstance(self._locks, PostgresLocks)

    async def check(self) -> None:
        """Check the lock of this process, and acquire it again after a loss. Only if `may_lose_lock`."""
        assert self._locks is not None  # noqa: S101 - see `may_lose_lock`
        await self._call(self._locks.check)

    @asynccontextmanager
    async def dead(self, name: str) -> AsyncGenerator[bool]:
        """Yield whether a process is dead. During the block, no other caller gets True for the same process."""
        locks = self._locks
        is_dead = locks is not None and name != self.name and await self._call(locks.take, name)
        try:
            yield is_dead
        finally:
            if is_dead and locks is not None:
                with anyio.CancelScope(shield=True):
                    await self._call(locks.drop, name)

    async def version(self) -> int:
        """Return a number that changes after a write of another process."""
        if self._listener is not None:
            return self._listener.heard
        if not self.is_shared:
            return 0
        rows = await self._database.submit(partial(single, "PRAGMA data_version"), reads_only=True)
        return int(rows[0][0])


class _Listener:
    """Counts the notifications of other processes through PostgreSQL, in a thread with its own connection."""

    def __init__(self, database: PostgresServer) -> None:
        self.heard = 0
        self._database = database
        self._stopped = threading.Event()
        threading.Thread(target=self._listen, name="aswarm listener", daemon=True).start()

    def stop(self) -> None:
        """Stop within a second."""
        self._stopped.set()

    def _listen(self) -> None:
        import psycopg  # noqa: PLC0415 - of an extra

        from .postgres import CHANNEL, connected  # noqa: PLC0415 - it imports psycopg

        while not self._stopped.is_set():
            with suppress(psycopg.Error, OSError), connected(self._database.conninfo) as connection:
                connection.execute(f"LISTEN {CHANNEL}".encode())
                self.heard += 1  # notifications before LISTEN were missed
                while not self._stopped.is_set():
                    for news in connection.notifies(timeout=0.5, stop_after=1):
                        self.heard += news.payload != self._database.sender
            self._stopped.wait(_RECONNECT_AFTER)
