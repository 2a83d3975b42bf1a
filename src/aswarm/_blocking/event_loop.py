"""The event loop of all blocking runs, its daemon thread, and Ctrl-C in a thread that waits for a run.

A process has one such loop. Clients belong to a loop, and so do objects that users keep between calls of async functions. The
thread starts on first use and ends with the program. At this end, open tasks are cancelled, and no warning is printed.

Ctrl-C raises KeyboardInterrupt between two waits, or in the user's function.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self, TypeVar

from aswarm._runtime.backend import PerProcess
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import NO_RUN

T = TypeVar("T")


class Interrupts:
    """Delays Ctrl-C inside its block. It does nothing outside the main thread, or if the program has its own handler."""

    def __init__(self) -> None:
        self._is_pending = False
        self._notify: Callable[[], None] | None = None
        self._is_holding = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._release()
        self.check()

    def _hold(self) -> None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with suppress(ValueError):  # raised in the main thread of a subinterpreter
                signal.signal(signal.SIGINT, self._on_signal)
                self._is_holding = True

    def _release(self) -> None:
        if self._is_holding:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_holding = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_pending = True
        if self._notify is not None:
            self._notify()

    @contextmanager
    def notifying(self, notify: Callable[[], None]) -> Generator[None]:
        """Within the block, Ctrl-C calls `notify` in the signal handler. If Ctrl-C came earlier, `notify` is called at once."""
        self._notify = notify
        try:
            if self._is_pending:
                notify()
            yield
        finally:
            self._notify = None

    def call(self, work: Callable[[], T]) -> T:
        """Call `work`. Inside `work`, Ctrl-C raises KeyboardInterrupt. If Ctrl-C came earlier, raise it and do not call `work`."""
        was_holding = self._is_holding
        # Not a generator-based context manager: after Ctrl-C, its generator would call `_hold` only when it is collected.
        try:
            self._release()
            self.check()
            return work()
        finally:
            if was_holding:
                self._hold()

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a Ctrl-C since the last KeyboardInterrupt."""
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt


logger = logging.getLogger("aswarm")


class EventLoopThread:
    """The loop and its thread. Both belong to the process that made them: a fork cannot use them."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._is_closing = False
        self._has_ended = False
        self._loop = asyncio.new_event_loop()
        self.running: set[object] = set()  # asyncio itself keeps only weak references to tasks
        self._thread = threading.Thread(target=self._run, name="aswarm event loop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the program ends, or has too many threads
            self._loop.close()
            raise

    def _run(self) -> None:
        while not self._has_ended:
            try:
                self._loop.run_forever()
            except BaseException:
                # If a task raises SystemExit or KeyboardInterrupt, so does `run_forever`. The task of a run does not do this: it
                # raises them in the thread of its caller.
                logger.exception("a background task of a function raised SystemExit or KeyboardInterrupt", extra=NO_RUN)
        self._loop.close()

    # --- from any thread ---

    @property
    def is_usable(self) -> bool:
        """Whether the loop belongs to this process, and is open."""
        return self._process == os.getpid() and not self._is_closing

    @property
    def is_own_thread(self) -> bool:
        """Whether the current thread is the thread of the loop."""
        return threading.get_ident() == self._thread.ident

    def check(self) -> None:
        """Raise RuntimeError or ConfigurationError if this thread cannot wait for the loop.

        When the program ends, raise SystemExit in any other thread than the main thread.
        """
        if self._process != os.getpid():
            raise RuntimeError("this run belongs to the process that started it, not to its fork")
        if self._is_closing:
            if threading.current_thread() is not threading.main_thread():
                raise SystemExit  # when the program ends, this ends another thread without a traceback
            raise RuntimeError("the program is ending, and cannot run agents any more")
        if self.is_own_thread:
            raise ConfigurationError(
                "an async function cannot wait for a Swarm on the event loop of Swarm; use AsyncSwarm in this function, or make "
                "it a plain function"
            )

    def call(self, callback: Callable[[], object]) -> None:
        """Schedule a callback on the loop. Callbacks run in the order of these calls. A closed loop ignores them."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def do(self, work: Callable[[], object]) -> None:
        """Call `work` on the loop, and wait until it returns. Raises its exception. `work` itself must not wait."""
        if self.is_own_thread:
            work()
            return
        self.check()

        async def step() -> None:
            work()

        asyncio.run_coroutine_threadsafe(step(), self._loop).result()

    # --- on the loop ---

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon(callback)

    # --- the end of the program ---

    def close(self, seconds: float = 2.0) -> None:
        """Cancel open tasks, and stop the thread. Wait at most `seconds` for the tasks."""
        if self._process != os.getpid():
            return
        self._is_closing = True
        self.call(self._start_closing)
        self._thread.join(seconds)
        # Otherwise tasks and generators that are still open would print warnings when Python collects them.
        self._loop.set_exception_handler(lambda _loop, _context: None)

    def _start_closing(self) -> None:
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


def _make() -> EventLoopThread:
    thread = EventLoopThread()
    atexit.register(thread.close)
    return thread


# Returns the thread of this process, which starts on first use.
event_loop_thread = PerProcess(_make).get
