"""`Processes`: the processes that share a database. It detects that a process has died, or that another process has written.

Locks show which processes are alive: the operating system or the database releases the lock of a dead process.

No lock depends on a clock. So a process counts as alive even if it is slow, or if a clock was changed. A forked child
does not keep the lock of its parent. All methods block for a short time, and work in any thread.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from aswarm._runtime import clocks, seams
from aswarm._values.errors import ConfigurationError

from .database import Database
from .databases import PostgresServer, SQLiteFile
from .transactions import single

_SAME_NAME = "another live process has the executor id {!r}; give each process an id of its own"
_ACQUIRE_SECONDS = 2.0  # another process may hold the lock for a moment, while it checks whether this process is dead
# The view `pg_locks` shows a key of 64 bits as two halves, classid and objid, with objsubid 1:
# https://www.postgresql.org/docs/current/view-pg-locks.html
_HOLDS = (
    "SELECT pg_backend_pid(), count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid::bigint = %s AND objid::bigint = %s AND objsubid = 1"
)


class Liveness(ABC):
    """The locks of the processes that share a database. Each process holds the lock with its own name."""

    _own = ""  # the name of this process

    def hold(self, name: str) -> None:
        """Hold the lock of this process until `close`. Raises ConfigurationError if another process holds it."""
        seams.held.add(self)
        self._own = name
        deadline = clocks.monotonic() + _ACQUIRE_SECONDS
        while not self._acquire():
            if clocks.monotonic() > deadline:
                self.close()
                raise ConfigurationError(_SAME_NAME.format(name))
            clocks.sleep(0.02)

    @abstractmethod
    def _acquire(self) -> bool:
        """Try to acquire the lock of this process. Return False if another process has the lock."""

    @property
    @abstractmethod
    def is_held(self) -> bool:
        """Whether this process held its lock at the last `check`. Without the lock, this process must not start work."""

    @abstractmethod
    def check(self) -> bool:
        """Check the lock of this process. If it was lost, try to acquire it again. Return whether this process has it."""

    @abstractmethod
    def take(self, name: str) -> bool:
        """Try to acquire the lock of another process. Return False if that process is alive."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Release a lock that `take` acquired."""

    @abstractmethod
    def close(self) -> None:
        """Release all locks of this process."""

    @abstractmethod
    def abandon(self) -> None:
        """Close the inherited files and sockets in a forked child, so that the locks end with the parent."""


class FileLocks(Liveness):
    """Lock files in the folder of the SQLite file `path`, one for each process. A missing file means a dead process."""

    def __init__(self, path: str) -> None:
        if os.name != "posix":
            raise ConfigurationError("a SQLite file of several processes needs a POSIX system; use PostgreSQL here")
        # Processes may open one file by several paths, and a program may change its working directory.
        self._path = Path(path).resolve()
        self._files: dict[str, int] = {}

    def hold(self, name: str) -> None:
        """Hold the lock of this process, and remove the files of dead processes."""
        super().hold(name)
        start = f"{self._path.name}-"
        for file in self._path.parent.iterdir():
            if file.name.startswith(start) and file.name.endswith(".lock"):
                other = file.name.removeprefix(start).removesuffix(".lock")
                if self.take(other):
                    self.drop(other)

    def _acquire(self) -> bool:
        return self._lock(self._own)

    @property
    def is_held(self) -> bool:
        return self._own in self._files

    def check(self) -> bool:
        return self.is_held  # a process cannot lose the lock of a file

    def take(self, name: str) -> bool:
        return name != self._own and self._lock(name)

    def drop(self, name: str) -> None:
        """Release a lock that `take` acquired, and remove its file."""
        with suppress(OSError):
            self._file(name).unlink()
        os.close(self._files.pop(name))

    def close(self) -> None:
        for name in list(self._files):
            self.drop(name)

    def abandon(self) -> None:
        # A lock of `flock` lasts until all processes have closed their descriptors of the open file, see
        # https://man7.org/linux/man-pages/man2/flock.2.html
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _file(self, name: str) -> Path:
        return self._path.with_name(f"{self._path.name}-{name}.lock")

    def _lock(self, name: str) -> bool:
        file = os.open(self._file(name), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        is_locked = False
        try:
            is_locked = self._is_locked_now(file, name)
        finally:
            if not is_locked:
                os.close(file)
        if is_locked:
            self._files[name] = file
        return is_locked

    def _is_locked_now(self, file: int, name: str) -> bool:
        import fcntl  # noqa: PLC0415 - exists on POSIX only

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConfigurationError(f"the file system of {self._path} has no locks: {error}") from error
        # Before this process got the lock, another process may have removed the file. A new file may have its name.
        try:
            return os.path.samestat(os.fstat(file), self._file(name).stat())
        except FileNotFoundError:
            return False


class PostgresLocks(Liveness):
    """Session advisory locks of one connection to the PostgreSQL database `conninfo`."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: Any = None
        self._backend = 0
        self._is_held = False
        self._lock = threading.Lock()

    def hold(self, name: str) -> None:
        """See `Liveness.hold`. Also raises ConfigurationError if the server cannot be reached."""
        import psycopg  # noqa: PLC0415 - of an extra

        try:
            super().hold(name)
        except psycopg.Error as error:
            raise ConfigurationError(f"PostgreSQL cannot be reached: {error}") from error

    @property
    def is_held(self) -> bool:
        return self._is_held and not self._connection.closed

    def check(self) -> bool:
        """See `Liveness.check`. The lock is also lost if a connection pooler switches to another backend."""
        import psycopg  # noqa: PLC0415 - of an extra

        with self._lock:
            if not self._own:
                return False
            try:
                if not self._is_held or self._verify() != self._backend:
                    self._is_held = False
                    self._acquire()
            except psycopg.Error:
                self._is_held = False
                self._connection.close()
            return self._is_held

    def take(self, name: str) -> bool:
        if name == self._own:  # a session can acquire its own lock a second time
            return False
        if self._connection is None:  # this process does not hold its own lock
            seams.held.add(self)
            self._connection = self._connect()
        ((is_taken,),) = self._connection.execute("SELECT pg_try_advisory_lock(%s)", (_key(name),)).fetchall()
        return bool(is_taken)

    def drop(self, name: str) -> None:
        self._connection.execute("SELECT pg_advisory_unlock(%s)", (_key(name),))

    def close(self) -> None:
        # The server may detect a closed connection late, so release the locks first.
        import psycopg  # noqa: PLC0415 - of an extra

        with self._lock:
            self._is_held, self._own = False, ""  # so that a later `check` does not acquire the lock again
            if self._connection is not None:
                with suppress(psycopg.Error):
                    self._connection.execute("SELECT pg_advisory_unlock_all()")
                self._connection.close()

    def abandon(self) -> None:
        # `close` would send the end of the session, which the parent still uses. So replace the socket instead.
        import psycopg  # noqa: PLC0415 - of an extra

        self._is_held = False
        nothing = os.open(os.devnull, os.O_RDWR)
        with suppress(psycopg.Error, AttributeError):  # the connection is closed, or was never open
            os.dup2(nothing, self._connection.fileno(), inheritable=False)
        os.close(nothing)

    def _connect(self) -> Any:
        from .postgres import connected  # noqa: PLC0415 - it imports psycopg

        return connected(self._conninfo)

    def _acquire(self) -> bool:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        ((is_taken,),) = self._connection.execute("SELECT pg_try_advisory_lock(%s)", (_key(self._own),)).fetchall()
        if is_taken:
            self._backend = self._verify()
            self._is_held = self._backend != 0
        return self._is_held

    def _verify(self) -> int:
        """Return the process id of the backend if it holds the lock of this process, otherwise 0."""
        key = _key(self._own)
        halves = (key >> 32) & 0xFFFFFFFF, key & 0xFFFFFFFF
        ((backend, number),) = self._connection.execute(_HOLDS, halves).fetchall()
        return backend if number else 0


def _key(name: str) -> int:
    # The key of an advisory lock is a bigint. `hash` would differ between the processes.
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), signed=True)


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
