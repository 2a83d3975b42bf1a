"""What a run has used, together with the runs inside its tools.

Counts, and compares with one budget. `_run.budget_control` decides what follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from aswarm._budget import Budget, Limit
from aswarm._usage import Usage


@dataclass(eq=False, slots=True)
class Spending:
    """What a run has used, with the runs inside its tools. `outer` is that of the run around it, which shares it all.

    `turns` and `calls` are counted when they are admitted, so that runs side by side in one
    event loop never exceed a limit together.
    `has_refused`: a call was not admitted.
    """

    budget: Budget | None = None
    outer: Spending | None = None
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    calls: int = 0
    cost: Decimal = Decimal(0)
    has_refused: bool = False

    def chain(self) -> Iterator[Spending]:
        """The run itself, and the runs around it, from the inside out."""
        each: Spending | None = self
        while each is not None:
            yield each
            each = each.outer

    def add(self, usage: Usage) -> None:
        """Add what was used by this run, also to the runs around it."""
        for each in self.chain():
            each.usage += usage

    def reached(self) -> Limit | None:
        """The limit of the budget of this run alone that admits no further request, or None."""
        budget, tokens = self.budget, self.usage
        if budget is None:
            return None
        if self.has_refused:
            return "tool_calls"
        if is_reached(self.turns, budget.turns):
            return "turns"
        used = max(tokens.total_tokens, tokens.prompt_tokens + tokens.completion_tokens)
        if is_reached(used, budget.tokens):
            return "tokens"
        return "cost" if is_reached(self.cost, budget.cost) else None


def is_reached(used: float | Decimal, limit: float | None) -> bool:
    """Whether as much was used as the limit allows, or more."""
    return limit is not None and used >= Decimal(str(limit))
