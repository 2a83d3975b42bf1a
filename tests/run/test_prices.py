"""The cost of a completion: prices of the budget, prices of genai-prices, and models without a price."""

from __future__ import annotations

import re
import sys
from decimal import Decimal
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Budget, ConfigurationError, Usage
from aswarm._run.budget import price_of
from aswarm._values.text import how_to_install
from aswarm.testing import ScriptedModel

MILLION = 1_000_000


def used(prompt: int, completion: int, total: int = 0, **details: Any) -> Usage:
    return Usage(prompt, completion, total, 1, {"prompt_tokens_details": details} if details else {})


def test_own_prices() -> None:
    """Prices of the budget are dollars for a million tokens, input and output, and have priority."""
    prices = {"local": (0.5, 1.5), "gpt-4o": (1.0, 1.0)}
    assert price_of("local", used(MILLION, MILLION), prices) == 2
    assert price_of("gpt-4o", used(MILLION, 0), prices) == 1
    assert price_of("local", used(0, 1), {"local": (0, 0.1)}) == Decimal("1E-7")


def test_known_prices() -> None:
    """gpt-4o costs 2.5 and 10 dollars for a million tokens, and a cached token half of it."""
    assert price_of("gpt-4o", used(MILLION, MILLION), {}) == Decimal("12.5")
    assert price_of("gpt-4o", used(MILLION, 0, cached_tokens=MILLION), {}) == Decimal("1.25")
    assert price_of("gpt-4o-2024-11-20", used(MILLION, 0), {}) == Decimal("2.5")


def test_more_cached_tokens_than_tokens() -> None:
    assert price_of("gpt-4o", used(MILLION, 0, cached_tokens=9 * MILLION), {}) == Decimal("1.25")
    for wrong in ("many", None, -5):
        assert price_of("gpt-4o", used(MILLION, 0, cached_tokens=wrong), {}) == Decimal("2.5")
    assert price_of("gpt-4o", Usage(MILLION, details={"prompt_tokens_details": "none"}), {}) == Decimal("2.5")


def test_reasoning_beside_the_output_costs_as_much_as_output() -> None:
    """Tokens that a provider counts only in the total cost as much as output."""
    assert price_of("gpt-4o", used(MILLION, MILLION, 3 * MILLION), {}) == Decimal("22.5")


def test_the_url_decides_which_provider_it_is() -> None:
    """A proxy or an own server has the prices of the model's vendor, another provider its own."""
    assert price_of("openai/gpt-4o", used(MILLION, 0), {}, "https://openrouter.ai/api/v1") == Decimal("2.5")
    assert price_of("gpt-4o", used(MILLION, 0), {}, "http://127.0.0.1:8080/v1/") == Decimal("2.5")
    with pytest.raises(ConfigurationError, match="has no price for the model 'nope' at openai"):
        price_of("nope", used(1, 1), {}, "https://api.openai.com/v1/")


def test_a_model_without_a_price() -> None:
    with pytest.raises(ConfigurationError, match=r"no price for the model 'llama-of-mine'.*prices=\{'llama-of-mine'"):
        price_of("llama-of-mine", used(1, 1), {})


def test_without_genai_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra; prices of the budget work without it."""
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(ConfigurationError, match=re.escape(how_to_install("prices"))):
        price_of("gpt-4o", used(1, 1), {})
    assert price_of("gpt-4o", used(MILLION, 0), {"gpt-4o": (1, 2)}) == 1


@pytest.mark.anyio
async def test_an_unknown_price_is_an_error_before_the_request() -> None:
    model = ScriptedModel(["Hi"])
    swarm = AsyncSwarm(model.client())
    with pytest.raises(ConfigurationError, match="genai-prices has no price for the model"):
        await swarm.run(Agent(model="llama-of-mine"), "Go", budget=Budget(cost=1))
    assert model.requests == []
    budget = Budget(cost=1, prices={"llama-of-mine": (1, 1)})
    assert (await swarm.run(Agent(model="llama-of-mine"), "Go", budget=budget)).text == "Hi"
