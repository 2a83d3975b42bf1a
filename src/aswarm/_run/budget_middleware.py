"""A budget for several runs together, and the middleware of a budget, which cancels completions and calls at the deadline.

A cancel scope is open around a single await, never across a `yield` (PEP 789). A plain function in a thread cannot be
cancelled. The run waits for its end, unless its tool has `abandon_on_cancel`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Mapping,  # pyright: ignore[reportUnusedImport]
)
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import anyio

from aswarm._values.agent import Agent
from aswarm._values.budget import Budget, Limit, Then  # noqa: F401  # pyright: ignore[reportUnusedImport]
from aswarm._values.messages import OUTCOME_UNKNOWN, STILL_RUNNING
from aswarm._values.public_names import explained
from aswarm._wire.request import CompletionRequest

from .budget import BudgetControl, Spending
from .call import Call, ToolCall
from .handlers import Handlers, Middleware, Started
from .outcome import ToolOutcome

# `Mapping` and `Then` are in the hints of `__init__`, which `dataclass` makes.


# A single lock for all shared budgets, because a run may count for several. Runs of several event loops may share a budget.
_LOCK = threading.Lock()


@explained
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedBudget(Budget):
    """The limits of several runs together, for a workflow in plain Python. Its fields are those of `Budget`.

        budget = SharedBudget(cost=0.50, seconds=60)
        plan = await swarm.run(planner, question, budget=budget)
        report = await swarm.run(writer, plan.text, budget=budget)

    Pass one object to all runs of the workflow: to `run`, `stream`, a conversation, a batch, or `Swarm`. The runs may be
    concurrent, and in several event loops and threads. They never exceed `turns` and `tool_calls` together; `tokens` and `cost`
    only by the requests that have been sent and have not finished. `seconds` count from the start of the first run. `repeats` and
    `handoffs` count in each run separately. At a limit, `then` applies to each run. A run whose outer run has the same budget
    counts once, and ends with `stop="budget"`.

    The object has its counts in the memory of this process, and is not reset. `AsyncSwarm(budget=SharedBudget(...))` limits all
    runs of the swarm together.

    Raises:
        ConfigurationError: As for `Budget`.
    """

    _spending: Spending = field(init=False, repr=False)

    def __post_init__(self) -> None:
        Budget.__post_init__(self)  # not super(): a class with slots is another class than the one of this method
        object.__setattr__(self, "_spending", Spending(self, lock=_LOCK))

    def __eq__(self, other: object) -> bool:
        """Two objects with equal limits are different budgets."""
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def used(self) -> dict[Limit, float]:
        """The turns, tokens and tool calls of all runs so far; the dollars too, if `cost` limits them."""
        spending = self._spending
        used: dict[Limit, float] = {
            "turns": spending.turns, "tokens": spending.tokens, "tool_calls": spending.calls,
        }  # fmt: skip
        return used if self.cost is None else {**used, "cost": float(spending.cost)}


def spending_of(budget: Budget | None, outer: Spending | None) -> Spending:
    """Return the spending of a new run. `outer`: the spending of the run around it."""
    if not isinstance(budget, SharedBudget):
        return Spending(budget, outer)
    shared = budget._spending
    # An outer run with the same budget counts this run too, and decides at the limit.
    is_counted = outer is not None and any(each is shared for each in outer.chain())
    return Spending(None, outer, shared=None if is_counted else shared)


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
