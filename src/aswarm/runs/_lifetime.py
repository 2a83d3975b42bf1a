"""`Lifetime`: an `async with` block that waits for its active runs before it closes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from aswarm._sql.database import Database

from ._live import LiveRun
from ._notifier import Notifier
from ._runs import ShuttingDown


class Lifetime(ABC):
    """Opens and closes the runs of this process.

    `_stop_reason`: the reason with which `drain` stops runs after its timeout. `_deadline`: when `drain` stops the runs.
    `_starts`: an event for each run that is being recorded, set after the record. `_live`: the attempts of this process.
    """

    _stop_reason = "shutdown"
    _deadline = math.inf
    _resources: AsyncExitStack

    def __init__(self, database: Database) -> None:
        self._database = database
        self._starts: set[anyio.Event] = set()
        self._live: dict[str, LiveRun] = {}
        self._notifier = Notifier(database, self._live)
        self.is_open: bool = False

    def _check_open(self) -> None:
        if not self.is_open:
            name = type(self).__name__
            raise RuntimeError(f"the runs are not open: use `async with {name}(...)`, or the lifespan of the service")
        if self._notifier.is_draining:
            raise ShuttingDown

    async def __aenter__(self) -> Self:
        if self.is_open:
            raise RuntimeError("these runs are already open; share this object, or create another one")
        self._notifier = Notifier(self._database, self._live)
        self._deadline, self._resources = math.inf, AsyncExitStack()
        self._resources.callback(self._notifier.close)
        # The outermost scope: `_close` shields it, so that no cancellation interrupts the closing.
        self._closing = self._resources.enter_context(anyio.CancelScope())
        try:
            await self._open(self._resources)
        except BaseException:
            await self._close()
            raise
        self.is_open = True
        return self

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None:
        """Open the database, the task groups and the locks. The stack closes them."""

    async def _close(self) -> None:
        self.is_open, self._closing.shield = False, True
        # Not `__aexit__` with the exception of the block: the task groups would wrap it into an exception group.
        await self._resources.aclose()

    async def _ended(self) -> None:
        while self._starts or self._live:
            waits = next(iter(self._starts), None) or next(iter(self._live.values())).ended
            await waits.wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drain(0)
        await self._close()

    async def drain(self, seconds: float) -> None:
        """Start no more runs, and wait until all runs end. After this number of seconds, stop them; their logs stay.

        A second call can shorten the time, but not extend it.
        """
        self._notifier.drain()
        self._deadline = min(self._deadline, anyio.current_time() + seconds)
        with anyio.CancelScope(shield=True):
            with anyio.CancelScope(deadline=self._deadline):
                await self._ended()
            while self._starts:
                await next(iter(self._starts)).wait()
            for live in list(self._live.values()):
                live.cancel(self._stop_reason)
            await self._ended()


async def task_group(stack: AsyncExitStack) -> TaskGroup:
    """Return a task group. When the stack closes, it cancels the task group."""
    group = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(group.cancel_scope.cancel)
    return group
