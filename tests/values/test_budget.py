"""`Budget` checks its own values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from aswarm import Budget, ConfigurationError


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: value} for name in ("turns", "tokens", "repeats") for value in (0, -1, 1.5, True, "3")),
        *({name: value} for name in ("tool_calls", "handoffs") for value in (-1, 1.5, True, "3")),
        *({name: value} for name in ("cost", "seconds") for value in (0, -1, True, "3", math.nan, math.inf)),
    ],
    ids=str,
)
def test_a_limit_that_is_no_limit(wrong: dict[str, Any]) -> None:
    """The error names the field."""
    with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} of a Budget must be"):
        Budget(**wrong)


def test_an_unknown_then() -> None:
    """The error names the three that there are."""
    with pytest.raises(ConfigurationError, match='must be "stop", "answer" or "raise"'):
        Budget(then="ask")  # type: ignore[arg-type]


@pytest.mark.parametrize("prices", [{"m": 1}, {"m": (1,)}, {"m": (1, -1)}, {"m": (1, "2")}, [("m", (1, 2))], None])
def test_prices_of_another_form(prices: Any) -> None:
    """The error shows the form."""
    with pytest.raises(ConfigurationError, match="prices of a Budget must be dollars"):
        Budget(prices=prices)


def test_what_is_allowed() -> None:
    """0 calls and 0 handoffs back make sense, and so do parts of a dollar and of a second."""
    budget = Budget(
        turns=1, tokens=1, cost=0.01, seconds=0.5, tool_calls=0, repeats=1, handoffs=0, prices={"m": [1, 2]}
    )  # type: ignore[dict-item]
    assert dataclasses.replace(budget, then="answer").tool_calls == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.turns = 2  # type: ignore[misc]
