"""Eager tools: a call starts once its arguments are complete, while the model still writes the rest of the completion.

The middleware of this module is outside of the user's middleware, and inside of the recorder and the budget. So guards,
limiters and timeouts see a call when its function runs, and only once. The recorder, the budget and the consumer of the
events see the call later, when the turn starts its calls. They only see a function that takes less time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import anyio

from aswarm._runtime.backend import BackgroundTask
from aswarm._tools.tool import Tool
from aswarm._values.context import copy_containers, merge_changes
from aswarm._values.errors import ConfigurationError
from aswarm._values.events import LoopEvent, ToolProgress
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.calls import CallSoFar
from aswarm._wire.request import CompletionRequest, streamed

from .call import Call, ToolCall
from .current_call import running
from .execution import ToolCaller, has_own_thread
from .group import run_group
from .handlers import Handlers, Started, ToolHandler
from .outcome import ToolOutcome
from .state import RunState
from .turn import calls_of, plan

EagerTools: TypeAlias = bool | Literal["always"]
# The limit for calls that start early, because their work is lost if the completion fails. Later calls start with their turn.
_MOST = 100


def checked_eager_tools(value: EagerTools) -> EagerTools:
    """Return the value of `eager_tools`. Raises ConfigurationError for an invalid value."""
    if isinstance(value, bool) or value == "always":  # pyright: ignore[reportUnnecessaryComparison]
        return value
    raise ConfigurationError(f'eager_tools must be True, False or "always", not {value!r}')


class EagerMiddleware:
    """The middleware of a run with eager tools.

    Args:
        state: The run.
        always: Whether to stream completions even if the run does not. Such a run still gets each completion as one chunk.
        include_usage: Whether these streamed requests ask for the usage.
        threads_only: Whether a plain function may start early only if it gets its own thread.
    """

    def __init__(
        self, state: RunState, *, always: bool = False, include_usage: bool = True, threads_only: bool = False
    ) -> None:
        self._state = state
        self._always = always
        self._include_usage = include_usage
        self._threads_only = threads_only
        self._calls: _EagerCalls

    def __call__(self, handlers: Handlers) -> Handlers:
        """Return the handlers that start calls early."""
        self._calls = calls = _EagerCalls(handlers, self._state, self._may_start)

        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            if not any(map(self._may_start, self._state.tools.values())):
                return handlers.complete(request)
            if request.stream:
                return calls.complete(request)
            if self._always:
                return calls.complete_whole(streamed(request, self._include_usage))
            return handlers.complete(request)

        return replace(handlers, complete=complete, call_tool=calls.call_tool)

    def _may_start(self, tool: Tool[..., Any]) -> bool:
        return _is_harmless(tool) and (tool.is_async or not self._threads_only or has_own_thread(tool))

    async def close(self) -> None:
        """Stop the calls that the run has not executed, and wait for their end."""
        await self._calls.close()


def _is_harmless(tool: Tool[..., Any]) -> bool:
    """Return whether a call of the tool may start early: a lost call does no harm, and it needs only its arguments."""
    return (
        tool.repeatable
        and tool.approve is False
        and tool.check_decision is None
        and not (tool.is_external or tool.is_handoff or tool.is_answer)
        and not (tool.effects.takes_context or tool.effects.may_hand_off)
    )


class _EagerCalls:
    """The eager calls of one run."""

    def __init__(self, handlers: Handlers, state: RunState, may_start: Callable[[Tool[..., Any]], bool]) -> None:
        self._handlers = handlers
        self._state = state
        self._may_start = may_start
        self._concurrent = state.concurrent_tools
        self._may_hold = handlers.may_hold or not state.concurrent_tools
        self._calls: list[Call] = []  # the calls of the current completion with complete arguments
        self._is_blocked = False  # whether all further calls of the completion must wait for the turn
        self._eager: dict[int, _EagerCall] = {}  # by position; removed when the turn executes the call
        # A middleware of the user may write to the context; without one, an early call writes nothing.
        self._has_middleware = not isinstance(handlers.call_tool, ToolCaller)
        self._shared: _SharedContext | None = None
        self._is_checked = False  # whether the turn has compared its calls with the started calls

    # --- completions ---

    async def complete(
        self, request: CompletionRequest, accumulator: Accumulator | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks unchanged, and start calls between them. If the completion fails, stop and await the started calls.

        `accumulator`: contains the chunks so far; by default the accumulator of the run.
        """
        await self.close()  # stops the calls that the last turn did not execute
        self._calls, self._is_blocked = [], False
        self._shared, self._is_checked = None, False
        self._state.eager_calls.clear()
        try:
            async with aclosing(self._handlers.complete(request)) as chunks:
                try:
                    async for chunk in chunks:
                        yield chunk
                        read = accumulator or self._state.accumulator
                        assert read is not None  # noqa: S101 - the loop makes it before it reads the completion
                        self._start_calls(read._calls.calls)
                except BaseException:
                    self._drop()  # before the response is closed, because closing may wait for the network
                    raise
        except BaseException:
            await self.close()
            raise

    async def complete_whole(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Stream the completion, start calls meanwhile, and yield the completion as one chunk."""
        accumulator = Accumulator()
        async with aclosing(self.complete(request, accumulator)) as chunks:
            async for chunk in chunks:
                accumulator.feed(chunk)
        yield accumulator.finish().as_chunk()

    def _start_calls(self, calls: list[CallSoFar]) -> None:
        """Start the calls with complete arguments: the model has started the next call, or the API has reported their end."""
        while (position := len(self._calls)) < len(calls) and not self._is_blocked:
            if position == len(calls) - 1 and not calls[position].is_done:
                break
            self._add(calls[position])

    def _add(self, call_so_far: CallSoFar) -> None:
        state, position = self._state, len(self._calls)
        (call,) = calls_of([call_so_far.message()], state.agent, state.tools, first=position)
        self._calls.append(call)
        if position >= _MOST:
            self._is_blocked = True
        elif call.tool is not None and self._may_start(call.tool) and call_so_far.id and call_so_far.is_complete():
            groups = plan(self._calls, concurrent=self._concurrent, may_hold=self._handlers.may_hold)
            self._is_blocked = len(groups) > 1
            if not self._is_blocked and (state.budget is None or state.budget.may_start(call)):
                state.eager_calls.append(call)
                if self._has_middleware and self._shared is None:
                    self._shared = _SharedContext(state.context)
                context = state.context if self._shared is None else self._shared.context
                self._eager[position] = _EagerCall(call, self._handlers.call_tool, context, may_hold=self._may_hold)

    # --- tool calls ---

    async def call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        """Return the outcome of the call if it has started early. Otherwise execute it now."""
        if not self._is_checked:
            self._check_turn()
        eager = self._eager.pop(call.index, None) if call.parent is None else None
        if eager is not None and not eager.fits(Call.of(call)):
            await eager.stop()
            eager = None
        if (shared := self._shared) is None:
            return await self._outcome(eager, call, context, started)
        shared.users += 1
        try:
            return await self._outcome(eager, call, shared.context, started)
        finally:
            shared.merge_into(context)
            shared.users -= 1
            if not (shared.users or self._eager):  # a later group may write to the context of the run
                self._shared = None

    async def _outcome(
        self, eager: _EagerCall | None, call: ToolCall, context: dict[str, Any], started: Started
    ) -> ToolOutcome:
        return await (
            self._handlers.call_tool(call, context, started) if eager is None else eager.finish(Call.of(call), started)
        )

    def _check_turn(self) -> None:
        """Drop all started calls if one of them does not fit its call of the turn: nothing can take back what it wrote."""
        self._is_checked = True
        calls = {call.index: call for call in self._state.turn.calls}
        if self._shared is not None and not all(early.fits(calls.get(place)) for place, early in self._eager.items()):
            self._shared = None
            self._drop()

    # --- the end ---

    def _drop(self) -> None:
        for eager in self._eager.values():
            eager.drop()

    async def close(self) -> None:
        """Stop the calls that their turn did not execute, and wait for their end, even if this task is cancelled."""
        self._drop()
        interrupted: BaseException | None = None
        while self._eager:
            _, eager = self._eager.popitem()
            try:
                await eager.stop()
            except BaseException as error:  # noqa: BLE001 - raised below, after the other calls have ended
                interrupted = error
        if interrupted is not None:
            raise interrupted


class _SharedContext:
    """The context of the calls that start early, and of the calls that run together with them.

    They share one dict, as the calls of any group do. It is a copy, because the turn may never execute the calls.
    """

    def __init__(self, context: dict[str, Any]) -> None:
        self.context: dict[str, Any] = copy_containers(context)
        self.users = 0  # the number of calls of the turn that run now
        self._merged: dict[str, Any] = copy_containers(context)

    def merge_into(self, context: dict[str, Any]) -> None:
        """Apply the changes since the last merge to the context of the run."""
        merge_changes(context, self._merged, self.context)
        self._merged = copy_containers(self.context)


class _EagerCall:
    """A call that starts before its turn, in its own task.

    The call has two `ToolCall` objects: the early object of this class, and the object that the turn passes to `finish`.
    `may_hold`: see `run_group`.
    """

    def __init__(self, call: Call, call_tool: ToolHandler, context: dict[str, Any], *, may_hold: bool) -> None:
        self._call = call
        self._arguments = call.arguments
        self._call_tool = call_tool
        self._context = context
        self._may_hold = may_hold
        self._is_dropped = False
        self._has_begun = False
        self._progress: list[LoopEvent] = []
        self._show: Callable[[LoopEvent], None] = self._progress.append
        self._taken: tuple[Call, Started] | None = None  # the call of the turn
        self._task = BackgroundTask(self._run)

    def fits(self, call: Call | None) -> bool:
        """Return whether the call of the turn is the same call, and has no decision of a user and no changed arguments."""
        early = self._call
        if call is None or self._is_dropped:
            return False
        is_same = (call.id, call.name, call.arguments) == (early.id, early.name, self._arguments)
        is_new = call.decision is None and call.replaced is None and call.outcome is None and call.hold is None
        return is_same and is_new and call.tool is early.tool

    # --- the task ---

    async def _run(self) -> None:
        if not self._is_dropped:
            await run_group([self._call], self._context, self._handle, self._emit, may_hold=self._may_hold)

    async def _handle(self, call: ToolCall, context: dict[str, Any], _: Started) -> ToolOutcome:
        return await self._call_tool(call, context, self._start)

    async def _start(self) -> None:
        """Mark the start of the function. If the turn already waits for the call, report and record the start first."""
        if self._taken is not None:
            call, started = self._taken
            call.take_arguments(self._call)
            await started()
        self._has_begun = True
        self._call.start()

    def _emit(self, event: LoopEvent) -> None:
        if isinstance(event, ToolProgress):
            self._show(event)

    # --- the turn ---

    async def finish(self, call: Call, started: Started) -> ToolOutcome:
        """Report the start of the turn's call, wait for the function, and return its outcome or raise its exception.

        If this task is cancelled, stop the function and wait for its end.
        """
        try:
            await self._announce(call, started)
        except BaseException:
            await self.stop()
            raise
        try:
            await self._task.result()
        except anyio.get_cancelled_exc_class():
            if self._call.outcome is None and self._call.hold is None:  # else the function has finished meanwhile
                raise
        finally:
            call.adopt(self._call)  # a guard or `tool_error` may set an outcome and then raise
        if self._call.hold is not None:
            raise self._call.hold
        assert self._call.outcome is not None  # noqa: S101 - `run_group` has set it
        return self._call.outcome

    async def _announce(self, call: Call, started: Started) -> None:
        if not self._has_begun:
            self._taken = call, started
        else:
            call.take_arguments(self._call)
            await started()

        now = running()
        assert now is not None  # noqa: S101 - the turn executes the call
        self._show = now.emit
        for event in self._progress:
            now.emit(event)

    # --- the end ---

    def drop(self) -> None:
        """Cancel the call, because its result is not needed. Does not wait."""
        self._is_dropped = True
        self._show = _show_nothing
        self._task.cancel()

    async def stop(self) -> None:
        """Cancel the call and wait for its end, even if the waiting task is cancelled."""
        self.drop()
        await self._task.stop()


def _show_nothing(_: LoopEvent) -> None: ...
