"""What the budgets of a run, and of the runs around it, let it do next.

Decides before each request and each call. Pure: the clock is given, and nothing here waits. `_run.budget_middleware` cuts what
still runs at the deadline.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from decimal import Decimal

from aswarm._agent import Agent
from aswarm._budget import Budget, Limit
from aswarm._errors import BudgetError
from aswarm._text import counted
from aswarm._tools.tool import standing_hold
from aswarm._usage import Usage

from .plan import ToolCall, ToolOutcome
from .prices import price_of
from .repetition import HandoffChain, Repetition
from .spending import Spending, is_reached

logger = logging.getLogger("aswarm")


class BudgetControl:
    """Decides what one run may do next, by its own budget and those of the runs around it.

    `spent`: the limit that was reached, or None. `is_last`: the run makes, or has made, the last completion of
    `then="answer"`. No limit applies to it. `deadline`: in the time of `clock`.
    """

    def __init__(self, spending: Spending, agent: Agent, run_id: str = "") -> None:
        self.spent: Limit | None = None
        self.is_last = False
        self.deadline = math.inf
        self.clock: Callable[[], float] = lambda: -math.inf
        self.provider_url: str | None = None
        self._spending = spending
        self._own = spending.budget or Budget()
        self._owner = spending  # the run whose limit was reached
        repeats, handoffs = self._own.repeats, self._own.handoffs
        self._repetition = None if repeats is None else Repetition(repeats)
        self._handoffs = None if handoffs is None else HandoffChain(handoffs, agent.name)
        self._admitted: set[ToolCall] = set()  # the calls of this turn that may run
        self._kept_back: set[ToolCall] = set()  # those of them whose handoff was refused
        self._model = ""
        self._run_id = run_id
        self._agent = agent
        self._has_warned = False

    @property
    def limits_handoffs(self) -> bool:
        return self._handoffs is not None

    # --- time ---

    def start(self, clock: Callable[[], float]) -> None:
        """The run begins now."""
        if self._own.seconds is not None:
            self.clock, self.deadline = clock, clock() + self._own.seconds

    @property
    def is_late(self) -> bool:
        """Whether the seconds are used up."""
        return not self.is_last and self.clock() >= self.deadline

    # --- a request ---

    def admit_request(self, *, may_ask: bool) -> bool:
        """Whether a request may be made now. `may_ask`: max_turns admits a request. Only then is it counted.

        Raises BudgetError at a limit if the budget says so.
        """
        if self.is_last:
            return False
        self._find_reached_limit()
        if self.spent is not None:
            then = self._own.then if self._owner is self._spending else "stop"
            if then == "raise":
                raise BudgetError(f"the run was stopped, because {self.used_up}")
            if then == "stop" or not may_ask:
                return False
            self.is_last = True
        for each in self._spending.chain() if may_ask else ():
            each.turns += 1
        return True

    def _find_reached_limit(self) -> None:
        """Set `spent` if a limit was reached. Outer runs come first: the outermost run at a limit decides what follows."""
        for each in reversed([*self._spending.chain()]):
            if self.spent is None and (limit := each.reached()):
                self._set_spent(limit, each)
        if self.spent is None and self.is_late:
            self._set_spent("seconds", self._spending)

    def _set_spent(self, limit: Limit, owner: Spending) -> None:
        self.spent, self._owner = limit, owner

    @property
    def used_up(self) -> str:
        """Which budget is used up, as a sentence."""
        return _used_up(self.spent, self._owner.budget)

    @property
    def seconds_used_up(self) -> str:
        """The same sentence, for the seconds of this run."""
        return _used_up("seconds", self._own)

    def check_price(self, model: str) -> None:
        """Raise ConfigurationError if a budget limits the cost and the model of the next request has no price."""
        self._model = model
        self._prices(Usage())

    def add_price(self, usage: Usage, model: str | None = None) -> None:
        """Add what a completion of this run cost, also to the runs around it; `model`: another one than the run has asked."""
        for each, price in self._prices(usage, model):
            each.cost += price
        counts = any(each.budget and (each.budget.tokens or each.budget.cost) for each in self._spending.chain())
        if counts and not (usage.total_tokens or usage.prompt_tokens or self._has_warned):
            self._has_warned = True
            logger.warning(
                "a completion came without a count of its tokens, so the limits tokens and cost of the budget cannot hold",
                extra={"run_id": self._run_id, "agent": self._agent.name},
            )

    def _prices(self, usage: Usage, model: str | None = None) -> list[tuple[Spending, Decimal]]:
        return [
            (each, price_of(model or self._model, usage, each.budget.prices, self.provider_url))
            for each in self._spending.chain()
            if each.budget is not None and each.budget.cost is not None
        ]

    # --- the calls of a turn ---

    def admit_calls(self, calls: Iterable[ToolCall]) -> None:
        """Answer, in call order, the calls that do not run. A call is counted once nothing has to be decided about it.

        Only the function of a call can say that this call waits, so a call that then waits is counted.
        """
        for call in calls:
            if call.outcome is not None or call.hold is not None or _must_wait(call):
                continue
            if (text := self._refusal(call)) is None:
                self._admitted.add(call)
            else:
                call.outcome = ToolOutcome(text)

    def _refusal(self, call: ToolCall) -> str | None:
        if self.is_last:
            return f"not run: {self.used_up}"
        if self._repetition and not _polls(call) and (text := self._repetition.refusal(call)):
            if self._repetition.add_refused(call):
                self._set_spent("repeats", self._spending)
            return text
        for each in self._spending.chain():
            if each.budget and is_reached(each.calls, each.budget.tool_calls):
                each.has_refused = True
                self._set_spent("tool_calls", each)
                return f"not run: {self.used_up}"
        for each in self._spending.chain():
            each.calls += 1
        return None

    def handoff_refusal(self, call: ToolCall, target: Agent) -> str | None:
        """Why this call does not hand over to the agent, for the model; None if it does."""
        text = self._handoffs.refusal(target.name) if self._handoffs else None
        if text is not None:
            self._kept_back.add(call)
        return text

    def end_turn(self, calls: Iterable[ToolCall], agent: Agent, target: Agent | None) -> None:
        """Learn from the calls that have run. `agent` made them, `target` takes over."""
        self._agent = target or agent
        ran = self._admitted - self._kept_back
        work = [call for call in calls if call in ran and not _hands_over(call)]
        for call in work:
            if self._repetition and call.outcome and not _polls(call):
                self._repetition.add(call, call.outcome.content)
        if self._handoffs:
            self._count_handoffs(self._handoffs, agent, target, has_worked=bool(work))
        if self._repetition:
            self._repetition.end_turn()
        self._admitted.clear()
        self._kept_back.clear()

    def _count_handoffs(self, chain: HandoffChain, agent: Agent, target: Agent | None, *, has_worked: bool) -> None:
        if has_worked:
            chain.end(agent.name)
        if target is not None:
            chain.add(target.name)
        elif self._kept_back and not has_worked and chain.add_refused():
            self._set_spent("handoffs", self._spending)


def _hands_over(call: ToolCall) -> bool:
    return call.outcome is not None and call.outcome.agent is not None


def _must_wait(call: ToolCall) -> bool:
    return not call.is_approved and call.tool is not None and standing_hold(call.tool) is not None


def _polls(call: ToolCall) -> bool:
    return call.tool is not None and call.tool.polls


def _used_up(limit: Limit | None, budget: Budget | None) -> str:
    value = getattr(budget, limit or "", 0)
    if limit == "cost":
        return f"the budget of ${value:g} is used up"
    return f"the budget of {counted(value, str(limit).replace('_', ' ').removesuffix('s'))} is used up"
