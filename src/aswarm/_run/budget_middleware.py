"""What a budget does to the handlers of a run: it cuts what is not ready in time, and keeps handoffs back.

A scope stands around a single await, never across a `yield`. A plain function in a thread cannot be cut: the run waits
for it, unless it may be abandoned.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import anyio

from aswarm._agent import Agent
from aswarm._messages import OUTCOME_UNKNOWN, STILL_RUNNING
from aswarm._wire.request import CompletionRequest

from .budget_control import BudgetControl
from .handlers import Handlers, Middleware, Started
from .plan import ToolCall, ToolOutcome
from .state import RunState

Instruct: TypeAlias = Callable[[Agent, dict[str, Any]], Awaitable[Any]]
_END: Any = object()
_CUT: Any = object()


def budget_middleware(state: RunState, budget: BudgetControl) -> Middleware:
    """The middleware of a run with a budget. Its seconds begin when it wraps the handlers."""

    def wrap(handlers: Handlers) -> Handlers:
        budget.start(anyio.current_time)
        limited = _LimitedHandlers(handlers, state, budget)
        if budget.deadline < math.inf:
            state.may_be_cut = True
            handlers = replace(handlers, complete=limited.complete)
        if budget.deadline < math.inf or budget.limits_handoffs:
            handlers = replace(handlers, call_tool=limited.call_tool)
        return handlers

    return wrap


def instruct_in_time(instruct: Instruct, budget: BudgetControl) -> Instruct:
    """Instructions that take longer than the seconds of the budget are empty; the request is then not made."""

    async def limited(agent: Agent, context: dict[str, Any]) -> Any:
        with anyio.CancelScope(deadline=math.inf if budget.is_last else budget.deadline):
            return await instruct(agent, context)
        return ""

    return limited


@dataclass(frozen=True, slots=True)
class _LimitedHandlers:
    handlers: Handlers
    state: RunState
    budget: BudgetControl

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """The chunks until the deadline. What has arrived by then is passed on."""
        async with aclosing(self.handlers.complete(request)) as chunks:
            self.state.is_cut = self.budget.is_late
            while not self.state.is_cut:
                chunk = _CUT
                with anyio.CancelScope(deadline=self._deadline):
                    chunk = await anext(chunks, _END)
                if chunk is _END:
                    return
                self.state.is_cut = chunk is _CUT
                if not self.state.is_cut:
                    yield chunk

    async def call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        """What the call led to until the deadline."""
        if self.budget.is_late:
            return ToolOutcome(f"not run: {self.budget.seconds_used_up}")
        with anyio.CancelScope(deadline=self._deadline):
            return self._without_refused_handoff(call, await self.handlers.call_tool(call, context, started))
        return call.outcome or self._cut(call)

    @property
    def _deadline(self) -> float:
        return math.inf if self.budget.is_last else self.budget.deadline

    def _cut(self, call: ToolCall) -> ToolOutcome:
        if not call.started:
            return ToolOutcome(f"not run: {self.budget.seconds_used_up}")
        still_running = call.tool is not None and call.tool.abandon_on_cancel
        text = f"{OUTCOME_UNKNOWN}{STILL_RUNNING if still_running else ''} ({self.budget.seconds_used_up})"
        return ToolOutcome(text, unknown=True, still_running=still_running)

    def _without_refused_handoff(self, call: ToolCall, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome, without its handoff if that goes in circles."""
        if not isinstance(outcome, ToolOutcome) or outcome.agent is None or outcome.result is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            return outcome
        text = self.budget.handoff_refusal(call, outcome.agent)
        if text is None:
            return outcome
        return replace(outcome, content=text, result=outcome.result.model_copy(update={"agent": None}))
