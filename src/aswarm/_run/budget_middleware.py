"""The middleware of a budget: cancels completions and calls at the deadline, and refuses handoffs.

A cancel scope is open around a single await, never across a `yield` (PEP 789). A plain function in a thread cannot be
cancelled. The run waits for its end, unless its tool has `abandon_on_cancel`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import anyio

from aswarm._values.agent import Agent
from aswarm._values.messages import OUTCOME_UNKNOWN, STILL_RUNNING
from aswarm._wire.request import CompletionRequest

from .budget import BudgetControl
from .call import Call, ToolCall
from .handlers import Handlers, Middleware, Started
from .outcome import ToolOutcome

Instruct: TypeAlias = Callable[[Agent, dict[str, Any]], Awaitable[Any]]
_END: Any = object()
_CUT: Any = object()


def budget_middleware(budget: BudgetControl) -> Middleware:
    """Return the middleware of a run with a budget. The time limit starts when the middleware wraps the handlers."""

    def wrap(handlers: Handlers) -> Handlers:
        budget.start(anyio.current_time)
        limited = _LimitedHandlers(handlers, budget)
        if budget.deadline < math.inf:
            handlers = replace(handlers, complete=limited.complete)
        if budget.deadline < math.inf or budget.limits_handoffs:
            handlers = replace(handlers, call_tool=limited.call_tool)
        return handlers

    return wrap


def instruct_in_time(instruct: Instruct, budget: BudgetControl) -> Instruct:
    """Return `instruct` with the deadline of the budget. At the deadline it returns "", and the run sends no request."""

    async def limited(agent: Agent, context: dict[str, Any]) -> Any:
        with anyio.CancelScope(deadline=budget.deadline):
            return await instruct(agent, context)
        return ""

    return limited


@dataclass(frozen=True, slots=True)
class _LimitedHandlers:
    handlers: Handlers
    budget: BudgetControl

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the chunks until the deadline."""
        async with aclosing(self.handlers.complete(request)) as chunks:
            self.budget.is_cut = self.budget.is_late
            while not self.budget.is_cut:
                chunk = _CUT
                with anyio.CancelScope(deadline=self.budget.deadline):
                    chunk = await anext(chunks, _END)
                if chunk is _END:
                    return
                if chunk is _CUT:
                    self.budget.is_cut = True
                else:
                    yield chunk

    async def call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        call = Call.of(call)
        if self.budget.is_late:
            return call.refusal(f"not run: {self.budget.used_up(seconds=True)}")
        with anyio.CancelScope(deadline=self.budget.deadline):
            return self._without_refused_handoff(call, await self.handlers.call_tool(call, context, started))
        return call.outcome or self._cut(call)

    def _cut(self, call: Call) -> ToolOutcome:
        if not call.has_started:
            return call.refusal(f"not run: {self.budget.used_up(seconds=True)}")
        still_running = call.tool is not None and call.tool.abandon_on_cancel
        text = f"{OUTCOME_UNKNOWN}{STILL_RUNNING if still_running else ''} ({self.budget.used_up(seconds=True)})"
        return ToolOutcome(text, unknown=True, still_running=still_running)

    def _without_refused_handoff(self, call: Call, outcome: ToolOutcome) -> ToolOutcome:
        """Return the outcome, without its handoff if the budget refuses it."""
        if not isinstance(outcome, ToolOutcome) or outcome.agent is None or outcome.result is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            return outcome
        text = self.budget.handoff_refusal(call, outcome.agent)
        if text is None:
            return outcome
        return replace(outcome, content=text, result=outcome.result.model_copy(update={"agent": None}))
