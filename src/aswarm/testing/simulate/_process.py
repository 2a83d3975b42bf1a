"""`Process`: the tasks of one simulated process, and its death."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import logging
import math
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from aswarm._runtime import seams

from ._files import KillableConnection, close_as_killed, unlock
from ._loop import ProcessLoop, owner
from ._world import World

T = TypeVar("T")
_TASKS_KEPT = 100  # with ended tasks
_CLOSES = 100  # of a coroutine that awaits in its `finally` blocks


class Died(Exception):  # noqa: N818 - named after the event
    """The process has died."""


class Process:
    """One life of a process: its tasks, its connections to SQLite, and its locks.

    `dies_after`: the number of steps until it dies. `loses_power`: whether the disk then loses the commits that have not
    waited for it. `loses_locks_after`: the number of steps until its locks are lost, while it goes on.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        dies_after: float = math.inf,
        loses_power: bool = False,
        loses_locks_after: float = math.inf,
    ) -> None:
        self.name = name
        self.is_dead = False
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tasks: list[asyncio.Task[Any]] = []
        self.connections: list[KillableConnection] = []
        self.locks: list[Any] = []
        self._world = world
        self._steps = 0
        self._dies_after = dies_after
        self._loses_power = loses_power
        self._loses_locks_after = loses_locks_after
        self._context = contextvars.copy_context()
        self._context.run(owner.set, self)
        world.processes.append(self)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this process."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    async def result(self, task: asyncio.Task[T]) -> T:
        """Wait for a task of this process, and return its result. Raises Died if the process dies before."""
        try:
            await asyncio.wait([task, self.died], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        except BaseException:
            task.cancel()  # as a server does after its client has disconnected
            raise
        if self.is_dead:
            raise Died
        return task.result()

    # --- as the owner of callbacks ---

    def step(self, callback: Callable[..., object], *args: Any) -> None:
        """Call the callback, or die in its place."""
        if self.is_dead:
            return
        self._steps += 1
        if self._steps >= self._dies_after:
            self.die()
            return
        if self._steps >= self._loses_locks_after and self.locks:
            self._loses_locks_after = math.inf
            self._world.note(f"{self.name} loses its locks")
            for lock in self.locks:
                unlock(lock)
        callback(*args)

    def add(self, task: asyncio.Task[Any]) -> None:
        """Note a new task, so that nothing of it is collected after the death."""
        if len(self.tasks) > _TASKS_KEPT:
            self.tasks = [each for each in self.tasks if not each.done()]
        self.tasks.append(task)

    # --- death ---

    def die(self) -> None:
        """Drop everything, as the operating system does: no `finally` block runs, and only files stay."""
        self.is_dead = True
        self._world.note(f"{self.name} dies")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)  # noqa: S101 - a simulation makes no other loop
        loop.forget_generators(self)
        close_as_killed(self._world, self.connections, loses_power=self._loses_power)
        for lock in self.locks:
            seams.abandon(lock)
        self.died.set_result(None)

    def bury(self) -> None:
        """Close the coroutines after the end of the universe. Their `finally` blocks run now, and change nothing."""
        for task in self.tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - no other way
                coroutine: Any = task.get_coro()
                # anyio wraps the coroutine of a task. If the task never started, nothing refers to it but its wrapper.
                inner = getattr(inspect.getcoroutinelocals(coroutine).get("self"), "_coro", None)
                for each in (coroutine, inner):
                    if inspect.iscoroutine(each):
                        _close(each)


def _close(coroutine: Any) -> None:
    for _ in range(_CLOSES):  # pragma: no branch - no task of aswarm awaits so often
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001, S112 - of its `finally` blocks; it awaits again
            continue
        return


@contextmanager
def funeral(world: World) -> Generator[None]:
    """Bury the dead processes of the world after the block."""
    try:
        yield
    finally:
        if any(process.is_dead for process in world.processes):
            with _quiet():
                for process in world.processes:
                    process.bury()
                gc.collect()


@contextmanager
def _quiet() -> Generator[None]:
    """Hide what the `finally` blocks of dead tasks log and raise: there is no event loop any more."""
    before, hook = logging.root.manager.disable, sys.unraisablehook
    logging.disable()
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = hook
        logging.disable(before)
