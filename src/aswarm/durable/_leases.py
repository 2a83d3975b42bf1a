"""Who is alive: each process holds a lock with its name, and the operating system or the database frees it when it dies.

Nothing here looks at a clock: a process that is slow, or a clock that steps, is no death. A child that a process forks does not
keep its locks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from aswarm._errors import ConfigurationError

SAME_ID = "another process that lives has the executor id {!r}; give the DBOS of each process an id of its own"


class Leases(Protocol):
    """The locks of the processes that share a database. `take` and `drop` block for a moment."""

    async def hold(self, executor: str) -> None:
        """Hold the lock of this process until `aclose`. Raises ConfigurationError if another process holds it."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether this process has its lock. Without it, the process must not begin to execute runs."""
        ...

    async def watch(self) -> None:
        """Get the own lock again whenever it is lost, without end."""
        ...

    def take(self, executor: str) -> bool:
        """Take the lock of another process. False if that process lives."""
        ...

    def drop(self, executor: str) -> None:
        """Release a lock that `take` has got, and delete it: no run of its process is left."""
        ...

    async def aclose(self) -> None:
        """Give up the lock of this process."""
        ...

    def leave_to_parent(self) -> None:
        """In a forked child: have nothing any more that would keep the lock when the parent has died."""
        ...


_held: WeakSet[Leases] = WeakSet()


def left_to_parent(leases: Leases) -> None:
    """From now on, a forked child leaves these locks to its parent."""
    _held.add(leases)


def _after_fork() -> None:
    for leases in list(_held):
        leases.leave_to_parent()


if hasattr(os, "register_at_fork"):  # other systems do not fork
    os.register_at_fork(after_in_child=_after_fork)


class FileLeases:
    """Locked files beside a SQLite file. A lock of `flock` ends with its process."""

    def __init__(self, path: str) -> None:
        if os.name != "posix":
            raise ConfigurationError("durable runs in a SQLite file need a POSIX system; use PostgreSQL here")
        self._path = path
        self._held: dict[str, int] = {}
        self._own = ""

    def _file(self, executor: str) -> Path:
        return Path(f"{self._path}-{executor}.lock")

    async def hold(self, executor: str) -> None:
        """See `Leases`."""
        left_to_parent(self)
        self._own = executor
        if not self.take(executor):
            raise ConfigurationError(SAME_ID.format(executor))

    def _lock(self, file: int, executor: str) -> bool:
        import fcntl  # noqa: PLC0415 - of POSIX only

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConfigurationError(
                f"the file system of {self._path} has no locks for durable runs: {error}"
            ) from error
        # Another process may have locked and deleted the file since it was opened.
        return self._file(executor).exists() and os.path.samestat(os.fstat(file), self._file(executor).stat())

    def take(self, executor: str) -> bool:
        """See `Leases`."""
        try:
            file = os.open(self._file(executor), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        is_locked = False
        try:
            is_locked = self._lock(file, executor)
        finally:
            if not is_locked:
                os.close(file)
        if is_locked:
            self._held[executor] = file
        return is_locked

    def drop(self, executor: str) -> None:
        """See `Leases`."""
        with suppress(OSError):
            self._file(executor).unlink()
        os.close(self._held.pop(executor))

    @property
    def is_held(self) -> bool:
        """See `Leases`."""
        return self._own in self._held

    async def watch(self) -> None:
        """See `Leases`. The lock of a file cannot be lost."""

    async def aclose(self) -> None:
        """See `Leases`."""
        for executor in list(self._held):
            self.drop(executor)

    def leave_to_parent(self) -> None:
        """See `Leases`. A lock of `flock` is there until all processes that have inherited it have closed its file."""
        for file in self._held.values():
            os.close(file)
        self._held.clear()
