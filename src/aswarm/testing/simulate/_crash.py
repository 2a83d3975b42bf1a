"""`Crash`: a process that dies at any await, and starts again with nothing but its files."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio

from ._loop import owner
from ._process import Died, Process
from ._world import World

T = TypeVar("T")
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
