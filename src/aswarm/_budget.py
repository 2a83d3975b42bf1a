"""`Budget`: how much a run may use. A value that checks its own form; `_run.budget_control` decides what it does to a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from ._errors import ConfigurationError
from ._json import is_array, is_count, is_count_from_0, is_object

# The limits, in the order in which they are looked at: the first that is reached is in `Response.spent`.
Limit = Literal["tool_calls", "repeats", "handoffs", "turns", "tokens", "cost", "seconds"]
Then = Literal["stop", "answer", "raise"]
_COUNTS = ("turns", "tokens", "repeats")  # 0 of these would be a run that does nothing
_COUNTS_FROM_0 = ("tool_calls", "handoffs")
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one run may use. Each limit is None (no limit) by default, and is looked at before a request or a call.

        response = await swarm.run(agent, "Plan the trip.", budget=Budget(cost=0.05, seconds=30, then="answer"))

    `turns`: completions. `tokens`: input and output, as the provider counts them. `cost`: US dollars, by the prices of
    genai-prices (extra `prices`); `prices={model: (input, output)}`, in dollars for a million tokens, for models that it
    does not know, and in place of its prices. `seconds`: from the start of the run; a completion or a call that is not
    ready by then is cut. `tool_calls`: calls of functions, handoffs included. Runs inside the tools of a run share these.

    `repeats`: how often the same function may have the same result from the same arguments while nothing new comes from
    any other call. `handoffs`: how often agents may hand back to one that was active before, with nothing but handoffs
    between.

    A call above `repeats` or `handoffs` does not run, and the model is told so; if it insists, the run stops.

    `then`: at a limit, "stop" ends the run with `response.stop == "budget"`; "answer" asks for one more completion first,
    in which no tool may be called, and which may exceed the budget; "raise" raises BudgetError. `response.spent` names the limit.

    Raises ConfigurationError for a limit that is not a number, or is too small to let a run do anything.
    """

    turns: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    tool_calls: int | None = None
    repeats: int | None = None
    handoffs: int | None = None
    then: Then = "stop"
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _check(name, getattr(self, name), "a whole number from 1", is_count)
        for name in _COUNTS_FROM_0:
            _check(name, getattr(self, name), "a whole number from 0", is_count_from_0)
        for name in ("cost", "seconds"):
            _check(name, getattr(self, name), "a number above 0", _is_above_0)
        if self.then not in get_args(Then):
            raise ConfigurationError(f'then of a Budget must be "stop", "answer" or "raise", not {self.then!r}')
        if not (is_object(self.prices) and all(map(_is_price, self.prices.values()))):
            raise ConfigurationError(
                "prices of a Budget must be dollars for a million tokens by model, such as "
                f'{{"my-model": (0.5, 1.5)}} for input and output, not {self.prices!r}'
            )


def _check(name: str, value: object, expected: str, fits: Callable[[object], bool]) -> None:
    if value is not None and not fits(value):
        raise ConfigurationError(f"{name} of a Budget must be {expected}, not {value!r}; leave it out for no limit")


def _is_above_0(value: object) -> bool:
    return _is_amount(value) and value != 0


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_price(value: object) -> bool:
    return is_array(value) and len(value) == _PAIR and all(map(_is_amount, value))


def checked_budget(budget: object) -> Budget | None:
    """The budget that a caller passed. Raises ConfigurationError for a value that is neither a Budget nor None."""
    if budget is None or isinstance(budget, Budget):
        return budget
    raise ConfigurationError(f"budget must be a Budget, such as Budget(tool_calls=10), not {budget!r}")
