"""One event loop for any number of threads that wait for what happens on it. Knows nothing of runs and tools.

Whoever waits steps the loop: one thread leads, the others wait, and when the leader has what it came for, another takes
over. So there is no thread beside the callers'. Only for a caller that cannot step it, because an event loop runs in its
thread already (a notebook), a portal thread does. One loop for the whole process, because clients, and what users keep
between async functions, belong to a loop.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import sniffio

from aswarm._errors import ConfigurationError
from aswarm._runtime.forks import ForkedLoop, PerProcess

from .interrupts import Interrupts
from .portal import Portal

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]

# How long the end of the program, or whoever drops a stream, waits for what was open: seconds.
_PATIENCE = 2.0
# Python sees a signal that comes just before a thread begins to wait only when the wait ends, so no wait is longer.
_GLANCE = 0.25


class _Word(Enum):
    """What a waiting thread is told."""

    ENDED = "what you wait for is there"
    INTERRUPTED = "wait no longer"
    LEAD = "nobody steps the loop"


class Visit:
    """A thread that waits for something on the loop. `end` it there when that has come."""

    def __init__(self, loop: SharedLoop) -> None:
        self._loop = loop
        self.inbox: SimpleQueue[_Word] = SimpleQueue()  # may be put to by a signal handler
        self.is_over = False  # nobody need step the loop for it any more

    def next_word(self) -> _Word:
        """Wait for it, in the thread."""
        while True:
            with suppress(Empty):
                return self.inbox.get(timeout=_GLANCE)

    def end(self) -> None:
        """Tell the thread that what it waits for is there. To be called on the loop."""
        self.is_over = True
        self.inbox.put(_Word.ENDED)
        self._loop.stop_for(self)


class SharedLoop:
    """The loop. It belongs to the process that makes it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._runner = asyncio.Runner(loop_factory=ForkedLoop if hasattr(os, "fork") else asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._loop.call_soon(self._glance)
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references
        self._lead = threading.Lock()
        self._leader: Visit | None = None
        self._followers: deque[Visit] = deque()
        self._left: set[Visit] = set()  # work for which nobody waits
        self._portal = Portal(self._serve)
        self._is_closing = False

    @property
    def is_usable(self) -> bool:
        """Whether it is of this process, and open."""
        return self._process == os.getpid() and not self._is_closing

    # --- waiting ---

    def check(self) -> None:
        """Raise where this thread cannot wait for the loop: RuntimeError, ConfigurationError, or, to end it, SystemExit."""
        if self._process != os.getpid():
            raise RuntimeError("this run belongs to the process that began it, not to its fork")
        if self._is_closing:
            if threading.current_thread() is not threading.main_thread():
                raise SystemExit  # a daemon thread, which nobody shall hear of
            raise RuntimeError("the program is at its end, and runs no agents any more")
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:
                raise ConfigurationError(
                    "an async function cannot wait for a Swarm, on whose event loop it runs: use AsyncSwarm there, or "
                    "make it a plain function"
                )

    def wait(self, begin: Callable[[Visit], object], interrupts: Interrupts) -> None:
        """Call `begin(visit)`, on the loop or while this thread leads, and wait until the visit is ended.

        `check` first. Raises KeyboardInterrupt at Ctrl-C, and whatever else interrupts this thread.
        """
        visit = Visit(self)
        begin_visit = functools.partial(begin, visit)
        try:
            with interrupts.told_to(functools.partial(self._interrupt, visit)):
                if _may_step() and self._lead.acquire(blocking=False):
                    self._step_and_release(visit, begin_visit)
                else:
                    self._loop.call_soon_threadsafe(begin_visit)
                while (word := self._next_word(visit)) is not _Word.ENDED:
                    if word is _Word.INTERRUPTED:
                        interrupts.check()
        finally:
            self._abandon(visit)
            self._pass_on()

    def leave(self, work: Work) -> None:
        """Have `work` done, by this thread now if it can, else by whoever steps the loop next.

        For finalizers: it waits for no other thread, and it may be called at any point of any code, of this class too.
        """
        if not self.is_usable:
            return
        visit = Visit(self)
        self._left.add(visit)
        begin = functools.partial(self._carry_out, work, visit)
        if _may_step() and self._lead.acquire(blocking=False):
            self._step_and_release(visit, begin, _PATIENCE)
        else:
            self._loop.call_soon_threadsafe(begin)
        self._pass_on()

    def _carry_out(self, work: Work, visit: Visit) -> None:
        task = self._loop.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._carried_out, visit))

    def _carried_out(self, visit: Visit, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._left.discard(visit)
        visit.end()

    # --- on the loop, or by who leads ---

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task on the loop, in a copy of the current context."""
        return self._loop.create_task(work)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it in the next pass of the loop."""
        self._loop.call_soon(callback)

    def stop_for(self, visit: Visit) -> None:
        """Stop stepping, where it is done for this visit."""
        if self._leader is visit:
            self._loop.stop()

    # --- from anywhere ---

    def _interrupt(self, visit: Visit) -> None:
        """From a signal handler: tell whoever waits."""
        visit.inbox.put(_Word.INTERRUPTED)
        self._abandon(visit)

    def _abandon(self, visit: Visit) -> None:
        visit.is_over = True
        if self._leader is visit:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _glance(self) -> None:
        self._loop.call_later(_GLANCE, self._glance)

    # --- taking turns ---

    def _next_word(self, visit: Visit) -> _Word:
        while visit.inbox.empty():
            if not _may_step():
                self._portal.ask([visit])
                break
            if self._lead.acquire(blocking=False):
                self._step_and_release(visit)
                continue
            with self._following(visit):
                if self._lead.locked():  # whoever leads now will pass on
                    return visit.next_word()
        return visit.next_word()

    @contextmanager
    def _following(self, visit: Visit) -> Generator[None]:
        self._followers.append(visit)
        try:
            yield
        finally:
            with suppress(ValueError):
                self._followers.remove(visit)

    def _step_and_release(
        self, visit: Visit, begin: Callable[[], object] | None = None, patience: float | None = None
    ) -> None:
        """Step the loop until the visit is over. This thread leads; afterwards it does not."""
        deadline = None if patience is None else self._loop.time() + patience
        self._leader = visit
        try:
            if begin is not None:
                begin()
            if deadline is not None:
                self._loop.call_at(deadline, self.stop_for, visit)
            while not visit.is_over and (deadline is None or self._loop.time() < deadline):
                self._loop.run_forever()
        finally:
            self._leader = None
            self._lead.release()

    def _pass_on(self) -> None:
        """Have somebody step the loop, if there is anything to do."""
        if self._lead.locked():
            return
        if self._followers:
            with suppress(IndexError):
                self._followers.popleft().inbox.put(_Word.LEAD)
        elif self._left:
            self._portal.ask(tuple(self._left))

    def _serve(self, visit: Visit) -> None:
        """Step the loop for a visit that cannot; in the thread of the portal."""
        if not visit.is_over:
            self._lead.acquire()
            self._step_and_release(visit)
        self._pass_on()

    # --- ending ---

    def close(self) -> None:
        """End what is open and close the loop: the program is at its end. What does not end is left after seconds."""
        if self._process != os.getpid():
            with suppress(RuntimeError):  # it was running at the fork
                self._loop.close()
            return
        self._is_closing = True
        self._portal.close(_PATIENCE)
        visit = Visit(self)
        self._loop.call_soon_threadsafe(self._carry_out, self._end_all, visit)
        if not self._lead.acquire(timeout=_PATIENCE):
            return  # something blocks the loop in another thread
        self._step_and_release(visit, patience=_PATIENCE)
        if visit.is_over:
            self._runner.close()
        else:
            self._loop.set_exception_handler(lambda _loop, _context: None)
            self._loop.close()

    async def _end_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        if isinstance(self._loop, ForkedLoop):  # pragma: no branch - not on Windows
            self._loop.hang_up()
            await asyncio.sleep(0)

    def abandon(self) -> None:
        """After a fork, in the child: cut the connections that it inherited. They refer to the loop, which stays open."""
        cast("ForkedLoop", self._loop).cut()  # it is one wherever there are forks


def _make_shared_loop() -> SharedLoop:
    loop = SharedLoop()
    atexit.register(loop.close)
    return loop


_loops = PerProcess(_make_shared_loop, SharedLoop.abandon)


def shared_loop() -> SharedLoop:
    """The one of this process."""
    return _loops.get()


def _may_step() -> bool:
    """Whether this thread can step a loop: none runs in it, of asyncio or trio."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return False
    with suppress(sniffio.AsyncLibraryNotFoundError):
        sniffio.current_async_library()
        return False
    return True
