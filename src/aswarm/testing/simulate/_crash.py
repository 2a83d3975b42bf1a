"""`Crash`: a process that dies at any await, and starts again with nothing but its files; `Process` has its tasks."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import anyio

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


S = TypeVar("S")
# The steps of a process before its death: none, or a number below one of these. A step is one callback of the event loop.
_STEPS = (0, 60, 250, 1000)
STEP_OF_CRASH = ": step of the crash"
"""In the names of the choices of steps."""


class Crash(Generic[S]):
    """A process of the universe that dies at drawn moments, and starts again.

        crash = Crash(world, most=2)

        async def main() -> str:
            async with SQLiteStore(world.path("orders.sqlite")) as store:
                conversation = store.conversation("1", world.swarm(model), agent=agent)
                response = await conversation.run("Where is my order?")
                return response.text

        print(await crash.run(main))

    Objects outside of `main` survive a crash, as other machines do: a `Provider`, and what clients remember. Make stores and
    swarms in `main`. A crash loses the tasks of the process, and its locks are free afterwards. Commits that did not wait for
    the disk are lost only with `power`.

    Args:
        world: The world.
        most: The largest number of crashes. In each life, one universe of four has no crash.
        power: Whether a crash may be a power failure.
        locks: Whether the process may lose its locks while it goes on, as on a network file system whose server has restarted.
            Another process then takes over its runs, and this one must not write any more.
        name: The name of the process in the time line, and in the names of its choices.
    """

    def __init__(
        self, world: World, *, most: int = 1, power: bool = False, locks: bool = False, name: str = "process"
    ) -> None:
        self._world = world
        self._most = most
        self._power = power
        self._locks = locks
        self._name = name
        self._stopped = anyio.Event()
        self._serving: tuple[Process, S] | None = None
        self._started = anyio.Event()

    async def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `main` in a process, again after each crash. Returns its first result; raises its first exception."""
        life = 0
        while True:
            process = self._process(life)
            with suppress(Died):
                return await process.result(process.start(main()))
            if self._serving is not None:  # otherwise clients wait for the event
                self._serving, self._started = None, anyio.Event()
            await self._world.pause(f"{self._name} starts again")
            life += 1

    def _process(self, life: int) -> Process:
        name, steps = f"{self._name} {life + 1}", 0
        if life < self._most and (most := _STEPS[self._world.draw(f"{self._name}: crash", len(_STEPS))]):
            steps = 1 + self._world.draw(f"{self._name}{STEP_OF_CRASH}", most)
        loses_power = bool(steps) and self._power and bool(self._world.draw(f"{self._name}: power failure", 2))
        options: dict[str, Any] = {"dies_after": steps or math.inf, "loses_power": loses_power}
        if self._locks and (most := _STEPS[self._world.draw(f"{self._name}: loses its locks", len(_STEPS))]):
            options["loses_locks_after"] = 1 + self._world.draw(f"{self._name}: step of the loss", most)
        return Process(self._world, name, **options)

    # --- a server ---

    async def serve(self, value: S) -> None:
        """Let clients `call` an object of this process, until `stop`. Call it in `main`."""
        process: Any = owner.get()
        self._serving = process, value
        self._started.set()
        await self._stopped.wait()

    def stop(self) -> None:
        """End `serve`, in this life and the next."""
        self._stopped.set()

    async def call(self, function: Callable[[S], Awaitable[T]]) -> T:
        """Call a function with the served object, in the process, as a client calls a server.

        Waits for a process that serves. Raises ConnectionResetError if the process dies before its answer arrives.
        """
        await self._started.wait()
        await self._world.pause(f"{self._name}: request")
        if self._serving is None or self._serving[0].is_dead:
            raise ConnectionResetError("the process has died")
        process, value = self._serving

        async def request() -> T:
            return await function(value)

        try:
            answer = await process.result(process.start(request()))
        except Died:
            raise ConnectionResetError("the process has died") from None
        await self._world.pause(f"{self._name}: answer")
        if process.is_dead:
            raise ConnectionResetError("the process has died before its answer arrived")
        return answer
