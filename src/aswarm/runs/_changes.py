"""`Changes` wakes the readers that wait for changes of the log. It polls for changes by other processes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from aswarm._values.errors import StoreError
from aswarm._values.log_fields import NO_RUN

logger = logging.getLogger("aswarm")

_SECONDS_AFTER_FAILURE = 1.0


class Changes:
    """Wakes the readers of runs that other processes execute. One poller serves all readers, and sleeps without readers."""

    def __init__(self, version: Callable[[], Awaitable[int]], *, seconds: float = 0.05) -> None:
        """`version`: returns a number that changes with the log. `seconds`: the time between two polls."""
        self._version = version
        self._seconds = seconds
        self._changed = anyio.Event()
        self._poller_wake = anyio.Event()
        self._waiting = 0

    def notify(self) -> None:
        """Wake all waiting readers. This process calls `notify` after each write."""
        self._changed.set()
        self._changed = anyio.Event()

    def note_start(self) -> None:
        """Wake the readers and the poller when a run starts here, because other processes may request to cancel it."""
        self.notify()
        self._poller_wake.set()

    def waiter(self) -> Callable[[], Awaitable[None]]:
        """Return a function that waits for the next change. Call `waiter` before you read the log, to miss no change."""
        changed = self._changed

        async def wait() -> None:
            self._waiting += 1
            self._poller_wake.set()
            try:
                await changed.wait()
            finally:
                self._waiting -= 1

        return wait

    async def poll(self, on_change: Callable[[], Awaitable[None]], is_needed: Callable[[], bool]) -> None:
        """Poll for changes, until cancelled.

        `on_change`: called after each change. `is_needed`: returns whether to poll even without readers.
        """
        last = -1
        while True:
            if not (self._waiting or is_needed()):
                self._poller_wake = anyio.Event()
            await self._poller_wake.wait()
            try:
                version = await self._version()
                if version != last:
                    await on_change()
                    last = version
                    self.notify()
            except StoreError:
                logger.exception("the log of runs cannot be read; another attempt follows", extra=NO_RUN)
                await anyio.sleep(_SECONDS_AFTER_FAILURE)
            await anyio.sleep(self._seconds)
