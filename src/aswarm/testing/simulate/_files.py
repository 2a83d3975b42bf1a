"""SQLite files and locks of simulated processes, which a crash leaves as the operating system does."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any
from weakref import WeakSet

from aswarm._runtime import seams

from ._loop import owner
from ._world import World


class KillableConnection(sqlite3.Connection):
    """A connection to a SQLite file. It notes the size of the write-ahead log whenever a commit has waited for the disk."""

    world: World
    path: str
    _waits = True  # the default of SQLite is `synchronous = FULL`

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        cursor = super().execute(statement, *parameters)
        if statement.startswith("PRAGMA synchronous"):
            self._waits = statement.endswith("FULL")
        elif statement == "COMMIT" and self._waits:
            self.world.synced[self.path] = _size(f"{self.path}-wal")
        return cursor

    def close(self) -> None:
        super().close()
        if (process := owner.get()) is not None and self in process.connections:  # type: ignore[attr-defined]
            process.connections.remove(self)  # type: ignore[attr-defined]


@contextmanager
def files_of(world: World) -> Generator[None]:
    """Note the connections and the locks of each process during the block."""

    def connected(path: Any, *options: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(path, *options, **{"factory": KillableConnection, **named})
        if isinstance(connection, KillableConnection):
            connection.world, connection.path = world, os.fspath(path)
            if (process := owner.get()) is not None:
                process.connections.append(connection)  # type: ignore[attr-defined]
        return connection

    connect: Any = sqlite3.connect
    sqlite3.connect = connected  # type: ignore[assignment]
    try:
        with seams.replaced({"held": _Held()}, {}):
            yield
    finally:
        sqlite3.connect = connect


class _Held(WeakSet[Any]):
    """The locks of all processes. Each process has a list of its own locks."""

    def add(self, item: Any) -> None:
        super().add(item)
        if (process := owner.get()) is not None:
            process.locks.append(item)  # type: ignore[attr-defined]


def unlock(lock: Any) -> None:
    """Release a locked file, or the locks of an object, without the knowledge of its process."""
    import fcntl  # noqa: PLC0415 - does not exist on Windows, where no process has locks

    files: dict[str, int] = getattr(lock, "_files", {})
    for file in (lock,) if isinstance(lock, FileIO) else files.values():
        fcntl.flock(file, fcntl.LOCK_UN)


def close_as_killed(world: World, connections: list[KillableConnection], *, loses_power: bool) -> None:
    """Close connections, and leave the files as a killed process does.

    SQLite would move the write-ahead log into the file, so the files of the last connection are written back.
    """
    others = {each.path for process in world.processes if not process.is_dead for each in process.connections}
    left: dict[Path, bytes] = {}
    for path in dict.fromkeys(each.path for each in connections if each.path not in others):  # in the order of a list
        wal = Path(f"{path}-wal")
        left |= {each: each.read_bytes() for each in (Path(path), wal) if each.exists()}
        if loses_power and wal in left:
            size = len(left[wal])
            synced = min(size, world.synced.get(path, 0))
            left[wal] = left[wal][: size - world.draw("bytes that the disk loses", size - synced + 1)]
    for connection in connections:
        connection.close()
    connections.clear()
    for file, data in left.items():
        file.write_bytes(data)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0
