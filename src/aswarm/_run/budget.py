"""The limits of a run: its own budget, a shared budget, the budgets of its outer runs, and the check for circles.

An outer run is a run that started this run in one of its tools. Before each request and each tool call, `BudgetControl`
decides whether the budgets allow it. It does no I/O: the clock is a parameter. `_run.budget_middleware` cancels a completion
or a call at the deadline. `Spending` counts the requests, tokens and calls of a run, with the runs inside its tools, and compares
them with one budget.
"""

from __future__ import annotations

import json
import logging
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from aswarm._runtime import clocks
from aswarm._tools.tool import standing_hold
from aswarm._values.agent import Agent
from aswarm._values.budget import Budget, Limit
from aswarm._values.errors import BudgetError
from aswarm._values.json import shown
from aswarm._values.messages import call_arguments
from aswarm._values.text import counted
from aswarm._values.usage import CONTINUED, Prices, Usage, price_of

from .call import Call

_SHOWN = 200
# The identity of a call: the agent that made it, the name of the function, and its arguments.
_Key = tuple[str, str, str]


class Repetition:
    """Counter of calls with the same arguments and the same result. After `limit` such calls, it refuses the next such call.

    If a call returns another result than before, all counts restart: the run makes progress. For example, a run may read the
    same file again after each change.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last: dict[_Key, str] = {}
        self._times: dict[_Key, int] = {}
        self._refused: dict[_Key, int] = {}  # the number of turns in which a call was refused
        self._refused_now: set[_Key] = set()  # the calls that were refused in this turn

    def refusal(self, call: Call) -> str | None:
        """Return a text for the model if the call is refused, otherwise None."""
        if self._times.get(key := _key_of(call), 0) < self._limit:
            return None
        return f"not run: this call was made {_times(self._limit)} with this result: {shown(self._last[key], _SHOWN)}"

    def add_refused(self, call: Call) -> bool:
        """Count a refused call, once in each turn. Return whether it was refused in `limit` turns, and in at least two.

        The model reads the refusals after the turn. So several refusals in one turn are not yet a retry by the model.
        """
        key = _key_of(call)
        if key not in self._refused_now:
            self._refused_now.add(key)
            self._refused[key] = self._refused.get(key, 0) + 1
        return self._refused[key] >= max(2, self._limit)

    def end_turn(self) -> None:
        """Finish the turn, after which the model reads the refusals."""
        self._refused_now.clear()

    def add(self, call: Call, result: str | list[dict[str, Any]]) -> None:
        """Count a call that has run."""
        key, text = _key_of(call), result if isinstance(result, str) else json.dumps(result, default=str)
        if self._last.get(key) == text:
            self._times[key] = self._times.get(key, 0) + 1
        elif call.tool is not None and call.tool._is_replayed:  # the calls inside show whether the run makes progress
            self._times[key] = 1
        else:
            self._times, self._refused = {key: 1}, {}
        self._last[key] = text


class HandoffChain:
    """Counter of handoffs without another call in between. At most `limit` of them may return to an earlier agent."""

    def __init__(self, limit: int, agent: str) -> None:
        self._limit = limit
        self._agents = {agent}
        self._backward = 0
        self._refused = 0

    def refusal(self, target: str) -> str | None:
        """Return a text for the model if a handoff to the agent of this name is refused, otherwise None."""
        if target not in self._agents or self._backward < self._limit:
            return None
        often = "" if not self._limit else f" {_times(self._limit)}"
        return (
            f"not handed over to {target}: the conversation was handed back{often} with nothing done in between; "
            "answer the user, or call another function"
        )

    def add(self, target: str) -> None:
        """Count a handoff."""
        self._backward += target in self._agents
        self._agents.add(target)

    def add_refused(self) -> bool:
        """Count a turn with a refused handoff. Return whether this is a retry: an earlier turn also had a refused handoff."""
        self._refused += 1
        return self._refused > 1

    def end(self, agent: str) -> None:
        """Restart the count at this agent, after a call that was not a handoff."""
        self._agents, self._backward, self._refused = {agent}, 0, 0


def _key_of(call: Call) -> _Key:
    arguments = call_arguments(call.message)  # as the model sent them: a middleware may change `call.arguments`
    with suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    return call.agent.name, call.name, arguments


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


_NO_LOCK = nullcontext()


@dataclass(eq=False, slots=True)
class Spending:
    """The spending of a run, including the runs inside its tools. `outer`: the spending of the run around this run.

    `turns` and `calls` are counted before they start, so that concurrent runs never exceed a common limit. `has_refused`:
    whether a budget has refused a call.

    `shared`: the spending of the `SharedBudget` of the run, which counts several runs. It has a `lock`, because these runs may
    be in several threads, and `started`, the start of the first run on the clock of the process.
    """

    budget: Budget | None = None
    outer: Spending | None = None
    shared: Spending | None = None
    lock: AbstractContextManager[Any] | None = None
    started: float | None = None
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    calls: int = 0
    cost: Decimal = Decimal(0)
    has_refused: bool = False

    def chain(self) -> Iterator[Spending]:
        """Yield the spending of this run and of its shared budget, then of its outer runs; the outermost run is last."""
        spending: Spending | None = self
        while spending is not None:
            yield spending
            if spending.shared is not None:
                yield spending.shared
            spending = spending.outer

    def add(self, usage: Usage) -> None:
        """Add the usage to this run, its shared budget and its outer runs."""
        with self.common_lock():
            for spending in self.chain():
                spending.usage += usage

    def common_lock(self) -> AbstractContextManager[Any]:
        """Return the lock to count with. All shared budgets have the same lock."""
        return next((each.lock for each in self.chain() if each.lock is not None), _NO_LOCK)

    def seconds_left(self) -> float:
        """Return the seconds that are left of this budget; infinite without a limit."""
        if self.budget is None or self.budget.seconds is None:
            return math.inf
        if self.lock is None:  # the budget of a single run, which starts now
            return self.budget.seconds
        now = clocks.monotonic()
        self.started = now if self.started is None else self.started
        return self.budget.seconds - (now - self.started)

    @property
    def prices(self) -> Prices:
        """The prices of the innermost budget that has prices."""
        none: Prices = {}
        prices = (each.budget.prices for each in self.chain() if each.budget is not None)
        return next(filter(None, prices), none)

    @property
    def tokens(self) -> int:
        """The number of tokens, as the provider counts them."""
        return max(self.usage.total_tokens, self.usage.prompt_tokens + self.usage.completion_tokens)

    def reached(self) -> Limit | None:
        """Return the limit of this run's own budget that is reached and allows no further request, or None."""
        budget = self.budget
        if budget is None:
            return None
        if self.has_refused:
            return "tool_calls"
        if is_reached(self.turns, budget.turns):
            return "turns"
        if is_reached(self.tokens, budget.tokens):
            return "tokens"
        return "cost" if is_reached(self.cost, budget.cost) else None


def is_reached(used: float | Decimal, limit: float | None) -> bool:
    """Return whether `used` has reached the limit. `limit`: None for no limit."""
    return limit is not None and used >= Decimal(str(limit))


logger = logging.getLogger("aswarm")


class BudgetControl:
    """Control of one run by its own budget and the budgets of its outer runs.

    `spent`: the limit that was reached, or None.
    `is_last`: whether a budget with `then="answer"` reached a limit. The run then makes one final completion without limits.
    `deadline`: the time on `clock` at which the seconds are used up; infinite for the final completion.
    `may_cut`: whether the budget limits the seconds.
    `is_cut`: whether the deadline has cancelled the current completion.
    `is_paused`: whether the provider has paused the completion, and a limit refuses the request that continues it.
    """

    def __init__(self, spending: Spending, agent: Agent, run_id: str = "") -> None:
        self.spent: Limit | None = None
        self.is_last = False
        self.is_cut = False
        self.is_paused = False
        self.deadline = math.inf
        self.may_cut = False
        self.clock: Callable[[], float] = lambda: -math.inf
        self.provider_url: str | None = None
        self._spending = spending
        self._lock = spending.common_lock()
        # The budgets that were passed to this run. Their `then` applies.
        self._own = [each for each in (spending, spending.shared) if each is not None]
        self._owner = self._seconds_owner = spending  # the run or the shared budget whose limit was reached
        # A run inside a tool inherits the limits of its outer runs, but not their counts: it counts from 0.
        repeats, self._repeats_owner = _lowest(spending, "repeats")
        handoffs, self._handoffs_owner = _lowest(spending, "handoffs")
        self._repetition = None if repeats is None else Repetition(repeats)
        self.limits_handoffs = handoffs is not None
        self._handoffs = None if handoffs is None else HandoffChain(handoffs, agent.name)
        self._admitted: set[Call] = set()  # the calls of this turn that may run
        self._refused_handoffs: set[Call] = set()  # the admitted calls whose handoff was refused
        self._continued = 0  # the requests that have continued the current completion, and are counted
        self._model = ""
        self._run_id = run_id
        self._agent = agent
        self._has_warned = False

    # --- time ---

    def start(self, clock: Callable[[], float]) -> None:
        """Start the time limit of the run."""
        left, owner = min(((each.seconds_left(), each) for each in self._own), key=operator.itemgetter(0))
        if left < math.inf:
            self.clock, self.deadline, self.may_cut = clock, clock() + left, True
            self._seconds_owner = owner

    @property
    def is_late(self) -> bool:
        """Whether the seconds are used up."""
        return self.clock() >= self.deadline

    # --- a request ---

    def admit_request(self, *, may_ask: bool) -> bool:
        """Return whether the budgets allow a request now. If `max_turns` also allows it (`may_ask`), count the request.

        Raises BudgetError if a budget with `then="raise"` has reached a limit.
        """
        if self.is_last:
            return False
        with self._lock:
            return self._admit_request(may_ask=may_ask)

    def _admit_request(self, *, may_ask: bool) -> bool:
        # Outer runs come first: the outermost run at a limit decides how this run stops.
        for spending in reversed([*self._spending.chain()]):
            if self.spent is None and (limit := spending.reached()):
                self._set_spent(limit, spending)
        if self.spent is None and self.is_late:
            self._set_spent("seconds", self._seconds_owner)
        if self.spent is not None:
            budget = self._owner.budget
            then = budget.then if budget is not None and self._owner in self._own else "stop"
            if then == "raise":
                raise BudgetError(f"the run was stopped, because {self.used_up()}")
            if then == "stop" or not may_ask:
                return False
            self.is_last, self.deadline = True, math.inf
        for spending in self._spending.chain() if may_ask else ():
            spending.turns += 1
        self.is_paused = False
        return True

    def admit_next(self) -> bool:
        """Return whether the budgets allow the request that continues a paused completion. If they do, count it."""
        with self._lock:
            if self._has_reached():
                return False
            for spending in self._spending.chain():
                spending.turns += 1
        self._continued += 1
        return True

    def end_completion(self, finish_reason: str | None) -> None:
        """Set `is_paused`. A replay of a recorded run sends nothing, so the finish reason decides."""
        self.is_paused = finish_reason == "pause_turn" and self._has_reached()

    def _has_reached(self) -> bool:
        return not self.is_last and any(spending.reached() for spending in self._spending.chain())

    def _set_spent(self, limit: Limit, owner: Spending) -> None:
        self.spent, self._owner = limit, owner

    def used_up(self, *, seconds: bool = False) -> str:
        """Return a sentence about the limit that was reached, or about the seconds of the run."""
        limit, owner = ("seconds", self._seconds_owner) if seconds else (self.spent, self._owner)
        value = getattr(owner.budget, limit or "", 0)
        if limit == "cost":
            return f"the budget of ${value:g} is used up"
        return f"the budget of {counted(value, str(limit).replace('_', ' ').removesuffix('s'))} is used up"

    def check_price(self, model: str) -> None:
        """Raise ConfigurationError if a budget limits the cost and the model of the next request has no price."""
        self._model = model
        self._prices(Usage())

    def add_price(self, usage: Usage, model: str | None = None) -> None:
        """Add the price of a completion, and its further requests, to this run and its outer runs. `model`: None for the model of the run."""
        prices = self._prices(usage, model)
        paused = usage.details.get(CONTINUED, 0)  # further requests of a completion that the provider has paused
        if model is None:  # a completion of the run, whose further requests were counted when they were sent
            paused, self._continued = max(0, paused - self._continued), 0
        with self._lock:
            for spending, price in prices:
                spending.cost += price
            for spending in self._spending.chain() if paused else ():
                spending.turns += paused
        counts = any(
            spending.budget and (spending.budget.tokens or spending.budget.cost) for spending in self._spending.chain()
        )
        if counts and not (usage.total_tokens or usage.prompt_tokens or self._has_warned):
            self._has_warned = True
            logger.warning(
                "the provider reported no token count for a completion, so the budget cannot limit tokens and cost",
                extra={"run_id": self._run_id, "agent": self._agent.name},
            )

    def _prices(self, usage: Usage, model: str | None = None) -> list[tuple[Spending, Decimal]]:
        return [
            (spending, price_of(model or self._model, usage, spending.budget.prices, self.provider_url))
            for spending in self._spending.chain()
            if spending.budget is not None and spending.budget.cost is not None
        ]

    # --- the calls of a turn ---

    def admit_calls(self, calls: Iterable[Call]) -> None:
        """Count, in call order, the calls that may run, and refuse the other calls.

        A call that waits for an approval is not counted, because its function has not started. If the function raises Hold, it
        has started, so its call is counted.
        """
        for call in calls:
            must_wait = not call.has_approval and call.tool is not None and standing_hold(call.tool) is not None
            if call.outcome is not None or call.hold is not None or must_wait:
                continue
            with self._lock:
                text = self._refusal(call)
            if text is None:
                self._admitted.add(call)
            else:
                call.finish(call.refusal(text))

    def may_start(self, call: Call) -> bool:
        """Return whether the budgets still allow this call and all calls before it in its message. Do not count the call."""
        if self.is_last or self.is_late or (self._repetition and not _polls(call) and self._repetition.refusal(call)):
            return False
        return not any(
            spending.budget and is_reached(spending.calls + call.index, spending.budget.tool_calls)
            for spending in self._spending.chain()
        )

    def _refusal(self, call: Call) -> str | None:
        if self.is_last:
            return f"not run: {self.used_up()}"
        if self._repetition and not _polls(call) and (text := self._repetition.refusal(call)):
            if self._repetition.add_refused(call):
                self._set_spent("repeats", self._repeats_owner)
            return text
        for spending in self._spending.chain():
            if spending.budget and is_reached(spending.calls, spending.budget.tool_calls):
                spending.has_refused = spending.lock is None  # each run of a shared budget finds out for itself
                self._set_spent("tool_calls", spending)
                return f"not run: {self.used_up()}"
        for spending in self._spending.chain():
            spending.calls += 1
        return None

    def add_results(self, calls: Iterable[Call]) -> None:
        """Count the results of calls that have run: those of a turn, and those of each round of calls inside code."""
        if (repetition := self._repetition) is not None:
            for call in calls:
                if call in self._admitted and call.outcome and not _polls(call):
                    repetition.add(call, call.outcome.content)

    def handoff_refusal(self, call: Call, target: Agent) -> str | None:
        """Return a text for the model if the handoff of this call is refused, otherwise None."""
        text = self._handoffs.refusal(target.name) if self._handoffs else None
        if text is not None:
            self._refused_handoffs.add(call)
        return text

    def end_turn(self, calls: Iterable[Call], agent: Agent, target: Agent | None) -> None:
        """Count the calls that have run. `agent`: the agent that made them. `target`: the agent of a handoff, or None."""
        self._agent = target or agent
        ran = self._admitted - self._refused_handoffs
        work = [call for call in calls if call in ran and not (call.outcome and call.outcome.agent)]
        self.add_results(work)
        if self._repetition:
            self._repetition.end_turn()
        if self._handoffs:
            code = {call.parent for call in self._admitted}  # does what its calls do
            has_work = any(call not in code and not (call.outcome and call.outcome.agent) for call in ran)
            if has_work:
                self._handoffs.end(agent.name)
            if target is not None:
                self._handoffs.add(target.name)
            elif self._refused_handoffs and not has_work and self._handoffs.add_refused():
                self._set_spent("handoffs", self._handoffs_owner)
        self._admitted.clear()
        self._refused_handoffs.clear()


def _lowest(spending: Spending, limit: Limit) -> tuple[int | None, Spending]:
    """Return the lowest limit of this name for a run and its outer runs, and the spending of the run with this limit."""
    limits = [
        (value, limited) for limited in spending.chain() if (value := getattr(limited.budget, limit, None)) is not None
    ]
    return min(limits, key=operator.itemgetter(0), default=(None, spending))


def _polls(call: Call) -> bool:
    return call.tool is not None and call.tool.polls
