"""`Budget`: the limits of a run, a value that checks its own form. `_run.budget_control` applies the limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from .errors import ConfigurationError
from .json import is_array, is_count, is_count_from_0, is_object

# The limits, in the order of their checks: the first that is reached is in `Response.spent`.
Limit = Literal["tool_calls", "repeats", "handoffs", "turns", "tokens", "cost", "seconds"]
Then = Literal["stop", "answer", "raise"]
_PAIR = 2


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one run. Each is None (no limit) by default, and is checked before a request or a call.

        response = await swarm.run(agent, "Plan the trip.", budget=Budget(cost=0.05, seconds=30, then="answer"))

    Runs inside the tools of a run share its limits. Only `repeats` and `handoffs` are counted in each run separately. A call
    above these two does not run, and the model gets the reason; if the model retries it, the run stops.

    Args:
        turns: Completions.
        tokens: Input and output tokens, as the provider counts them.
        cost: US dollars, by the prices of genai-prices (extra `prices`).
        seconds: Seconds from the start of the run. A completion or a call that is not ready by then is cut.
        tool_calls: Calls of functions, handoffs included.
        repeats: Calls of one function with the same arguments and the same result, while no other call has a new result.
        handoffs: Handoffs back to an agent that was active before, with only handoffs in between.
        then: "stop" ends the run at a limit, with `response.stop == "budget"`. "answer" first requests one more completion,
            which may exceed the budget and cannot call tools. "raise" raises BudgetError. `response.spent` names the limit.
        prices: `{model: (input, output)}` in dollars for a million tokens, with priority over genai-prices.

    Raises:
        ConfigurationError: For a limit that is not a number, or too small for a run.
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
        for name, (expected, fits) in _EXPECTED.items():
            value = getattr(self, name)
            if value is not None and not fits(value):
                raise ConfigurationError(
                    f"{name} of a Budget must be {expected}, not {value!r}; leave it out for no limit"
                )
        if self.then not in get_args(Then):
            raise ConfigurationError(f'then of a Budget must be "stop", "answer" or "raise", not {self.then!r}')
        if not (is_object(self.prices) and all(map(_is_price, self.prices.values()))):
            raise ConfigurationError(
                "prices of a Budget must be dollars for a million tokens by model, such as "
                f'{{"my-model": (0.5, 1.5)}} for input and output, not {self.prices!r}'
            )


def _is_above_0(value: object) -> bool:
    return _is_amount(value) and value != 0


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_price(value: object) -> bool:
    return is_array(value) and len(value) == _PAIR and all(map(_is_amount, value))


_EXPECTED: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    # With a limit of 0 here, a run could do nothing.
    **dict.fromkeys(("turns", "tokens", "repeats"), ("a whole number from 1", is_count)),
    **dict.fromkeys(("tool_calls", "handoffs"), ("a whole number from 0", is_count_from_0)),
    **dict.fromkeys(("cost", "seconds"), ("a number above 0", _is_above_0)),
}


def checked_budget(budget: object) -> Budget | None:
    """Return the budget. Raises ConfigurationError for a value that is neither a Budget nor None."""
    if budget is None or isinstance(budget, Budget):
        return budget
    raise ConfigurationError(f"budget must be a Budget, such as Budget(tool_calls=10), not {budget!r}")
