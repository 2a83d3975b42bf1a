"""The readers of a run: Swarm's dicts (`ClassicStream`), typed events (`EventStream`), or only the response (`to_end`).

They convert the events of the loop. No task group and no cancel scope is open while the consumer holds an event.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

import anyio

from aswarm._runtime.backend import BackgroundTask, HiddenGenerators, Work, task_spawner
from aswarm._values.agent import Response
from aswarm._values.errors import AswarmError, set_attribute
from aswarm._values.events import (
    CompletionDelta,
    CompletionFinished,
    Event,
    LoopEvent,
    RunFinished,
    TurnStarted,
    typed_events,
)

from .execution import Emit
from .options import Messages
from .state import RunState

logger = logging.getLogger("aswarm")

ClassicEvent = dict[str, Any]
E = TypeVar("E")


# --- the events of a turn's tools -------------------------------------------------------------------------------------

# Runs work that emits events, and yields them: after the work, or live while the work runs in its own task.
EventDelivery: TypeAlias = Callable[[Callable[[Emit], Awaitable[None]]], AsyncGenerator[LoopEvent, None]]


async def deliver_after(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[LoopEvent, None]:
    """Run the work inside one await, then yield its events. Nothing is open while the consumer holds an event."""
    events: list[LoopEvent] = []
    await work(events.append)
    for event in events:
        yield event


async def deliver_live(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[LoopEvent, None]:
    """Run the work in its own task and yield its events as they come.

    A task group would stay open while the consumer holds an event. A generator that the consumer drops is closed in another
    task, and the group would cancel that task (PEP 789).
    """
    events: deque[LoopEvent] = deque()
    news = anyio.Event()
    is_over = False

    def put(event: LoopEvent) -> None:  # never blocks and never fails: a reader must not slow down a tool
        events.append(event)
        news.set()

    def close() -> None:
        nonlocal is_over
        is_over = True
        news.set()

    task = BackgroundTask(functools.partial(work, put), on_end=close)
    try:
        while events or not is_over:
            while events:
                yield events.popleft()
            if not is_over:
                news = anyio.Event()
                await news.wait()
        await task.result()
    finally:
        await task.stop()


# --- reading a run ----------------------------------------------------------------------------------------------------


async def to_end(state: RunState, events: AsyncGenerator[LoopEvent, None]) -> Response:
    """Run to the end and return the response. An exception of other code gets `.response` too, if it can have attributes."""
    try:
        async with aclosing(events):
            async for _ in events:
                pass
    except BaseException as error:
        if not isinstance(error, AswarmError):
            with suppress(Exception):  # nothing may replace a cancellation
                set_attribute(error, "response", state.response)
        raise
    return state.response


async def _classic(events: AsyncGenerator[LoopEvent, None]) -> AsyncGenerator[ClassicEvent, None]:
    has_started = False
    async with aclosing(events):
        async for event in events:
            if isinstance(event, CompletionDelta | CompletionFinished) and not has_started:
                has_started = True
                yield {"delim": "start"}
            if isinstance(event, CompletionDelta):
                yield event.delta
            elif has_started and isinstance(event, CompletionFinished | TurnStarted | RunFinished):
                has_started = False  # also after a completion that a budget has cut
                yield {"delim": "end"}
            if isinstance(event, RunFinished):
                yield {"response": event.response}


async def typed(events: AsyncGenerator[LoopEvent, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(events):
        async for event in events:
            if isinstance(event, CompletionDelta):
                for piece in typed_events(event.delta):
                    yield piece
            else:
                yield event


class _Reading(Generic[E]):
    """The generators of one run, closed once: by the stream, or after the stream was dropped.

    The generators must not be collected together with the stream. The event loop would then close each of them in its own
    task at the same time, and the outer generators would fail, because the inner generators are running.
    """

    def __init__(self, events: AsyncGenerator[E, None]) -> None:
        self.events = events
        self.is_running = False
        self._closed: anyio.Event | None = None

    async def close(self) -> None:
        """Close the generators. A second caller waits until the first one has closed them."""
        if self._closed is not None:
            await self._closed.wait()
            return
        if self.is_running:
            raise _busy()
        self._closed = anyio.Event()
        try:
            await self.events.aclose()
        finally:
            self._closed.set()


def _busy() -> RuntimeError:
    return RuntimeError("this run is being read by another task; read and close it in one task at a time")


def _close_dropped(reading: _Reading[Any], state: RunState, spawn: Callable[[Work], object]) -> None:
    with suppress(RuntimeError):  # the event loop is closed
        spawn(functools.partial(_close_and_log, reading, state))


async def _close_and_log(reading: _Reading[Any], state: RunState) -> None:
    try:
        await reading.close()
    except Exception:
        # There is no caller to raise to, and an exception of a system task of trio ends the whole program.
        logger.exception("a run that was dropped could not be closed cleanly", extra=state.log_fields)


class _Stream(Generic[E]):
    """Base class of both streams: the state of the run, reading, and the end of reading."""

    def __init__(self, state: RunState, events: AsyncGenerator[E, None]) -> None:
        self._state = state
        self._reading = _Reading(events)
        self._when_dropped: weakref.finalize[..., Any] | None = None

    @property
    def run_id(self) -> str:
        """The id of the run: `run_id`, or a new id."""
        return self._state.id

    @property
    def response(self) -> Response:
        """The response so far; valid at any time, however the run ended."""
        return self._state.response

    @property
    def partial(self) -> str:
        """The text of the unfinished completion, which is in no message."""
        return self._state.partial

    @property
    def partial_output(self) -> Any:
        """The typed answer so far, for display: plain data, neither validated nor converted, or None.

        Each access parses it. It keeps its value until the next completion starts. After the run, use `response.output`.
        """
        return self._state.partial_output

    async def _step(self, step: Callable[[], Awaitable[E]]) -> E:
        reading, state = self._reading, self._state
        if self._when_dropped is None:
            self._when_dropped = weakref.finalize(self, _close_dropped, reading, state, task_spawner())
            self._when_dropped.atexit = False
        if reading.is_running:
            raise _busy()
        reading.is_running = True
        try:
            # The loop starts no generator between the chunks of a completion, unless a budget may cut it.
            starts = state.accumulator is None or (state.budget is not None and state.budget.may_cut)
            return await (HiddenGenerators(step()) if starts else step())
        except BaseException:
            self._when_dropped.detach()  # the exception has already closed the generator
            raise
        finally:
            reading.is_running = False

    def __anext__(self) -> Coroutine[Any, Any, E]:
        return self._step(self._reading.events.__anext__)

    async def aclose(self) -> None:
        """End the run: close the HTTP response, cancel and await tools. `response` contains the results so far."""
        await self._reading.close()
        self._state.ending.is_over = True
        if self._when_dropped is not None:
            self._when_dropped.detach()


class ClassicStream(_Stream[ClassicEvent], AsyncGenerator[ClassicEvent, None]):
    """The async generator of Swarm's events that `run(stream=True)` returns. `await` returns the stream itself.

    Each turn yields `{"delim": "start"}` when the answer starts, the deltas, and `{"delim": "end"}` before tools run. The
    last event is `{"response": Response}`. A delta has `role`, `content` and `tool_calls` (None if absent), other keys of the
    provider, and, if it is the first of a message, `sender`. A yielded dict is never changed afterwards.

    Dropping the last reference ends the run, as `aclose()` does. After a `break`, a stream that still has a name stays open
    until the name is deleted: use `contextlib.aclosing`. A stream that its own tools or context variables refer to is not
    collected while it is open.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None]) -> None:
        super().__init__(state, _classic(events))

    def __await__(self) -> Generator[Any, Any, Self]:
        """Return the stream, so that `async for event in await swarm.run(..., stream=True)` works too."""
        return self
        yield  # makes this a generator that never waits

    async def asend(self, value: None) -> ClassicEvent:
        """Return the next event, as `asend` of any async generator."""
        return await self._step(functools.partial(self._reading.events.asend, value))

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> ClassicEvent:
        """Raise an exception in the run, as `athrow` of any async generator."""
        error = (typ,) if val is None and tb is None else (typ, val, tb)
        return await self._step(functools.partial(self._reading.events.athrow, *error))


class EventStream(_Stream[Event], AsyncIterator[Event]):
    """The async context manager that `stream()` returns. Inside the block, iterate over it to get live typed events.

    Leaving the block in any way ends the run: the HTTP response is closed, async tools are cancelled and awaited.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None]) -> None:
        super().__init__(state, typed(events))
        self._is_open = False

    def send(self, messages: Messages) -> None:
        """Send messages of the user to the running run: a str for one message, or a list as for `run`.

        They are appended to the history after all results of the current turn, before the next completion. A run that would
        end with an answer continues with another turn instead. If no further completion is allowed (`max_turns`, a budget), or
        the run fails or is closed, they are at the end of `response.messages`. If calls stay open, no message may follow them,
        so the messages are in `unsent` instead: send them to the run that resumes.

        Call it in the event loop of the run, from any task. Raises RuntimeError if the run has ended, and ConfigurationError
        for messages whose role is not "user".
        """
        self._state.send(messages)

    @property
    def unsent(self) -> list[dict[str, Any]]:
        """The messages of `send` that are not in `response.messages`: not yet, or not at all because calls stay open."""
        return self._state.unsent

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __anext__(self) -> Coroutine[Any, Any, Event]:
        if not self._is_open:
            raise RuntimeError("use `async with swarm.stream(...) as run:`, so that leaving the block ends the run")
        return super().__anext__()
