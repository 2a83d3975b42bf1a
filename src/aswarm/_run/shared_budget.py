"""`SharedBudget`: a budget for several runs together."""

from __future__ import annotations

# `Mapping` and `Then` are in the hints of `__init__`, which `dataclass` makes.
import threading
from collections.abc import Mapping  # noqa: F401  # pyright: ignore[reportUnusedImport]
from dataclasses import dataclass, field

from aswarm._values.budget import Budget, Limit, Then  # noqa: F401  # pyright: ignore[reportUnusedImport]
from aswarm._values.foreign_names import explained

from .budget import Spending

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
