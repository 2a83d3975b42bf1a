"""The two ways to watch a run without `await`: Swarm's dicts and typed events, from plain iterators.

Each only waits for what its async twin gives. Between two events nothing of the run moves.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from aswarm._agent import Response
from aswarm._events import Event
from aswarm._run.streams import ClassicEvent, ClassicStream, EventStream

from .caller import Caller, for_nobody
from .interrupts import Interrupts

logger = logging.getLogger("aswarm")
S = TypeVar("S", bound=ClassicStream | EventStream)
T = TypeVar("T")


class _SyncStream(Generic[S]):
    """What both ways have in common."""

    def __init__(self, stream: S, caller: Caller) -> None:
        self._stream = stream
        self._caller = caller
        self._is_read = threading.Lock()
        self._when_dropped = weakref.finalize(self, _close_dropped, stream, caller)

    @property
    def response(self) -> Response:
        """What has happened so far; valid at any time, however the run ended."""
        return self._stream.response

    @property
    def partial(self) -> str:
        """The text of a completion that has not finished, which is in no message."""
        return self._stream.partial

    def _step(self, step: Callable[[], Awaitable[T]]) -> T:
        with Interrupts() as interrupts:
            self._begin_step()
            try:
                return self._caller.wait_for(step, interrupts)
            except StopAsyncIteration:
                self._when_dropped.detach()
                raise StopIteration from None
            except BaseException:
                self._end(interrupts)  # it has ended; unless Ctrl-C came at the very moment of an event
                raise
            finally:
                self._is_read.release()

    def close(self) -> None:
        """End the run: close the response, cancel and await tools. `response` says what had happened."""
        if not self._caller.loop.is_usable:  # in a fork, or at the end of the program
            return
        with Interrupts() as interrupts:
            self._begin_step()
            try:
                self._end(interrupts)
            finally:
                self._is_read.release()

    def close_if_idle(self) -> None:
        """Close it, unless another thread, or a function further out, is reading it."""
        if not self._is_read.locked():
            self.close()

    def _begin_step(self) -> None:
        self._caller.loop.check()
        if not self._is_read.acquire(blocking=False):
            raise RuntimeError("this run is being read already; read and close it in one thread, one step at a time")

    def _end(self, interrupts: Interrupts) -> None:
        # Where nobody waits any more, after a second Ctrl-C, it ends by itself.
        if self._when_dropped.alive and self._caller.loop.is_usable and not self._caller.is_gone:
            self._caller.wait_for(self._stream.aclose, interrupts)
        self._when_dropped.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _close_dropped(stream: ClassicStream | EventStream, caller: Caller) -> None:
    caller.is_gone = True
    with Interrupts():
        caller.loop.leave(functools.partial(_close_for_nobody, stream))


async def _close_for_nobody(stream: ClassicStream | EventStream) -> None:
    try:
        await for_nobody(stream.aclose)
    except Exception:
        logger.exception("a run that was dropped could not be closed cleanly")


class SyncClassicStream(_SyncStream[ClassicStream], Generator[ClassicEvent, None, None]):
    """What `Swarm.run(stream=True)` returns: a generator of Swarm's events; see `ClassicStream`.

    Closing it, leaving its `with` block or dropping the last reference ends the run.
    """

    def __next__(self) -> ClassicEvent:
        return self._step(self._stream.__anext__)

    def send(self, value: None) -> ClassicEvent:
        """As of any generator."""
        return self._step(functools.partial(self._stream.asend, value))

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> ClassicEvent:
        """As of any generator."""
        return self._step(functools.partial(self._stream.athrow, _exception(typ, val, tb)))


def _exception(typ: Any, val: Any, tb: Any) -> BaseException:
    """What is to be thrown; Python itself takes it in one piece from now on."""
    if isinstance(typ, BaseException):
        return typ
    error: BaseException = val if isinstance(val, BaseException) else typ() if val is None else typ(val)
    return error if tb is None else error.with_traceback(tb)


class SyncEventStream(_SyncStream[EventStream], Iterator[Event]):
    """What `Swarm.stream()` returns: `with` it, then iterate over the typed events. Leaving the block ends the run."""

    _is_open = False

    def __enter__(self) -> Self:
        self._step(self._stream.__aenter__)
        self._is_open = True
        return self

    def __next__(self) -> Event:
        if not self._is_open:
            raise RuntimeError("use `with swarm.stream(...) as run:`, so that leaving the block ends the run")
        return self._step(self._stream.__anext__)
