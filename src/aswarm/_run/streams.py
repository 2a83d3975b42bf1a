"""The ways to read a run: Swarm's dicts (`ClassicStream`), typed events (`EventStream`), or only its end (`to_end`).

They translate what the loop yields. No task and no cancel scope is held while the consumer holds an event.
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

from aswarm._agent import Response
from aswarm._errors import AswarmError, set_attribute
from aswarm._events import CompletionDelta, CompletionFinished, Event, LoopEvent, RunFinished, TurnStarted, typed_events
from aswarm._runtime.backend import BackgroundTask, HiddenGenerators, Work, task_spawner

from .execution import Emit
from .options import Messages
from .state import RunState

logger = logging.getLogger("aswarm")

ClassicEvent = dict[str, Any]
E = TypeVar("E")


# --- the events of a turn's tools -------------------------------------------------------------------------------------

# Runs work that emits events, and yields them: after the work, or live from a task of its own.
EventDelivery: TypeAlias = Callable[[Callable[[Emit], Awaitable[None]]], AsyncGenerator[LoopEvent, None]]


async def deliver_after(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[LoopEvent, None]:
    """Run the work inside one await; its events follow. Nothing is open while the consumer holds an event."""
    events: list[LoopEvent] = []
    await work(events.append)
    for event in events:
        yield event


async def deliver_live(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[LoopEvent, None]:
    """Run the work in a task of its own and yield its events as they come.

    A task group here would stay open while the consumer holds an event. A generator that the consumer drops is closed
    in another task, and the group would cancel that task (PEP 789).
    """
    queue = _EventQueue()
    task = BackgroundTask(functools.partial(work, queue.put), on_end=queue.close)
    try:
        async with aclosing(queue.read()) as events:
            async for event in events:
                yield event
        await task.result()
    finally:
        await task.stop()


class _EventQueue:
    """Events from one task to another. `put` never waits and never fails: a reader must not slow down a tool."""

    def __init__(self) -> None:
        self._events: deque[LoopEvent] = deque()
        self._news = anyio.Event()
        self._is_closed = False

    def put(self, event: LoopEvent) -> None:
        self._events.append(event)
        self._news.set()

    def close(self) -> None:
        self._is_closed = True
        self._news.set()

    async def read(self) -> AsyncGenerator[LoopEvent, None]:
        while self._events or not self._is_closed:
            while self._events:
                yield self._events.popleft()
            if not self._is_closed:
                self._news = anyio.Event()
                await self._news.wait()


# --- reading a run ----------------------------------------------------------------------------------------------------


async def to_end(state: RunState, events: AsyncGenerator[LoopEvent, None]) -> Response:
    """Run to the end. An exception of other code gets `.response` too, if it can have attributes."""
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
    has_begun = False
    async with aclosing(events):
        async for event in events:
            if isinstance(event, CompletionDelta | CompletionFinished) and not has_begun:
                has_begun = True
                yield {"delim": "start"}
            if isinstance(event, CompletionDelta):
                yield event.delta
            elif isinstance(event, CompletionFinished):
                has_begun = False
                yield {"delim": "end"}
            elif isinstance(event, TurnStarted | RunFinished):
                if has_begun:  # a budget has cut the completion
                    has_begun = False
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

    The generators must not be collected together with the stream. The event loop would then close all of them at the same
    time, each in a task of its own, and they would fail because the others are running.
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
        self.check_idle()
        self._closed = anyio.Event()
        try:
            await self.events.aclose()
        finally:
            self._closed.set()

    def check_idle(self) -> None:
        """Raise RuntimeError where another task is reading."""
        if self.is_running:
            raise RuntimeError("this run is being read by another task; read and close it in one task at a time")


def _close_dropped(reading: _Reading[Any], state: RunState, spawn: Callable[[Work], object]) -> None:
    with suppress(RuntimeError):  # the event loop is closed
        spawn(functools.partial(_close_and_log, reading, state))


async def _close_and_log(reading: _Reading[Any], state: RunState) -> None:
    try:
        await reading.close()
    except Exception:
        # No caller is left. An exception that leaves a system task of trio ends the whole program.
        logger.exception("a run that was dropped could not be closed cleanly", extra=state.log_fields)


class _Stream(Generic[E]):
    """What both kinds of stream share: the state of the run, reading, and the end of reading."""

    def __init__(self, state: RunState, events: AsyncGenerator[E, None]) -> None:
        self._state = state
        self._reading = _Reading(events)
        self._when_dropped: weakref.finalize[..., Any] | None = None

    @property
    def run_id(self) -> str:
        """The id of the run: the one that was given, or a new one."""
        return self._state.id

    @property
    def response(self) -> Response:
        """What has happened so far; valid at any time, however the run ended."""
        return self._state.response

    @property
    def partial(self) -> str:
        """The text of a completion that has not finished; it is in no message."""
        return self._state.partial

    @property
    def partial_output(self) -> Any:
        """The answer with a type that is being written: plain data so far, neither checked nor converted, or None.

        It stays as it is until the next completion begins. Each access parses it. It is for showing; `response.output` has the answer once the run has ended.
        """
        return self._state.partial_output

    async def _step(self, step: Callable[[], Awaitable[E]]) -> E:
        reading = self._reading
        if self._when_dropped is None:
            self._when_dropped = weakref.finalize(self, _close_dropped, reading, self._state, task_spawner())
            self._when_dropped.atexit = False
        reading.check_idle()
        reading.is_running = True
        try:
            # No generator of ours begins between the chunks of a completion, unless another completion follows its cut.
            begins = self._state.accumulator is None or self._state.may_be_cut
            return await (HiddenGenerators(step()) if begins else step())
        except BaseException:
            self._when_dropped.detach()  # the exception has ended the generator
            raise
        finally:
            reading.is_running = False

    def __anext__(self) -> Coroutine[Any, Any, E]:
        return self._step(self._reading.events.__anext__)

    async def aclose(self) -> None:
        """End the run: close the response, cancel and await tools. `response` says what had happened."""
        await self._reading.close()
        self._state.has_ended = True
        if self._when_dropped is not None:
            self._when_dropped.detach()


class ClassicStream(_Stream[ClassicEvent], AsyncGenerator[ClassicEvent, None]):
    """What `run(stream=True)` returns: an async generator of Swarm's events, and its own awaitable.

    Per turn `{"delim": "start"}` once the answer begins, the deltas, `{"delim": "end"}` before tools run; last
    `{"response": Response}`. A delta has `role`, `content`, `tool_calls` (None where absent), what else the provider
    sent, and `sender` on the first of a message. A yielded dict is never changed afterwards.

    Dropping the last reference ends the run, as `aclose()` does. After a `break`, a stream that still has a name stays
    open until the name goes: use `contextlib.aclosing`. A stream that its own tools or context variables refer to is not
    collected while it is open.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None]) -> None:
        super().__init__(state, _classic(events))

    def __aiter__(self) -> Self:
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        """Makes `async for event in await swarm.run(..., stream=True)` work too."""
        return self
        yield  # makes this a generator that never waits

    async def asend(self, value: None) -> ClassicEvent:
        """As of any async generator."""
        return await self._step(functools.partial(self._reading.events.asend, value))

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> ClassicEvent:
        """As of any async generator."""
        error = (typ,) if val is None and tb is None else (typ, val, tb)
        return await self._step(functools.partial(self._reading.events.athrow, *error))


class EventStream(_Stream[Event], AsyncIterator[Event]):
    """What `stream()` returns: enter it with `async with`, then iterate over the typed events, which come live.

    Leaving the block in any way ends the run: the HTTP response is closed, async tools are cancelled and awaited.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None]) -> None:
        super().__init__(state, typed(events))
        self._is_open = False

    def send(self, messages: Messages) -> None:
        """Send messages of the user to the run while it is at work: a str as short for one, or a list as for `run`.

        They are appended to its history at the next settled turn: after all results of the turn, before the next completion. A
        run that would end with an answer continues with another turn instead. If no further completion is allowed
        (`max_turns`, a budget), or the run fails or is left, they stand at the end of `response.messages` all the same. Only
        where calls stay open, which nothing may follow, they are in `unsent`: send them to the run that resumes.

        Call it in the event loop of the run, from any task. Raises RuntimeError if the run has ended, and ConfigurationError
        for messages whose role is not "user".
        """
        self._state.send(messages)

    @property
    def unsent(self) -> list[dict[str, Any]]:
        """The messages of `send` that are not in `response.messages`: not yet, or not because the run has left calls open."""
        return self._state.unsent

    async def __aenter__(self) -> Self:
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Event]:
        if not self._is_open:
            raise RuntimeError("use `async with swarm.stream(...) as run:`, so that leaving the block ends the run")
        return super().__anext__()
