"""The event loop of every blocking run, and the daemon thread that owns it. Knows nothing of runs and tools.

A process has one such loop, because clients, and what users keep between async functions, belong to a loop. The thread
starts on first use and ends with the program: what is open is then cancelled, and nothing is printed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from aswarm._errors import ConfigurationError
from aswarm._run.handlers import NO_RUN
from aswarm._runtime.forks import PerProcess

logger = logging.getLogger("aswarm")

# How long the end of the program waits for what is open, in seconds.
_END_SECONDS = 2.0


class EventLoopThread:
    """The loop and its thread. Both belong to the process that makes them."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._is_closing = False
        self._has_ended = False
        self._loop = asyncio.new_event_loop()
        self.running: set[object] = set()  # asyncio itself keeps only weak references to tasks
        self._thread = threading.Thread(target=self._run, name="aswarm event loop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the program is at its end, or has too many threads
            self._loop.close()
            raise

    def _run(self) -> None:
        while not self._has_ended:
            try:
                self._loop.run_forever()
            except BaseException:
                # SystemExit and KeyboardInterrupt leave a task through the loop. A run takes its own to its caller.
                logger.exception(
                    "a task that a function started and left behind raised what ends an event loop", extra=NO_RUN
                )
        self._loop.close()

    # --- from any thread ---

    @property
    def is_usable(self) -> bool:
        """Whether the loop is of this process, and open."""
        return self._process == os.getpid() and not self._is_closing

    @property
    def is_own_thread(self) -> bool:
        """Whether the current thread is the loop's own."""
        return threading.get_ident() == self._thread.ident

    def check(self) -> None:
        """Raise where this thread cannot wait for the loop: RuntimeError, ConfigurationError, or, to end it, SystemExit."""
        if self._process != os.getpid():
            raise RuntimeError("this run belongs to the process that began it, not to its fork")
        if self._is_closing:
            if threading.current_thread() is not threading.main_thread():
                raise SystemExit  # ends a daemon thread without a traceback
            raise RuntimeError("the program is at its end, and runs no agents any more")
        if self.is_own_thread:
            raise ConfigurationError(
                "an async function cannot wait for a Swarm, on whose event loop it runs: use AsyncSwarm there, or "
                "make it a plain function"
            )

    def call(self, callback: Callable[[], object]) -> None:
        """Call it on the loop, soon, in the order of these calls. Does nothing once the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def do(self, work: Callable[[], object]) -> None:
        """Do on the loop what does not wait, and return when it is done. Raises what it raises."""
        if self.is_own_thread:
            work()
            return
        self.check()
        done: Future[None] = Future()
        self.call(partial(_do, work, done))
        done.result()

    # --- on the loop ---

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it in the next pass of the loop."""
        self._loop.call_soon(callback)

    # --- the end of the program ---

    def close(self) -> None:
        """Cancel what is open and end the thread. What has not ended after two seconds is left as it is."""
        if self._process != os.getpid():
            return
        self._is_closing = True
        self.call(self._begin_end)
        self._thread.join(_END_SECONDS)
        # What was left, or was never closed, reports itself when Python collects it at the end.
        self._loop.set_exception_handler(lambda _loop, _context: None)

    def _begin_end(self) -> None:
        ending = contextvars.Context().run(self._loop.create_task, self._end_all())
        self.running.add(ending)
        ending.add_done_callback(self._stop)

    async def _end_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def _stop(self, _: asyncio.Task[None]) -> None:
        self._has_ended = True
        self._loop.stop()


def _do(work: Callable[[], object], done: Future[None]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - raised in the thread that waits
        done.set_exception(error)
    else:
        done.set_result(None)


def _make() -> EventLoopThread:
    made = EventLoopThread()
    atexit.register(made.close)
    return made


_threads = PerProcess(_make)


def event_loop_thread() -> EventLoopThread:
    """The one of this process, started on first use."""
    return _threads.get()
