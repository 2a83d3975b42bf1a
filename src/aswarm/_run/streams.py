"""The readers of a run: Swarm's dicts (`ClassicStream`), typed events (`EventStream`), or only the response (`to_end`).

They read the events of the loop and convert them. While the consumer handles an event, no task group and no cancel scope is
open (PEP 789).
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
    Emit,
    Event,
    LoopEvent,
    RunFinished,
    TextDelta,
    ToolCallDelta,
    TurnStarted,
    typed_events,
)
from aswarm._values.output import T_co
from aswarm._values.public_names import explained
from aswarm._values.run_keywords import Messages

from .state import RunState

logger = logging.getLogger("aswarm")

ClassicEvent = dict[str, Any]
E = TypeVar("E")


# --- the events of a turn's tools -------------------------------------------------------------------------------------

# Runs a function that emits events, and yields these events: after the function has ended, or live while it runs in a task.
EventDelivery: TypeAlias = Callable[[Callable[[Emit], Awaitable[None]]], AsyncGenerator[LoopEvent, None]]


async def deliver_after(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[LoopEvent, None]:
    """Run the work to its end, then yield its events. No task is needed, because nothing runs between the events."""
    events: list[LoopEvent] = []
    await work(events.append)
    for event in events:
        yield event


async def deliver_live(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[LoopEvent, None]:
    """Run the work in a background task, and yield its events as they come.

    A task group would stay open across a `yield`. If the consumer drops the generator, the event loop closes it in another
    task, and the task group would cancel that task: https://peps.python.org/pep-0789/
    """
    events: deque[LoopEvent] = deque()
    news = anyio.Event()
    is_over = False

    def put(event: LoopEvent) -> None:  # never blocks and never fails, so a slow consumer does not slow down a tool
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


async def to_end(state: RunState, events: AsyncGenerator[LoopEvent, None], record: Emit | None = None) -> Response:
    """Read all events, and return the response. Set `.response` of an exception that does not come from aswarm, if possible.

    `record`: gets each event.
    """
    try:
        async with aclosing(events):
            async for event in events:
                if record is not None:
                    record(event)
    except BaseException as error:
        if not isinstance(error, AswarmError):
            with suppress(Exception):  # a failure here must not replace the exception, such as a cancellation
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
                has_started = False  # after a completion that a budget has cancelled, another event marks the end
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
    """The nested async generators of one run. Either the stream closes them, or a finalizer after the stream was dropped.

    This object outlives a dropped stream, so that the generators are not collected together with it. Otherwise the event
    loop would close each generator in its own task at the same time. The outer generators would then fail, because the
    inner ones are already running.
    """

    def __init__(self, events: AsyncGenerator[E, None]) -> None:
        self.events = events
        self.is_running = False
        self._closed: anyio.Event | None = None

    async def close(self) -> None:
        """Close the generators. A second caller waits until the first caller has closed them."""
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
    with suppress(RuntimeError):  # the event loop is already closed
        spawn(functools.partial(_close_and_log, reading, state))


async def _close_and_log(reading: _Reading[Any], state: RunState) -> None:
    try:
        await reading.close()
    except Exception:
        # No caller can catch the exception. On trio this is a system task, whose exception would crash the whole program.
        logger.exception("a run that was dropped could not be closed cleanly", extra=state.log_fields)


class _Stream(Generic[E, T_co]):
    """Base class of both streams: reads the events of a run and closes the run."""

    def __init__(self, state: RunState, events: AsyncGenerator[E, None]) -> None:
        self._state = state
        self._reading = _Reading(events)
        self._when_dropped: weakref.finalize[..., Any] | None = None

    @property
    def run_id(self) -> str:
        """The id of the run: the argument `run_id`, or a new id."""
        return self._state.id

    @property
    def response(self) -> Response[T_co]:
        """The response so far. It is valid at any time, even after an error or a cancellation."""
        return self._state.response

    @property
    def partial(self) -> str:
        """The text of the unfinished completion, which is in no message."""
        return self._state.partial

    @property
    def partial_output(self) -> Any:
        """The typed answer so far, or None. It is plain data for display, neither validated nor converted.

        Each access parses the text again. The value stays until the next completion starts. After the run, use
        `response.output`. `EventStream.partial_outputs` yields each value.
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
            # `HiddenGenerators` is needed only for steps that start a generator. Between the chunks of a completion, the loop
            # starts one only if a budget may cancel the completion.
            starts = state.accumulator is None or (state.budget is not None and state.budget.may_cut)
            return await (HiddenGenerators(step()) if starts else step())
        except BaseException:
            self._when_dropped.detach()  # an exception, even StopAsyncIteration, has already closed the generator
            raise
        finally:
            reading.is_running = False

    def __anext__(self) -> Coroutine[Any, Any, E]:
        return self._step(self._reading.events.__anext__)

    async def aclose(self) -> None:
        """End the run: close the HTTP response, cancel the tools and await their end. `response` has the results so far."""
        await self._reading.close()
        self._state.ending.is_over = True
        if self._when_dropped is not None:
            self._when_dropped.detach()


@explained
class ClassicStream(_Stream[ClassicEvent, Any], AsyncGenerator[ClassicEvent, None]):
    """The async generator of Swarm's events. `run(stream=True)` returns it. Awaiting the stream returns the stream itself.

    Each turn yields `{"delim": "start"}` when the answer starts, then the deltas, and `{"delim": "end"}` before tools run.
    The last event is `{"response": Response}`. A delta has the keys `role`, `content` and `tool_calls` (None if absent), and
    other keys of the provider. The first delta of a message also has `sender`. A yielded dict never changes afterwards.

    If the last reference to the stream is dropped, the run ends as with `aclose()`. After a `break`, a variable may still
    refer to the stream, and the run stays open: use `contextlib.aclosing`. If tools or context variables of the run refer to
    the stream, Python cannot collect it while it is open.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None]) -> None:
        super().__init__(state, _classic(events))

    def __await__(self) -> Generator[Any, Any, Self]:
        """Return the stream, so that `async for event in await swarm.run(..., stream=True)` works too."""
        return self
        yield  # makes this a generator that never waits

    async def asend(self, value: None) -> ClassicEvent:
        """Return the next event, like `asend` of any async generator."""
        return await self._step(functools.partial(self._reading.events.asend, value))

    async def athrow(self, typ: Any, val: Any = None, tb: Any = None) -> ClassicEvent:
        """Raise an exception in the run, like `athrow` of any async generator."""
        error = (typ,) if val is None and tb is None else (typ, val, tb)
        return await self._step(functools.partial(self._reading.events.athrow, *error))


# The events after which `partial_output` may have another value.
_CHANGES_OUTPUT = (TextDelta, ToolCallDelta, CompletionFinished)


@explained
class EventStream(_Stream[Event, T_co], AsyncIterator[Event]):
    """The async context manager that `stream()` returns. Inside its block, iterate over it to get live typed events.

    Leaving the block ends the run, even by `break` or an exception: it closes the HTTP response, and cancels and awaits tools.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None]) -> None:
        super().__init__(state, typed(events))
        self._is_open = False

    def send(self, messages: Messages) -> None:
        """Send messages of the user to the running run: a str for one message, or a list as for `run`.

        The history gets them after the tool results of the current turn, before the next completion. If the model has just
        answered, the run continues with another turn. If no further completion is allowed (`max_turns`, a budget), or the run
        fails or is closed, the sent messages are at the end of `response.messages`. If the run stops with open calls, no
        message may follow these calls, so the sent messages are in `unsent`: send them to the run that resumes.

        Call `send` in the event loop of the run, from any task. Raises RuntimeError if the run has ended, and
        ConfigurationError for messages whose role is not "user".
        """
        self._state.send(messages)

    @property
    def unsent(self) -> list[dict[str, Any]]:
        """The messages of `send` that are not in `response.messages` yet, because the turn has not ended or calls are open."""
        return self._state.unsent

    def partial_outputs(self) -> AsyncIterator[Any]:
        """Read the events of the run, and yield `partial_output` each time that it has changed.

        This works in every mode of `Output`: the model may write the answer as text, or as the arguments of a call. After an
        invalid answer, the values start again.
        """
        return _PartialOutputs(self)

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise RuntimeError("a run can be entered only once; call swarm.stream(...) again")
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


class _PartialOutputs(AsyncIterator[Any]):
    """The values of `partial_output`. Not an async generator: trio warns if the reader leaves a generator with a `break`."""

    def __init__(self, stream: EventStream[Any]) -> None:
        self._stream = stream
        self._last: Any = None

    async def __anext__(self) -> Any:
        async for event in self._stream:
            if isinstance(event, _CHANGES_OUTPUT):
                value = self._stream.partial_output
                if value is not None and value != self._last:
                    self._last = value
                    return value
        raise StopAsyncIteration
