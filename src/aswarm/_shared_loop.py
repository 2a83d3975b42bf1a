"""One event loop for any number of threads that wait for what runs on it. Knows nothing of runs and tools.

Whoever waits steps the loop: one thread leads, the others wait, and when the leader has what it came for, another takes
over. So there is no thread beside the callers'. Only where a caller cannot step it, because an event loop runs in its
thread already (a notebook), a portal thread does. One loop, because a client and what users keep between async
functions belong to a loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import selectors
import socket
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from enum import Enum
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import sniffio

from ._errors import ConfigurationError
from ._interrupts import Interrupts

logger = logging.getLogger("aswarm")
T = TypeVar("T")
Work = Callable[[], Awaitable[T]]

# How long the end of the program, or whoever drops a stream, waits for what was open: seconds.
_PATIENCE = 2.0


class _Word(Enum):
    """What a waiting thread is told."""

    ENDED = "what you came for is there"
    INTERRUPTED = "Ctrl-C"
    LEAD = "nobody steps the loop"


class _Visit(Generic[T]):
    """Some work on the loop, and the thread that waits for it."""

    def __init__(self, work: Work[T]) -> None:
        self.work = work
        self.context = contextvars.copy_context()
        self.inbox: SimpleQueue[_Word] = SimpleQueue()  # may be put to by a signal handler
        self.outcome: Future[T] = Future()
        self.task: asyncio.Task[None] | None = None


class SharedLoop:
    """The loop. It is made by whoever constructs this, and belongs to that process."""

    def __init__(self) -> None:
        self._process = os.getpid()
        # At a fork, both processes would share the kernel's table behind an epoll; `poll` has none.
        self._selector = selectors.PollSelector() if hasattr(selectors, "PollSelector") else None
        self._runner = asyncio.Runner(loop_factory=self._make_loop)
        self._loop = self._runner.get_loop()
        self._lead = threading.Lock()
        self._leader: _Visit[Any] | None = None
        self._followers: deque[_Visit[Any]] = deque()
        self._left: set[_Visit[Any]] = set()  # work for which nobody waits
        self._portal: threading.Thread | None = None
        self._is_closing = False

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop() if self._selector is None else asyncio.SelectorEventLoop(self._selector)

    @property
    def is_usable(self) -> bool:
        """Whether it is of this process, and open."""
        return self._process == os.getpid() and not self._loop.is_closed()

    # --- waiting ---

    def run(self, work: Work[T], interrupts: Interrupts) -> T:
        """Run `work` on the loop, in a copy of this thread's context, and wait for its value or exception.

        Raises KeyboardInterrupt at Ctrl-C, and whatever else interrupts this thread; the work is then cancelled.
        """
        self._check()
        visit = _Visit(work)
        self._begin(visit)
        try:
            with interrupts.told_to(lambda: self._tell_from_handler(visit)):
                while (word := self._next_word(visit)) is not _Word.ENDED:
                    if word is _Word.INTERRUPTED:
                        interrupts.check()
        except BaseException:
            self._loop.call_soon_threadsafe(_cancel, visit)
            raise
        finally:
            self._pass_on()
        return visit.outcome.result()

    def leave(self, work: Work[None]) -> None:
        """Have `work` done, by this thread now if it can, else by whoever steps the loop next. Never raises.

        For finalizers: it waits for no other thread, and it may be called at any point of any code, of this class too.
        """
        with suppress(RuntimeError):  # the loop is closed
            if self._process != os.getpid():
                return
            visit = _Visit(work)
            self._left.add(visit)
            self._begin(visit)
            if _may_step() and self._lead.acquire(blocking=False):
                self._step_and_release(visit, _PATIENCE)
            self._pass_on()

    def _check(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("this run belongs to the process that began it, not to its fork")
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:
                raise ConfigurationError(
                    "an async function cannot call the Swarm that runs it, which would wait for itself: use AsyncSwarm "
                    "there, or make it a plain function"
                )

    def _begin(self, visit: _Visit[Any]) -> None:
        self._loop.call_soon_threadsafe(self._start, visit)

    def _start(self, visit: _Visit[Any]) -> None:
        visit.task = self._loop.create_task(self._carry_out(visit), context=visit.context)

    async def _carry_out(self, visit: _Visit[Any]) -> None:
        try:
            visit.outcome.set_result(await visit.work())
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits; in the loop it would stop everything
            visit.outcome.set_exception(error)
        self._left.discard(visit)
        self._tell(visit, _Word.ENDED)

    def _tell(self, visit: _Visit[Any], word: _Word) -> None:
        visit.inbox.put(word)
        if self._leader is visit:
            self._loop.stop()

    def _tell_from_handler(self, visit: _Visit[Any]) -> None:
        visit.inbox.put(_Word.INTERRUPTED)
        if self._leader is visit:
            self._loop.call_soon_threadsafe(self._loop.stop)

    # --- taking turns ---

    def _next_word(self, visit: _Visit[Any]) -> _Word:
        while visit.inbox.empty():
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
    def _following(self, visit: _Visit[Any]) -> Generator[None]:
        self._followers.append(visit)
        try:
            yield
        finally:
            with suppress(ValueError):
                self._followers.remove(visit)

    def _step_and_release(self, visit: _Visit[Any], patience: float | None = None) -> None:
        """Step the loop until there is a word for `visit`. The caller leads; afterwards it does not."""
        self._leader = visit
        try:
            timer = None if patience is None else self._loop.call_later(patience, self._tell, visit, _Word.INTERRUPTED)
            while visit.inbox.empty():
                self._loop.run_forever()
            if timer is not None:
                timer.cancel()
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
        if self._portal is None and not self._is_closing:
            self._portal = threading.Thread(target=self._step_for_ever, name="aswarm portal", daemon=True)
            self._portal.start()

    def _step_for_ever(self) -> None:
        with self._lead:
            while not self._is_closing:
                try:
                    self._loop.run_forever()
                except BaseException:
                    logger.exception("a task of its own that a function has started ended the event loop")

    # --- ending ---

    def close(self) -> None:
        """End what is open and close the loop, unless another thread is using it. Waits two seconds at most."""
        if not self.is_usable:
            return
        self._is_closing = True
        if self._portal is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._portal.join(_PATIENCE)
        if not self._lead.acquire(blocking=False):
            return
        if _may_step():
            self._shut()
        else:
            thread = threading.Thread(target=self._shut, name="aswarm end")
            thread.start()
            thread.join()

    def _shut(self) -> None:
        visit = _Visit(self._end_all)
        self._begin(visit)
        self._step_and_release(visit, _PATIENCE)
        if visit.outcome.done():
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

    def abandon(self) -> None:
        """After a fork, in the child: cut the connections that it inherited, and close them for this process only.

        What is pooled in a client then looks like a connection that the server has closed, and is not used again; the
        parent's are untouched. The loop is kept, because they refer to it.
        """
        _abandoned.append(self)
        if self._selector is None:
            return
        ours, theirs = socket.socketpair()
        theirs.close()
        with ours:
            for key in (self._selector.get_map() or {}).values():
                os.dup2(ours.fileno(), key.fd, inheritable=False)


# Closed by nobody: a loop that was running at the fork cannot be.
_abandoned: list[SharedLoop] = []


def _cancel(visit: _Visit[Any]) -> None:
    if visit.task is not None:
        visit.task.cancel()


def _may_step() -> bool:
    """Whether this thread can step a loop: none runs in it, of asyncio or trio."""
    if sys.is_finalizing():
        return False
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return False
    with suppress(sniffio.AsyncLibraryNotFoundError):
        sniffio.current_async_library()
        return False
    return True
