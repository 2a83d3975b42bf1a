"""The second door: calling a tool; and how the calls of a turn are carried out.

Decides nothing about order or results: the groups come from the plan, the meaning of a value from `_tools`. Whatever a
function does wrong becomes the text of its tool message; only what is not an `Exception` goes through.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import anyio
import anyio.lowlevel

from aswarm._agent import Agent
from aswarm._context import copy_containers, merge_changes
from aswarm._errors import RunError, ToolArgumentsError
from aswarm._events import LoopEvent, ToolCallFinished, ToolCallStarted
from aswarm._runtime.backend import BackgroundTask
from aswarm._runtime.threads import DeadlinePassed, FunctionRunner, enter_tool
from aswarm._tools.conversion import as_result, bind_context, parse_arguments, sendable
from aswarm._tools.tool import Tool, takes_context

from .plan import ToolCall, ToolOutcome
from .tool_limiter import admitted

logger = logging.getLogger("aswarm")


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """What `AsyncSwarm(tool_error=...)` gets. `text` is what the model would be told, `error` what went wrong.

    The hook, plain or async, returns the text to tell instead, or raises to end the run.
    """

    text: str
    error: Exception
    id: str
    name: str
    arguments: str
    agent: Agent


ToolErrorHook: TypeAlias = Callable[[ToolFailure], str | Awaitable[str]]
# Awaited, because who wraps the door may have to write down that a function runs before it does.
Started: TypeAlias = Callable[[], Awaitable[None]]


class ToolHandler(Protocol):
    """The second of the two doors through which a run acts on the world."""

    def __call__(self, call: ToolCall, context: dict[str, Any], started: Started) -> Awaitable[ToolOutcome]:
        """Carry out one call. `started` is to be awaited when the function is about to run, with nothing in between.

        A RunError that it raises means that the function must not run, and is passed on. `context` is the run's own
        dict. What this raises ends the run.
        """
        ...


class _CallFailure(Exception):  # noqa: N818 - what the model is told
    """A failure that is ours to word; `still_running` where the function could not be stopped."""

    def __init__(self, text: str, *, still_running: bool = False) -> None:
        super().__init__(text)
        self.still_running = still_running


class _StopIterationRaised(Exception):  # noqa: N818 - as above
    def __init__(self, error: StopIteration) -> None:
        super().__init__(error)
        self.error = error


class ToolCaller:
    """Calls tools in this process: the `ToolHandler` of every run that has no other."""

    def __init__(self, function_runner: FunctionRunner, on_error: ToolErrorHook | None = None) -> None:
        self._function_runner = function_runner
        self._on_error = on_error

    async def __call__(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        """Carry out one call; see `ToolHandler`. The current task must be the call's own."""
        try:
            return await self._attempt(call, context, started)
        except _StopIterationRaised as raised:
            return await self._failed(call, raised.error)
        except RunError as error:
            if not call.started:  # by `started`: it must not run
                raise
            return await self._failed(call, error)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is told to the model
            return await self._failed(call, error)
        except anyio.get_cancelled_exc_class() as error:
            # Raises where the run is cancelled; asked one step of the loop later, because who cancels every task of a
            # loop reaches a call as often before its run as after it.
            await anyio.lowlevel.checkpoint()
            # The tool raised it itself, or awaited something that somebody else had cancelled.
            return await self._failed(call, _CallFailure(_describe(error)))

    async def _attempt(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        tool = call.tool
        if tool is None:
            raise _CallFailure(f"Tool {call.name} not found.")
        arguments = tool.schema.validate(parse_arguments(call.arguments))
        on_loop = tool.is_async or not (tool.thread or self._function_runner.runs_everything)
        carry_out = _on_loop if on_loop else self._run_in_slot
        async with admitted(tool.limiter):
            result = as_result(await carry_out(tool, arguments, context, started))
        return ToolOutcome(result.value, result)

    async def _run_in_slot(
        self, tool: Tool[..., Any], arguments: dict[str, Any], context: dict[str, Any], started: Started
    ) -> Any:
        may_be_left = takes_context(tool) and (tool.abandon_on_cancel or tool.timeout is not None)
        before = copy_containers(context) if may_be_left else context
        own = copy_containers(before) if may_be_left else context
        work = functools.partial(_call, tool, bind_context(tool, arguments, own))
        slot = await self._function_runner.acquire(own_thread=_needs_own_thread(tool))
        try:
            deadline = await _mark_started(tool, started)
            value = await slot.run(work, deadline=deadline, abandon_on_cancel=tool.abandon_on_cancel)
        except DeadlinePassed as error:
            raise _timed_out(tool, still_running=True) from error
        finally:
            slot.release()
        value = await _await_value(tool, value, deadline)
        if may_be_left:
            merge_changes(context, before, own)
        return value

    async def _failed(self, call: ToolCall, error: Exception) -> ToolOutcome:
        ours = isinstance(error, _CallFailure | ToolArgumentsError)
        text = sendable(f"Error: {error if ours else _describe(error)}")
        logger.log(logging.INFO if ours else logging.ERROR, "tool %s: %s", call.name, text, exc_info=not ours)
        if self._on_error is not None:
            failure = ToolFailure(text, error, call.id, call.name, call.arguments, call.agent)
            text = await _rewritten(self._on_error, call, failure)
        return ToolOutcome(text, error=error, still_running=isinstance(error, _CallFailure) and error.still_running)


def _needs_own_thread(tool: Tool[..., Any]) -> bool:
    """Whether the function may run beside others, or be left behind: both take a thread of its own."""
    return tool.thread and (bool(tool.concurrent) or tool.abandon_on_cancel or tool.timeout is not None)


async def _rewritten(hook: ToolErrorHook, call: ToolCall, failure: ToolFailure) -> str:
    try:
        told = hook(failure)
        return sendable(str(await told if inspect.isawaitable(told) else told))
    except BaseException:
        # The run ends, but this call did come to an end; what went wrong may be what the hook is there to hide.
        if call.started:
            call.outcome = ToolOutcome("Error: the call failed.", error=failure.error)
        raise


async def _on_loop(tool: Tool[..., Any], arguments: dict[str, Any], context: dict[str, Any], started: Started) -> Any:
    deadline = await _mark_started(tool, started)
    return await _await_value(tool, _call(tool, bind_context(tool, arguments, context)), deadline)


def _call(tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return tool.function(**arguments)
    except StopIteration as error:  # no coroutine lets it through as what it is
        raise _StopIterationRaised(error) from error


async def _await_value(tool: Tool[..., Any], value: Any, deadline: float) -> Any:
    """The value, awaited if it can be. Raises _CallFailure when the deadline passes first."""
    if not inspect.isawaitable(value):
        return value
    if deadline == math.inf:
        return await value
    with anyio.CancelScope(deadline=deadline):
        return await value
    raise _timed_out(tool)


async def _mark_started(tool: Tool[..., Any], started: Started) -> float:
    """Say that the function runs from here on; the deadline of it."""
    enter_tool()
    await started()
    return math.inf if tool.timeout is None else anyio.current_time() + tool.timeout


def _timed_out(tool: Tool[..., Any], *, still_running: bool = False) -> _CallFailure:
    warning = " It may still be running." if still_running else ""
    return _CallFailure(f"{tool.schema.name} timed out after {tool.timeout:g} s.{warning}", still_running=still_running)


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception of which no text can be made is still a failure of the tool
        return type(error).__name__


# --- the calls of a turn ----------------------------------------------------------------------------------------------

Emit: TypeAlias = Callable[[LoopEvent], None]
# Runs work that emits events, and yields them: at the end of one await, or live from a task of its own.
EventDelivery: TypeAlias = Callable[[Callable[[Emit], Awaitable[None]]], AsyncGenerator[LoopEvent, None]]


async def run_group(calls: Sequence[ToolCall], context: dict[str, Any], door: ToolHandler, emit: Emit) -> None:
    """Carry out the calls of one group together. An exception leaves as it was raised, after its siblings have ended."""
    failures: list[BaseException] = []

    async def run_one(call: ToolCall) -> None:
        try:
            call.outcome = await door(call, context, functools.partial(_started, call, emit))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again below, outside the group
            if not failures:  # what follows is how its siblings end
                failures.append(error)
            group.cancel_scope.cancel()
        else:
            emit(_finished(call, call.outcome))

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(run_one, call)
    if failures:
        raise failures.pop()


async def _started(call: ToolCall, emit: Emit) -> None:
    call.started = True
    emit(ToolCallStarted(call.position, call.id, call.name, call.arguments, call.agent))


def _finished(call: ToolCall, outcome: ToolOutcome) -> ToolCallFinished:
    return ToolCallFinished(call.position, call.id, call.name, outcome.content, outcome.error, outcome.still_running)


async def deliver_after(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[LoopEvent, None]:
    """Run the work inside one await; its events follow. Nothing is open while the consumer holds an event."""
    events: list[LoopEvent] = []
    await work(events.append)
    for event in events:
        yield event


async def deliver_live(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[LoopEvent, None]:
    """Run the work in a task of its own and yield its events as they come.

    A task group here would stay open while the consumer holds an event; dropped by the consumer, it would cancel
    whatever task happens to close this generator (PEP 789).
    """
    queue = _EventQueue()
    supervised = BackgroundTask(functools.partial(work, queue.put), on_end=queue.close)
    try:
        async with aclosing(queue.read()) as events:
            async for event in events:
                yield event
        await supervised.result()
    finally:
        await supervised.stop()


class _EventQueue:
    """Events from one task to another. Putting never waits and never fails: a tool must not notice who reads."""

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
