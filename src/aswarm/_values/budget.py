"""The limits of a run: `Budget`, which checks itself and which `_run.budget` applies, and `max_turns`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from .errors import ConfigurationError
from .json import is_array, is_count, is_count_from_0, is_object
from .public_names import explained

# The limits, in the order of the checks. `Response.spent` names the first limit that was reached.
Limit = Literal["tool_calls", "repeats", "handoffs", "turns", "tokens", "cost", "seconds"]
Then = Literal["stop", "answer", "raise"]
_PAIR = 2


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of one run. The run checks them before each request and each call. By default, there is no limit (None).

        response = await swarm.run(agent, "Plan the trip.", budget=Budget(cost=0.05, seconds=30, then="answer"))

    Runs inside the tools of a run share its limits. But each run counts `repeats` and `handoffs` separately. If a call exceeds
    one of these two, it does not run, and the model gets the reason. If the model retries the call, the run stops.

    Args:
        turns: The number of completions. If the provider pauses a completion, each further request counts, too.
        tokens: The number of input and output tokens, as the provider counts them.
        cost: The cost in US dollars, with the prices of genai-prices (extra `prices`).
        seconds: The seconds from the start of the run. At the limit, a running completion or call is cancelled.
        tool_calls: The number of tool calls, including handoffs.
        repeats: The number of calls with the same function, arguments and result. A new result of any call restarts the count.
        handoffs: The number of handoffs back to an earlier agent, while the agents only hand off and call nothing else.
        then: The action at a limit. "stop" ends the run with `response.stop == "budget"`. "answer" first requests one more
            completion, which may exceed the budget and cannot call tools. "raise" raises BudgetError. `response.spent` names
            the limit.
        prices: `{model: (input, output)}` in dollars for a million tokens. They override genai-prices.

    Raises:
        ConfigurationError: For a limit that is not a number, or that is too small for a run.
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


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_price(value: object) -> bool:
    return is_array(value) and len(value) == _PAIR and all(map(_is_amount, value))


_EXPECTED: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    # These limits start at 1: with 0, a run could do nothing.
    **dict.fromkeys(("turns", "tokens", "repeats"), ("a whole number from 1", is_count)),
    **dict.fromkeys(("tool_calls", "handoffs"), ("a whole number from 0", is_count_from_0)),
    **dict.fromkeys(("cost", "seconds"), ("a number above 0", lambda value: _is_amount(value) and value != 0)),
}


def checked_budget(budget: object) -> Budget | None:
    """Return the budget. Raises ConfigurationError for a value that is neither a Budget nor None."""
    if budget is None or isinstance(budget, Budget):
        return budget
    raise ConfigurationError(f"budget must be a Budget, such as Budget(tool_calls=10), not {budget!r}")


# --- max_turns --------------------------------------------------------------------------------------------------------

# The defaults of `max_turns`, the maximum of completions; None means no limit.
#
# A single run, and each message of a conversation or a chat: the caller reads the answers. The run logs a warning after
# UNWATCHED completions.
OF_A_RUN: int | None = None
# Items of a batch, cases of an evaluation, calls of a served agent, and runs of the command line: their caller does not watch them.
UNWATCHED = 100
# A run of a web service, whose users pay nothing for it: `Limits.web()`.
OF_A_WEB_SERVICE = 50


def checked_max_turns(value: object) -> int | None:
    """Return the value of `max_turns`. Raises ConfigurationError if it is neither None nor a whole number from 0."""
    if value is None or is_count_from_0(value):
        return value
    raise ConfigurationError(
        f"max_turns must be a whole number of completions, not {value!r}; leave it out, or pass None, for no limit"
    )
