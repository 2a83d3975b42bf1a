"""The worker threads, the database threads, the clocks and the SQLite files of a universe, in place of the real ones.

All work of a thread runs on the event loop, in steps, after delays drawn by `World`.

The SQLite files and locks of a process that crashes stay, as with an operating system.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import math
import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import anyio
import anyio.lowlevel
import anyio.to_thread
import sniffio

from aswarm._runtime import seams

from ._loop import ProcessLoop, UniverseLoop, owner
from ._world import START, World


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


T = TypeVar("T")


@contextmanager
def simulated(world: World, loop: ProcessLoop) -> Generator[None]:
    """Replace the threads and the clocks of aswarm during the block."""
    threads: dict[str, Any] = {
        "run_sync": functools.partial(run_sync, world),
        "start_thread": functools.partial(start_thread, world),
    }
    numbers = itertools.count(1)

    def urandom(size: int) -> bytes:
        return blake2b(f"{world.seed} {next(numbers)}".encode(), digest_size=size).digest()

    clocks: dict[str, Any] = {"urandom": urandom}
    if isinstance(loop, UniverseLoop):
        clocks |= {"monotonic": loop.time, "time": lambda: START + loop.time(), "sleep": loop.move_on}
    with seams.replaced(threads, clocks):
        yield


# --- functions in threads ---


async def run_sync(
    world: World,
    function: Callable[..., Any],
    *args: Any,
    abandon_on_cancel: bool = False,
    limiter: anyio.CapacityLimiter | None = None,
) -> Any:
    """Replace `anyio.to_thread.run_sync`: the function runs on the loop of the universe, between two drawn delays."""
    work = functools.partial(function, *args)
    loop = asyncio.get_running_loop()
    before, after = world.delay("thread starts"), world.delay("thread ends")
    if not isinstance(loop, UniverseLoop):
        work = functools.partial(_in_real_thread, before, work, after)
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
    await anyio.lowlevel.checkpoint_if_cancelled()
    async with limiter or nullcontext():
        context = contextvars.copy_context()
        context.run(sniffio.current_async_library_cvar.set, None)
        future = loop.call_in_thread(before, functools.partial(context.run, work), after)
        with anyio.CancelScope(shield=not abandon_on_cancel):
            return await future


def _in_real_thread(before: float, work: Callable[[], T], after: float) -> T:
    time.sleep(before)
    try:
        return work()
    finally:
        time.sleep(after)


# --- threads with steps ---


def start_thread(world: World, steps: seams.Steps, name: str) -> Callable[[], None]:
    """Replace `seams.start_thread`: the steps run on the event loop, also on one with the real clock."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ProcessLoop)  # noqa: S101 - a simulation makes no other loop
    thread = _Thread(world, loop, steps, name)
    thread.wake()
    return thread.wake


class _Thread:
    """A thread whose steps run on the loop. It belongs to the process that started it."""

    def __init__(self, world: World, loop: ProcessLoop, steps: seams.Steps, name: str) -> None:
        self._world = world
        self._loop = loop
        self._steps = steps
        self._name = name
        self._context = contextvars.copy_context()
        self._next = object()  # identifies the next step
        self._is_woken = False

    def wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._schedule(self._world.delay(f"{self._name} wakes"))

    def _schedule(self, seconds: float) -> None:
        self._loop.arrive(seconds, self._step, self._next, context=self._context)

    def _step(self, which: object) -> None:
        if which is self._next:
            self._next, self._is_woken = object(), False
            with self._loop.in_thread():
                seconds = next(self._steps, math.inf)
            if seconds < math.inf:
                self._schedule(seconds)
