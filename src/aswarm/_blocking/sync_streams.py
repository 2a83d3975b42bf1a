"""The two streams of a run without `await`: plain iterators of Swarm's dicts, and of typed events.

Each stream waits for the events of its async counterpart. Between two reads, only the async functions of the run continue.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, Generic, Self, TypeVar

from aswarm._run.streams import ClassicEvent, ClassicStream, EventStream
from aswarm._values.agent import Response
from aswarm._values.events import Event
from aswarm._values.output import T_co
from aswarm._values.run_keywords import Messages

from .caller import Caller
from .event_loop import Interrupts

logger = logging.getLogger("aswarm")
S_co = TypeVar("S_co", bound=ClassicStream | EventStream[Any], covariant=True)
R = TypeVar("R")


class _SyncStream(Generic[S_co, T_co]):
    """Base class of both streams."""

    def __init__(self, stream: S_co, caller: Caller) -> None:
        self._stream = stream
        self._caller = caller
        self._reading = threading.Lock()
        self._when_dropped = weakref.finalize(self, caller.close_dropped, functools.partial(_close, stream))
        self._when_dropped.atexit = False  # at the end of the program, the event loop closes all open streams
        self._is_open = False

    @property
    def response(self) -> Response[T_co]:
        """The response so far. It is valid at any time, even after an error."""
        return self._stream.response

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._stream.run_id

    @property
    def partial(self) -> str:
        """The text of the unfinished completion. It is not in a message yet."""
        return self._stream.partial

    @property
    def partial_output(self) -> Any:
        """The unfinished typed answer; see `EventStream.partial_output`."""
        return self._stream.partial_output

    def _step(self, step: Callable[[], Awaitable[R]]) -> R:
        with Interrupts() as interrupts:
            self._start_step()
            try:
                return self._caller.wait_for(step, interrupts)
            except StopAsyncIteration:
                self._caller.finish()
                self._when_dropped.detach()
                raise StopIteration from None
            except BaseException:
                self._end(interrupts)  # the run may still be active: Ctrl-C may come together with an event
                raise
            finally:
                self._reading.release()

    def close(self) -> None:
        """Stop the run: close the HTTP response, cancel the tools and wait for them. `response` has all messages until then."""
        if self._caller.loop.is_usable:  # not in a fork, and not while the program ends
            with Interrupts() as interrupts:
                self._start_step()
                self._end_step(interrupts)

    def _close_if_idle(self) -> None:
        """Close the stream. Do nothing if another thread is reading it, or if a function of the run has called this."""
        with Interrupts() as interrupts:
            if self._reading.acquire(blocking=False):
                self._end_step(interrupts)

    def _end_step(self, interrupts: Interrupts) -> None:
        try:
            self._end(interrupts)
        finally:
            self._reading.release()

    def _start_step(self) -> None:
        self._caller.loop.check()
        if not self._reading.acquire(blocking=False):
            raise RuntimeError("this run is already being read; read and close it in one thread, one step at a time")

    def _end(self, interrupts: Interrupts) -> None:
        # After a second Ctrl-C, no thread waits for the run, which ends on the event loop.
        if self._when_dropped.alive and self._caller.waits:
            self._caller.leave(self._stream.aclose, interrupts)
        self._when_dropped.detach()

    def __enter__(self) -> Self:
        if self._is_open:
            raise RuntimeError("a run can be entered only once; call the method of the swarm again")
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _close(stream: ClassicStream | EventStream[Any]) -> None:
    try:
        await stream.aclose()
    except Exception:
        fields = {"run_id": stream.run_id, "agent": stream.response.agent.name}
        logger.exception("a run that was dropped could not be closed cleanly", extra=fields)


class SyncClassicStream(_SyncStream[ClassicStream, Any], Generator[ClassicEvent, None, None]):
    """The generator of Swarm's events that `Swarm.run(stream=True)` returns; see `ClassicStream`.

    The run ends when the generator is closed, when its `with` block ends, or when its last reference is dropped.
    """

    def __next__(self) -> ClassicEvent:
        return self._step(self._stream.__anext__)

    def send(self, value: None) -> ClassicEvent:
        """See `Generator.send`."""
        return self._step(functools.partial(self._stream.asend, value))

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> ClassicEvent:
        """See `Generator.throw`."""
        return self._step(functools.partial(self._stream.athrow, _exception(typ, val, tb)))


def _exception(typ: Any, val: Any, tb: Any) -> BaseException:
    """Return the exception to throw. `throw` has one argument, or the three arguments of older Pythons."""
    if isinstance(typ, BaseException):
        return typ
    error: BaseException = val if isinstance(val, BaseException) else typ() if val is None else typ(val)
    return error if tb is None else error.with_traceback(tb)


class SyncEventStream(_SyncStream[EventStream[T_co], T_co], Iterator[Event]):
    """The typed events of a run, from `Swarm.stream()`: enter it with `with`, then iterate.

    The end of the block ends the run. If the last event was the `ToolCallStarted` of a plain function, this function is not
    called, and its call stays open.
    """

    def send(self, messages: Messages) -> None:
        """Send messages of the user to the run while it runs, from any thread; see `EventStream.send`."""
        self._caller.loop.do(functools.partial(self._stream.send, messages))

    @property
    def unsent(self) -> list[dict[str, Any]]:
        """The messages of `send` that are not in `response.messages`. See `EventStream.unsent`."""
        return self._stream.unsent

    def partial_outputs(self) -> Generator[Any]:
        """Read the events of the run, and yield each new `partial_output`; see `EventStream.partial_outputs`."""
        values = self._stream.partial_outputs()
        while True:
            try:
                value = self._step(values.__anext__)
            except StopIteration:
                return
            yield value

    def __enter__(self) -> Self:
        super().__enter__()
        self._step(self._stream.__aenter__)
        return self

    def __next__(self) -> Event:
        if not self._is_open:
            raise RuntimeError("use `with swarm.stream(...) as run:`, so that the end of the block ends the run")
        return self._step(self._stream.__anext__)
