"""Carrying out tool calls: one call, and a group of calls that run together.

Decides nothing about order or results: the plan makes the groups, `_tools` gives a value its meaning. Every `Exception`
of a function becomes the text of its tool message; other exceptions end the run.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import anyio
import anyio.lowlevel

from aswarm._agent import Agent, Result
from aswarm._content import described
from aswarm._context import copy_containers, merge_changes
from aswarm._errors import (
    CallerMistake,
    CallLost,
    ConfigurationError,
    Hold,
    RunError,
    ToolArgumentsError,
    ToolError,
    ToolNotFound,
    ToolTimeout,
)
from aswarm._events import CallWaiting, LoopEvent, ToolCallFinished, ToolCallStarted
from aswarm._json import shown
from aswarm._runtime.threads import DeadlinePassed, FunctionRunner, enter_tool
from aswarm._tools.conversion import as_result, bind_context, parse_arguments, sendable
from aswarm._tools.tool import NEEDS_APPROVAL, NeedsApproval, Tool, standing_hold, takes_context
from aswarm._tools.toolbox import toolbox
from aswarm._wire.failures import hide_header_values

from .current_call import OuterRun, Progress, progress, running_call, running_run
from .handlers import Started, ToolHandler
from .plan import ToolCall, ToolOutcome
from .tool_limiter import hold_token

logger = logging.getLogger("aswarm")

_NAMES = 20  # how many tools the model is told when it called one that does not exist


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """What `AsyncSwarm(tool_error=...)` gets: a call that has failed.

    `text`: the text for the model. `error`: what went wrong, see `ToolError`. `id`, `name`: those of the call.
    `arguments`: its JSON text, as the model sent it. `agent`: the agent that made the call.

    The hook, plain or async, returns the text for the model in its place, or raises to end the run.
    """

    text: str
    error: Exception
    id: str
    name: str
    arguments: str
    agent: Agent


ToolErrorHook: TypeAlias = Callable[[ToolFailure], str | Awaitable[str]]


class _StopIterationRaised(Exception):  # noqa: N818 - a coroutine cannot raise StopIteration itself
    def __init__(self, error: StopIteration) -> None:
        super().__init__(error)
        self.error = error


class ToolCaller:
    """Calls tools in this process: the innermost `ToolHandler` of every run."""

    def __init__(
        self,
        function_runner: FunctionRunner,
        on_error: ToolErrorHook | None = None,
        run_id: str = "",
        run: OuterRun | None = None,
    ) -> None:
        self._function_runner = function_runner
        self._on_error = on_error
        self._run = run
        self._run_id = run_id

    async def __call__(self, call: ToolCall, context: dict[str, Any], started: Started, /) -> ToolOutcome:
        """Carry out one call; see `ToolHandler`. The current task must be the call's own."""
        running_run.set(self._run)
        try:
            return await self._attempt(call, context, started)
        except _StopIterationRaised as raised:
            return await self._failed(call, raised.error)
        except (Hold, CallerMistake):
            call.started = False  # it has done nothing, and stays open
            raise
        except RunError as error:
            if not call.started:  # `started` raised it: the function must not run
                raise
            return await self._failed(call, error)
        except Exception as error:  # noqa: BLE001 - the model is told of every error of a tool
            return await self._failed(call, error)
        except anyio.get_cancelled_exc_class() as error:
            # Raises if the run itself is cancelled. Checked one loop step later: shutdown code cancels all tasks in any
            # order, so this call may be cancelled before its run.
            await anyio.lowlevel.checkpoint()
            # The tool raised it itself, or awaited something that other code had cancelled.
            failure = RuntimeError("the function was cancelled, but not by its run")
            failure.__cause__ = error
            return await self._failed(call, failure, _text_for_model(error))

    async def _attempt(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        tool = call.tool
        if tool is None:
            raise ToolNotFound(_not_found(call))
        arguments = tool.schema.validate(parse_arguments(call.arguments))
        if (tool.approve is not False or tool.is_external) and not call.is_approved:
            await _ask_first(tool, arguments, context)
        on_loop = tool.is_async or not (tool.thread or self._function_runner.runs_everything)
        carry_out = _on_loop if on_loop else functools.partial(self._run_in_slot, call)
        async with hold_token(tool.limiter):
            value = await carry_out(tool, arguments, context, started)
            result = as_result(value)
        if result.value[:1] == "<":
            self._log_default_text(call, tool, value, result.value)
        return ToolOutcome(result.value, result)

    async def _run_in_slot(
        self, call: ToolCall, tool: Tool[..., Any], arguments: dict[str, Any], context: dict[str, Any], started: Started
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
            if slot.was_withdrawn:  # it was announced, but its reader has left: it stays open
                call.started = False
        value = await _await_value(tool, value, deadline)
        if may_be_left:
            merge_changes(context, before, own)
        return value

    def _log_default_text(self, call: ToolCall, tool: Tool[..., Any], value: object, text: str) -> None:
        """Log once for each class and tool that the model is told a text such as `<Order object at 0x7f...>`."""
        returned: object = value.value if isinstance(value, Result) else value
        kind = type(returned)
        has_text = kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__
        if has_text or kind in tool.classes_without_text:
            return
        tool.classes_without_text.add(kind)
        logger.warning(
            "tool %s returned an object without a text of its own, and the model is told %s; return a str, a dict, a "
            "dataclass or a pydantic model, or give %s a __str__",
            tool.schema.name,
            text,
            kind.__qualname__,
            extra=self._log_fields(call),
        )

    def _log_fields(self, call: ToolCall) -> dict[str, Any]:
        return {"run_id": self._run_id, "agent": call.agent.name}

    async def _failed(self, call: ToolCall, error: Exception, text: str | None = None) -> ToolOutcome:
        hide_header_values(error)
        text = sendable(text or _text_for_model(error))
        foreseen = isinstance(error, ToolError)
        level = logging.INFO if foreseen else logging.ERROR
        logger.log(level, "tool %s: %s", call.name, text, exc_info=not foreseen, extra=self._log_fields(call))
        if self._on_error is not None:
            failure = ToolFailure(text, error, call.id, call.name, call.arguments, call.agent)
            text = await _rewritten(self._on_error, call, failure)
        return ToolOutcome(text, error=error, still_running=_is_still_running(error))


def _is_still_running(error: Exception) -> bool:
    return isinstance(error, ToolTimeout | CallLost) and error.still_running


def _not_found(call: ToolCall) -> str:
    names = list(toolbox(call.agent).tools)
    if call.name in names:  # a call of another type, which no function can answer
        return f"Tool {call.name} not found."
    if not names:
        return f"Tool {call.name} not found. This agent has no tools."
    others = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"Tool {call.name} not found. Tools: {', '.join(names[:_NAMES])}{others}."


def _text_for_model(error: BaseException) -> str:
    name = type(error).__name__
    try:
        if not isinstance(error, ToolError):
            return f"Error: {name}: {error}"
        is_of_aswarm = isinstance(error, ToolNotFound | ToolArgumentsError | ToolTimeout)
        return f"Error: {error}" if is_of_aswarm else str(error)
    except Exception:  # noqa: BLE001 - an exception without a text is still a failure of the tool
        return f"Error: {name}"


async def _ask_first(tool: Tool[..., Any], arguments: dict[str, Any], context: dict[str, Any]) -> None:
    """Raise Hold if the call needs a decision."""
    if hold := standing_hold(tool):
        raise hold
    approve = cast("Callable[..., bool | str | Awaitable[bool | str]]", tool.approve)
    needed = approve(arguments, MappingProxyType(context))
    needed = await needed if inspect.isawaitable(needed) else needed
    if needed:
        raise NeedsApproval(needed if isinstance(needed, str) else NEEDS_APPROVAL)


def _needs_own_thread(tool: Tool[..., Any]) -> bool:
    """Whether the function may run beside others, or be abandoned: both need a thread of its own."""
    return tool.thread and (bool(tool.concurrent) or tool.abandon_on_cancel or tool.timeout is not None)


async def _rewritten(hook: ToolErrorHook, call: ToolCall, failure: ToolFailure) -> str:
    try:
        text = hook(failure)
        return sendable(str(await text if inspect.isawaitable(text) else text))
    except BaseException:
        # The run ends, but this call has ended too. The text does not say how: the hook may be there to hide that.
        if call.started:
            still_running = _is_still_running(failure.error)
            call.outcome = ToolOutcome("Error: the call failed.", error=failure.error, still_running=still_running)
        raise


async def _on_loop(tool: Tool[..., Any], arguments: dict[str, Any], context: dict[str, Any], started: Started) -> Any:
    deadline = await _mark_started(tool, started)
    return await _await_value(tool, _call(tool, bind_context(tool, arguments, context)), deadline)


def _call(tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return tool.function(**arguments)
    except StopIteration as error:
        raise _StopIterationRaised(error) from error


async def _await_value(tool: Tool[..., Any], value: Any, deadline: float) -> Any:
    """The value, awaited if it is awaitable. Raises ToolTimeout when the deadline passes first."""
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
    """The last value that the generator of a function yields. What it yields as `Progress` is progress."""
    result: Any = None
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Progress):
                progress(item.value)
            else:
                result = item
    return result


async def _mark_started(tool: Tool[..., Any], started: Started) -> float:
    """Report that the function starts now. Returns its deadline."""
    enter_tool()
    await started()
    return math.inf if tool.timeout is None else anyio.current_time() + tool.timeout


def _timed_out(tool: Tool[..., Any], *, still_running: bool = False) -> ToolTimeout:
    warning = " It may still be running." if still_running else ""
    return ToolTimeout(f"{tool.schema.name} timed out after {tool.timeout:g} s.{warning}", still_running=still_running)


# --- the calls of a turn ----------------------------------------------------------------------------------------------

Emit: TypeAlias = Callable[[LoopEvent], None]


async def run_group(  # noqa: C901 - a branch for each way in which a call ends
    calls: Sequence[ToolCall], context: dict[str, Any], handler: ToolHandler, emit: Emit
) -> None:
    """Carry out the calls of one group together.

    An exception of a handler cancels the other calls; it is raised as it was once they have ended.
    """
    failures: dict[str, BaseException] = {}

    async def run_one(call: ToolCall) -> None:
        running_call.set(call)
        call.emit = emit
        try:
            if call.hold is not None:  # the user has not decided
                raise call.hold
            outcome = call.outcome or await handler(call, context, functools.partial(_started, call, emit))
            # A middleware of a user may return anything.
            if not (isinstance(outcome, ToolOutcome) and isinstance(outcome.content, str | list)):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(_no_outcome(call, outcome))
            call.outcome = outcome
        except Hold as hold:
            if call.started:
                failures.setdefault("first", ConfigurationError(_late_hold(call)))
                group.cancel_scope.cancel()
                return
            call.hold = hold.with_traceback(None)  # its frames refer to the call
            emit(_waits(call, hold))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - raised again below, outside the group
            failures.setdefault("first", error)  # later errors are how the other calls end
            group.cancel_scope.cancel()
        else:
            emit(_finished(call, outcome))

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(run_one, call)
    if failures:
        raise failures.pop("first")


async def _started(call: ToolCall, emit: Emit) -> None:
    call.started = True
    emit(ToolCallStarted(call.position, call.id, call.name, call.arguments, call.agent))


def _waits(call: ToolCall, hold: Hold) -> CallWaiting:
    return CallWaiting(call.position, call.id, call.name, call.arguments, call.agent, hold.reason, hold.data)


def _late_hold(call: ToolCall) -> str:
    return f"a middleware raised Hold after the function of {call.name!r} had run; raise it before the inner call_tool is called"


def _no_outcome(call: ToolCall, outcome: object) -> str:
    return (
        f"a middleware answered the call of {call.name} with {shown(outcome, 80)}; its call_tool must return a ToolOutcome "
        "whose content is a str, or a list of content parts"
    )


def _finished(call: ToolCall, outcome: ToolOutcome) -> ToolCallFinished:
    content = outcome.content if isinstance(outcome.content, str) else described(outcome.content)
    return ToolCallFinished(call.position, call.id, call.name, content, outcome.error, outcome.still_running)
