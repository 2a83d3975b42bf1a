"""Execution of one tool call.

`group` runs the calls of a turn, and `_tools` converts the values. If a function raises an `Exception`, the text of the
exception becomes the tool message, so that the model can react. Other exceptions, such as KeyboardInterrupt, end the run.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import anyio
import anyio.lowlevel

from aswarm._runtime import clocks
from aswarm._runtime.backend import hold_token
from aswarm._runtime.threads import DeadlinePassed, FunctionRunner, enter_tool
from aswarm._tools.conversion import as_result, to_text, valid_arguments
from aswarm._tools.filled import Filled
from aswarm._tools.tool import NEEDS_APPROVAL, NeedsApproval, Tool, standing_hold
from aswarm._tools.toolbox import toolbox
from aswarm._values.agent import Agent, Result
from aswarm._values.content import described
from aswarm._values.errors import (
    CallerMistake,
    CallLost,
    FailedInside,
    Hold,
    RunError,
    ToolArgumentsError,
    ToolError,
    ToolNotFound,
    ToolTimeout,
    is_exit,
)
from aswarm._values.events import Emit, ToolCallFinished, ToolCallStarted
from aswarm._values.text import sendable
from aswarm._wire.failures import hide_header_values

from .call import Call, ToolCall
from .current_call import Progress, enter_function, exits_fail, progress
from .filling import NO_RESOURCES, filled_arguments, read_arguments
from .handlers import Started
from .outcome import OutcomeInside, ToolOutcome, returned, text_of_failure
from .resuming import change_since, undeclared_in_function
from .run_info import OuterRun

logger = logging.getLogger("aswarm")

_NAMES = 20  # if the model calls an unknown tool, the answer lists at most this number of tools


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """A failed tool call, passed to `AsyncSwarm(tool_error=...)`.

    The hook is a plain or async function. It returns the text for the model, or raises an exception to end the run.

    Args:
        text: The text for the model.
        error: The exception of the function, or a `ToolError` of aswarm.
        id: The id of the call.
        name: The name of the tool in the call.
        arguments: The JSON text of the arguments, as the model sent it.
        agent: The agent that made the call.
    """

    text: str
    error: Exception
    id: str
    name: str
    arguments: str
    agent: Agent


ToolErrorHook: TypeAlias = Callable[[ToolFailure], str | Awaitable[str]]


class _StopIterationRaised(Exception):  # noqa: N818 - only a wrapper
    """Wraps the StopIteration of a function, because a coroutine that raises StopIteration gets a RuntimeError (PEP 479)."""


class ToolCaller:
    """Calls tools in this process: the innermost `ToolHandler` of every run.

    `resources`: for calls without a run. Otherwise they have the resources of the run.
    """

    def __init__(
        self,
        function_runner: FunctionRunner,
        on_error: ToolErrorHook | None = None,
        run_id: str = "",
        run: OuterRun | None = None,
        resources: Mapping[str, object] = NO_RESOURCES,
    ) -> None:
        self._function_runner = function_runner
        self._resources = resources if run is None else run.state.resources
        self._on_error = on_error
        self._run = run
        self._run_id = run_id

    async def __call__(self, call: ToolCall, context: dict[str, Any], started: Started, /) -> ToolOutcome:
        """Execute one call; see `ToolHandler`. Each call needs its own task, because contextvars hold the current call."""
        call = Call.of(call)
        call.enter()
        enter_function(self._run)
        try:
            return await self._attempt(call, context, started)
        except _StopIterationRaised as raised:
            return await self._failed(call, raised.args[0])
        except (Hold, CallerMistake, FailedInside) as raised:
            if getattr(raised, "response", None) is not None:  # of another run, which the function has started
                return await self._failed(call, raised)
            error = self._kept_open(call, raised)
            raise error from error.__cause__
        except RunError as error:
            if not call.has_started:  # raised by `started`, so the function must not run
                raise
            return await self._failed(call, error)
        except (Exception, SystemExit, BaseExceptionGroup) as error:  # noqa: BLE001 - the model reads every error of a tool
            return await self._failed(call, _failure_of(error), text_of_failure(error))
        except anyio.get_cancelled_exc_class() as error:
            # The checkpoint raises if the run itself is cancelled. The run may be cancelled one step of the event loop after
            # this call, because `asyncio.run` cancels all tasks in any order.
            await anyio.lowlevel.checkpoint()
            # The run continues: the tool raised the error itself, or awaited a task that other code had cancelled.
            failure = RuntimeError("the function was cancelled, but not by its run")
            failure.__cause__ = error
            return await self._failed(call, failure, text_of_failure(error))

    def _kept_open(self, call: Call, error: Hold | CallerMistake | FailedInside) -> Exception:
        """Return the exception to raise for a call that stays open, unless something has started inside."""
        is_concurrent = self._run is not None and self._run.state.concurrent_tools
        if is_concurrent and isinstance(error, Hold):
            error = undeclared_in_function(call, error) or error
        if isinstance(error, Hold):
            call.withdraw(asks=True)  # its data records whether an inner run has called functions
        elif not error.has_started:
            call.withdraw()
        return error.error if isinstance(error, FailedInside) else error

    def hand_off(self, call: Call, emit: Emit) -> bool:
        """Execute a valid handoff to an agent: this runs no code of the user. Return False for any other call."""
        if call.tool is None or not call.tool.is_handoff or call.outcome or call.hold or call.decision:
            return False
        try:
            valid_arguments(call.tool, call.arguments)
        except ToolArgumentsError:
            return False
        emit(announcement(call))
        result = as_result(call.tool.function())
        call.finish(outcome := ToolOutcome(result.value, result))
        emit(finished_event(call, outcome))
        return True

    async def _attempt(self, call: Call, context: dict[str, Any], started: Started) -> ToolOutcome:
        tool = call.tool
        if tool is None:
            raise ToolNotFound(_not_found(call))
        arguments = valid_arguments(tool, call.arguments)
        if call.decision is not None and (reason := change_since(call.decision, call)):
            raise NeedsApproval(reason)
        if (tool.approve is not False or tool.is_external) and not call.has_approval:
            await _ask_first(tool, arguments, context, self._resources)
        on_loop = tool.is_async or not (tool.thread or self._function_runner.runs_everything)
        async with hold_token(tool.limiter):
            if tool._schema.filled is not None:
                value = await self._run_filled(call, tool, arguments, context, started, on_loop=on_loop)
            elif on_loop:
                deadline = await _mark_started(tool, started)
                value = await timed_steps(_await_call(tool, arguments, deadline), call, self._run_id)
            else:
                value = await self._run_in_slot(call, tool, arguments, started)
            if type(value) is str:
                return ToolOutcome(to_text(value))
            result = as_result(value)
        if result.value[:1] == "<":
            self._log_default_text(call, tool, value, result.value)
        if call.parent is not None:
            return OutcomeInside(result.value, result, returned=returned(result.value, value))
        return ToolOutcome(result.value, result)

    async def _run_filled(
        self,
        call: Call,
        tool: Tool[..., Any],
        arguments: dict[str, Any],
        context: dict[str, Any],
        started: Started,
        *,
        on_loop: bool,
    ) -> Any:
        """Run a function with parameters that the run fills."""
        filled, is_abandonable = cast("Filled", tool._schema.filled), not on_loop and _is_abandonable(tool)
        with filled_arguments(filled, arguments, context, self._resources, is_abandonable=is_abandonable) as own:
            if not on_loop:
                return await self._run_in_slot(call, tool, own, started)
            deadline = await _mark_started(tool, started)
            return await timed_steps(_await_call(tool, own, deadline), call, self._run_id)

    async def _run_in_slot(self, call: Call, tool: Tool[..., Any], arguments: dict[str, Any], started: Started) -> Any:
        work = functools.partial(_call, tool, arguments)
        slot = await self._function_runner.acquire(own_thread=has_own_thread(tool))
        try:
            deadline = await _mark_started(tool, started)
            value = await slot.run(work, deadline=deadline, abandon_on_cancel=tool.abandon_on_cancel)
        except DeadlinePassed as error:
            raise _timed_out(tool, still_running=True) from error
        finally:
            slot.release()
            if slot.was_withdrawn:  # the run was closed after the report of the start, but before the function ran
                call.withdraw()
        return await _await_value(tool, value, deadline)

    def _log_default_text(self, call: ToolCall, tool: Tool[..., Any], value: object, text: str) -> None:
        """Once for each class and tool, warn that the model gets a text such as `<Order object at 0x7f...>`."""
        returned: object = value.value if isinstance(value, Result) else value
        kind = type(returned)
        has_text = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
        if has_text or kind in tool._logged:
            return
        tool._logged.add(kind)
        logger.warning(
            "tool %s returned an object without a text form, so the model gets %s; return a str, a dict, a dataclass or a "
            "pydantic model, or give %s a __str__",
            tool._schema.name,
            text,
            kind.__qualname__,
            extra=self._log_fields(call),
        )

    def _log_fields(self, call: ToolCall) -> dict[str, Any]:
        return {"run_id": self._run_id, "agent": call.agent.name}

    async def _failed(self, call: Call, error: Exception, text: str | None = None) -> ToolOutcome:
        hide_header_values(error)
        text = sendable(text or text_of_failure(error))  # also for `tool_error` and the log
        is_expected = isinstance(error, ToolError)
        level = logging.INFO if is_expected else logging.ERROR
        # The text of failed code has what the code printed, such as results of other calls.
        is_code = type(error) is ToolError and call.tool is not None and call.tool._is_replayed
        logged = "the code failed" if is_code else text
        logger.log(level, "tool %s: %s", call.name, logged, exc_info=not is_expected, extra=self._log_fields(call))
        still_running = isinstance(error, ToolTimeout | CallLost) and error.still_running
        if self._on_error is not None:
            failure = ToolFailure(text, error, call.id, call.name, call.arguments, call.agent)
            try:
                changed = self._on_error(failure)
                text = str(await changed if inspect.isawaitable(changed) else changed)
            except BaseException:
                # The run ends, but this call has run and needs an outcome. The text does not contain the cause, because
                # a user may have written the hook to hide causes from the model.
                if call.has_started:
                    call.finish(ToolOutcome("Error: the call failed.", error=error, still_running=still_running))
                raise
        if not call.has_started:
            return call.refusal(text, error)
        return ToolOutcome(text, error=error, still_running=still_running)


def has_own_thread(tool: Tool[..., Any]) -> bool:
    """Return whether a plain function needs its own thread, because it may run concurrently or be abandoned."""
    return tool.thread and (bool(tool.concurrent) or _is_abandonable(tool))


def _is_abandonable(tool: Tool[..., Any]) -> bool:
    return tool.abandon_on_cancel or tool.timeout is not None


def _not_found(call: ToolCall) -> str:
    tools = toolbox(call.agent).tools
    if call.name in tools:  # a call of another type, such as "custom", which never runs a function
        return f"Tool {call.name} not found."
    names = [name for name, tool in tools.items() if not tool.defer]
    if not names:
        return f"Tool {call.name} not found. This agent has no tools."
    others = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"Tool {call.name} not found. Tools: {', '.join(names[:_NAMES])}{others}."


def _failure_of(error: BaseException) -> Exception:
    """Return the error of a failed call. Raise a SystemExit, for example of argparse, if it may end the program."""
    if isinstance(error, Exception):
        return error
    if not (exits_fail() and is_exit(error)):
        raise error
    failure = RuntimeError(f"the function ended with {error!r}")
    failure.__cause__ = error
    return failure


async def _ask_first(
    tool: Tool[..., Any], arguments: dict[str, Any], context: dict[str, Any], resources: Mapping[str, object]
) -> None:
    """Raise Hold if the call needs a decision."""
    if hold := standing_hold(tool):
        raise hold
    approve = cast("Callable[..., bool | str | Awaitable[bool | str]]", tool.approve)
    if (filled := tool._filled_by_approve) is not None and filled.is_typed:
        needed = approve(arguments, **read_arguments(filled, context, resources))
    else:
        needed = approve(arguments, MappingProxyType(context))
    needed = await needed if inspect.isawaitable(needed) else needed
    if needed:
        raise NeedsApproval(needed if isinstance(needed, str) else NEEDS_APPROVAL)


def _call(tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return tool.function(**arguments)
    except StopIteration as error:
        raise _StopIterationRaised(error) from error


async def _await_call(tool: Tool[..., Any], arguments: dict[str, Any], deadline: float) -> Any:
    return await _await_value(tool, _call(tool, arguments), deadline)


async def _await_value(tool: Tool[..., Any], value: Any, deadline: float) -> Any:
    """Return the value, or await it first if it is awaitable. Raises ToolTimeout at the deadline."""
    if not inspect.isawaitable(value):
        if not inspect.isasyncgen(value):
            return value
        value = _result_of(cast("AsyncGenerator[Any, None]", value))
    if deadline == math.inf:
        return await value
    with anyio.CancelScope(deadline=deadline):
        return await value
    raise _timed_out(tool)


async def _result_of(items: AsyncGenerator[Any, None]) -> Any:
    """Return the last value that the async generator of a tool yields. Report each `Progress` on the way."""
    result: Any = None
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Progress):
                progress(item.value)
            else:
                result = item
    return result


async def _mark_started(tool: Tool[..., Any], started: Started) -> float:
    """Report the start of the function, and return its deadline."""
    enter_tool()
    await started()
    return math.inf if tool.timeout is None else anyio.current_time() + tool.timeout


def _timed_out(tool: Tool[..., Any], *, still_running: bool = False) -> ToolTimeout:
    warning = " It may still be running." if still_running else ""
    return ToolTimeout(f"{tool._schema.name} timed out after {tool.timeout:g} s.{warning}", still_running=still_running)


# --- functions that block the event loop ------------------------------------------------------------------------------

# Each step of a function is timed: from the moment when the loop continues it until it waits again or ends. So the log names the
# function exactly, without a thread that reads the frames of the loop.
_BLOCKED_SECONDS = 1.0


@types.coroutine
def timed_steps(work: Coroutine[Any, Any, Any], call: Call, run_id: str) -> Generator[Any, Any, Any]:
    """Await the function of a call. If one of its steps takes a second or more, log a warning, once for each tool."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        started = clocks.monotonic()
        try:
            waits_for = step(value)
        except StopIteration as end:
            return end.value
        finally:
            if (seconds := clocks.monotonic() - started) >= _BLOCKED_SECONDS:
                _log_blocking(call, seconds, run_id)
            step, value = work.send, None  # an exception must not refer to itself through this frame
        try:
            value = yield waits_for
        except BaseException as error:  # noqa: BLE001 - thrown into the function, which handles or raises it
            step, value = work.throw, error


def _log_blocking(call: Call, seconds: float, run_id: str) -> None:
    assert call.tool is not None  # noqa: S101 - its function runs
    if _BLOCKED_SECONDS in call.tool._logged:
        return
    call.tool._logged.add(_BLOCKED_SECONDS)
    logger.warning(
        "tool %s has blocked the event loop for %.1f s: no other run could continue; call slow work with "
        "`await anyio.to_thread.run_sync(...)`, or write a plain function (`def`), which runs in a thread",
        call.name,
        seconds,
        extra={"run_id": run_id, "agent": call.agent.name},
    )


# --- events ----------------------------------------------------------------------------------------------------------


def announcement(call: Call) -> ToolCallStarted:
    """Start a call, and return its event."""
    call.start(announced=True)
    return ToolCallStarted(call.index, call.id, call.name, call.arguments, call.agent)


def finished_event(call: ToolCall, outcome: ToolOutcome) -> ToolCallFinished:
    """Return the event of a finished call."""
    content = outcome.content if isinstance(outcome.content, str) else described(outcome.content)
    return ToolCallFinished(
        call.index, call.id, call.name, content, outcome.error, outcome.still_running, outcome.agent
    )
