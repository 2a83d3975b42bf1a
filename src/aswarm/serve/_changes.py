"""Changes of the log: what waits for them, and the poller that notices what other processes have written."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

from aswarm._run.handlers import NO_RUN

logger = logging.getLogger("aswarm")

_SECONDS_AFTER_FAILURE = 1.0


class Changes:
    """Wakes the readers of runs of other processes. One poller serves all of them, and only while there are some."""

    def __init__(
        self, version: Callable[[], Awaitable[int]], *, seconds: float, errors: tuple[type[Exception], ...]
    ) -> None:
        """`version`: a number that changes with the log. `seconds`: how long the poller sleeps. `errors`: of the log."""
        self._errors = errors
        self._version = version
        self._seconds = seconds
        self._changed = anyio.Event()
        self._poller_wake = anyio.Event()
        self._waiting = 0

    def notify(self) -> None:
        """Wake all readers that wait: this process has written something."""
        self._changed.set()
        self._changed = anyio.Event()

    def wake_poller(self) -> None:
        """Let the poller look, for its owner has something to be told."""
        self._poller_wake.set()

    def waiter(self) -> Callable[[], Awaitable[None]]:
        """A function that waits for changes from now on. Take it before looking at the log: what is written in between is then no loss."""
        changed = self._changed

        async def wait() -> None:
            self._waiting += 1
            self.wake_poller()
            try:
                await changed.wait()
            finally:
                self._waiting -= 1

        return wait

    async def poll(self, on_change: Callable[[], Awaitable[None]], is_needed: Callable[[], bool]) -> None:
        """Look for changes, without end. `on_change` is called after each; `is_needed`: whether its owner needs that now."""
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
            except self._errors:
                logger.exception("the log of runs cannot be read; another attempt follows", extra=NO_RUN)
                await anyio.sleep(_SECONDS_AFTER_FAILURE)
            await anyio.sleep(self._seconds)
