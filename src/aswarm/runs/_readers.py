"""Readers of runs, in this process and in other processes.

`Changes` wakes the readers that wait for changes of the log. It polls for changes by other processes. `Readers` counts the
readers, and cancels a run that has no readers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import anyio
import anyio.abc

from aswarm._log import runs as log
from aswarm._record.entries import now
from aswarm._sql.database import Database
from aswarm._values.errors import StoreError
from aswarm._values.text import NO_RUN

from ._live import LiveRun
from ._runs import RunRecord
from ._shutdown import Draining

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


logger = logging.getLogger("aswarm")

_TOUCH_EVERY = 1.0
_TOUCHED_SECONDS = 3.0  # a process records its readers each second; if it is late, this time covers two missing records


class Readers:
    """Counts the readers of runs. `background`: a task group, set while the runs are open."""

    background: anyio.abc.TaskGroup

    def __init__(self, database: Database, draining: Draining) -> None:
        self.draining = draining
        self._database = database
        self._foreign = Counter[str]()  # run id of another process: the number of its readers in this process

    @contextmanager
    def reading(self, record: RunRecord, live: LiveRun | None) -> Generator[LiveRun | None]:
        """Count a reader of the run during the block. `live`: the attempt in this process, if any."""
        if live is None:
            with self._reading_foreign(record):
                yield None
            return
        live.readers += 1
        live.unread.cancel()
        try:
            yield live
        finally:
            live.readers -= 1
            if live.readers == 0 and not self.draining.is_set and live.record.on_disconnect != "finish":
                self.mark_unread(live)

    @contextmanager
    def _reading_foreign(self, record: RunRecord) -> Generator[None]:
        if record.on_disconnect == "finish" or not record.is_running:
            yield
            return
        self._foreign[record.id] += 1
        self.background.start_soon(self._touch_all)
        try:
            yield
        finally:
            self._foreign[record.id] -= 1
            if not self._foreign[record.id]:
                del self._foreign[record.id]

    def mark_unread(self, live: LiveRun) -> None:
        """Start the timer of a run without readers. When the time of its `on_disconnect` is over, the run is cancelled."""
        live.unread.cancel()
        if not live.ended.is_set():
            live.unread = anyio.CancelScope()
            self.background.start_soon(self._cancel_unread, live, live.unread)

    async def _cancel_unread(self, live: LiveRun, scope: anyio.CancelScope) -> None:
        """Cancel the run after the time of its policy, if no process has a reader of it."""
        policy = live.record.on_disconnect
        seconds = policy if isinstance(policy, float | int) else 0.0
        with scope:
            await anyio.sleep(seconds)
            while True:
                with logged("the readers of a run cannot be looked up; another attempt follows"):
                    last_read = await self._database.run(log.last_read, live.record.id)
                    if now() - last_read > max(seconds, _TOUCHED_SECONDS) * 1000:
                        live.cancel("no_reader")
                await anyio.sleep(_TOUCH_EVERY)

    async def touch(self) -> None:
        """Each second, record which runs of other processes have readers in this process. Continue until cancelled."""
        while True:
            await anyio.sleep(_TOUCH_EVERY)
            if self._foreign:
                await self._touch_all()

    async def _touch_all(self) -> None:
        with logged("the readers of runs cannot be recorded"):
            await self._database.run(log.touch, list(self._foreign))


@contextmanager
def logged(what: str) -> Generator[None]:
    """Log an exception of the block and do not raise it: the next try may succeed."""
    try:
        yield
    except Exception:  # each driver of a database has its own errors
        logger.exception(what, extra=NO_RUN)
