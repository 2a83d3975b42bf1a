"""One event loop for any number of threads that wait for what happens on it. Knows nothing of runs and tools.

Whoever waits steps the loop: one thread leads, the others wait, and when the leader has what it came for, another takes
over. So there is no thread beside the callers'. Only where a caller cannot step it, because an event loop runs in its
thread already (a notebook), a portal thread does. One loop, because a client and what users keep between async
functions belong to a loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from enum import Enum
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

import sniffio

from ._errors import ConfigurationError, RunError
from ._forks import cut
from ._interrupts import Interrupts

logger = logging.getLogger("aswarm")
T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, None]]

# How long the end of the program, or whoever drops a stream, waits for what was open: seconds.
_PATIENCE = 2.0


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

    def end(self) -> None:
        """Tell the thread that what it waits for is there. To be called on the loop."""
        self._loop.tell(self, _Word.ENDED)


class _ForkedLoop(asyncio.SelectorEventLoop):
    """An event loop for processes that may fork: it knows the connections that were made on it."""

    def __init__(self) -> None:
        # Both processes would share the kernel's table behind an epoll; `poll` has none.
        super().__init__(selectors.PollSelector())
        self._connections: WeakSet[asyncio.Transport] = WeakSet()

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        made = await super().create_connection(*args, **options)
        self._connections.add(made[0])
        return made

    def descriptors(self) -> list[int]:
        """Those of the connections that are open."""
        connections = [transport.get_extra_info("socket") for transport in self._connections]
        return [connection.fileno() for connection in connections if connection.fileno() >= 0]


def _make_loop() -> asyncio.AbstractEventLoop:
    return _ForkedLoop() if hasattr(os, "fork") else asyncio.new_event_loop()


class SharedLoop:
    """The loop. It belongs to the process that makes it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._runner = asyncio.Runner(loop_factory=_make_loop)
        self._loop = self._runner.get_loop()
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references
        self._lead = threading.Lock()
        self._leader: Visit | None = None
        self._visits: set[Visit] = set()  # that are waited for, and of them those that wait for who leads
        self._followers: deque[Visit] = deque()
        self._left: set[Visit] = set()  # work for which nobody waits
        self._has_portal = threading.Lock()  # acquired once, by whoever opens it
        self._portal: threading.Thread | None = None
        self._is_closing = False

    @property
    def is_usable(self) -> bool:
        """Whether it is of this process, and open."""
        return self._process == os.getpid() and not self._is_closing

    # --- waiting ---

    def wait(self, begin: Callable[[Visit], object], interrupts: Interrupts) -> None:
        """Call `begin(visit)`, on the loop or while this thread leads, and wait until the visit is ended.

        Raises KeyboardInterrupt at Ctrl-C, and whatever else interrupts this thread.
        """
        self._check()
        visit = Visit(self)
        begin_visit = functools.partial(begin, visit)
        self._visits.add(visit)
        try:
            with interrupts.told_to(functools.partial(self._tell_from_handler, visit)):
                if _may_step() and self._lead.acquire(blocking=False):
                    self._step_and_release(visit, begin_visit)
                else:
                    self._loop.call_soon_threadsafe(begin_visit)
                while (word := self._next_word(visit)) is not _Word.ENDED:
                    if word is _Word.INTERRUPTED:
                        interrupts.check()
        finally:
            self._visits.discard(visit)
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

    def _check(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("this run belongs to the process that began it, not to its fork")
        if self._loop.is_closed():
            raise RunError("the Swarm was closed while this run was open")
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:
                raise ConfigurationError(
                    "an async function cannot call the Swarm that runs it, which would wait for itself: use AsyncSwarm "
                    "there, or make it a plain function"
                )

    # --- on the loop, or by who leads ---

    def tell(self, visit: Visit, word: _Word) -> None:
        """Tell a waiting thread something."""
        visit.inbox.put(word)
        if self._leader is visit:
            self._loop.stop()

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task on the loop, in a copy of the current context."""
        return self._loop.create_task(work)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call it in the next pass of the loop."""
        self._loop.call_soon(callback)

    # --- taking turns ---

    def _tell_from_handler(self, visit: Visit) -> None:
        visit.inbox.put(_Word.INTERRUPTED)
        if self._leader is visit:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _next_word(self, visit: Visit) -> _Word:
        while visit.inbox.empty():
            self._check()
            if not _may_step():
                self._open_portal()
                break
            if self._lead.acquire(blocking=False):
                self._step_and_release(visit)
                continue
            with self._following(visit):
                if self._lead.locked():  # whoever leads now will pass on
                    return visit.inbox.get()
        return visit.inbox.get()

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
        """Step the loop until there is a word for `visit`. This thread leads; afterwards it does not."""
        self._leader = visit
        try:
            if begin is not None:
                begin()
            if patience is not None:
                self._loop.call_later(patience, self.tell, visit, _Word.INTERRUPTED)
            while visit.inbox.empty():
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
            self._open_portal()

    def _open_portal(self) -> None:
        if self._has_portal.acquire(blocking=False):
            self._portal = threading.Thread(target=self._be_portal, name="aswarm portal", daemon=True)
            with suppress(RuntimeError):  # the program is at its end
                self._portal.start()

    def _be_portal(self) -> None:
        with self._lead:
            while not self._is_closing:
                try:
                    self._loop.run_forever()
                except BaseException:
                    logger.exception("a task that a function has started and left raised what ends an event loop")
        self._shut()

    # --- ending ---

    def close(self) -> None:
        """End what is open, cancel runs of other threads, and close the loop. What does not end is left after seconds."""
        if not self.is_usable:
            return
        self._is_closing = True
        if self._portal is None and _may_step():
            self._shut()
            return
        self._open_portal()
        with suppress(RuntimeError):  # it has closed the loop already
            self._loop.call_soon_threadsafe(self._loop.stop)
        if self._portal is not threading.current_thread() and self._portal is not None:
            self._portal.join(2 * _PATIENCE)

    def _shut(self) -> None:
        visit = Visit(self)
        self._loop.call_soon_threadsafe(self._carry_out, self._end_all, visit)
        if not self._lead.acquire(timeout=_PATIENCE):
            return  # something blocks the loop in another thread
        self._step_and_release(visit, patience=_PATIENCE)
        if visit.inbox.get() is _Word.ENDED:
            self._runner.close()
        else:
            self._loop.set_exception_handler(lambda _loop, _context: None)
            self._loop.close()
        for left in tuple(self._visits):
            left.inbox.put(_Word.LEAD)  # and it will find the loop closed

    async def _end_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    # --- after a fork, in the child ---

    def abandon(self) -> None:
        """Cut the connections that the child inherited. They refer to the loop, so `forget` it later."""
        if isinstance(self._loop, _ForkedLoop) and (descriptors := self._loop.descriptors()):
            cut(descriptors)

    def forget(self) -> None:
        """Close the inherited loop, when nothing refers to it any more."""
        with suppress(RuntimeError):  # it was running at the fork
            self._loop.close()


def _may_step() -> bool:
    """Whether this thread can step a loop: none runs in it, of asyncio or trio."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return False
    with suppress(sniffio.AsyncLibraryNotFoundError):
        sniffio.current_async_library()
        return False
    return True
