"""The cost of a completion: prices of the budget, prices of genai-prices, and models without a price."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import TieredPrices
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, Budget, CompletionError, ConfigurationError, Usage, agent_tool
from aswarm._values.text import how_to_install
from aswarm._values.usage import LONG_PROMPTS, price_of, price_table, set_price
from aswarm.middleware import cache, fallback
from aswarm.testing import ScriptedAnswer, ScriptedModel
from tests.support.wire.caching_model import CachingModel

MILLION = 1_000_000
OPENAI = "https://api.openai.com/v1"


def used(prompt: int, completion: int, total: int = 0, **details: Any) -> Usage:
    return Usage(prompt, completion, total, 1, {"prompt_tokens_details": details} if details else {})


def priced(usage: Usage, model: str, url: str | None, prices: dict[str, tuple[float, float]]) -> Usage:
    set_price(usage := replace(usage), model, url, prices)
    return usage


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


def test_writes_of_one_hour_to_the_cache_have_their_own_price() -> None:
    """For one completion, and for a sum. More of them than of all writes are a mistake of the server."""
    for long_writes, expected in ((0, "3.75"), (MILLION, "6"), (9 * MILLION, "6"), (None, "3.75")):
        usage = used(MILLION, 0, cache_write_tokens=MILLION, cache_write_1h_tokens=long_writes)
        assert price_of("claude-sonnet-4-6", usage, {}) == Decimal(expected)
        set_price(usage, "claude-sonnet-4-6", None, {})
        assert usage.cost == pytest.approx(float(expected))


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


async def test_an_unknown_price_is_an_error_before_the_request() -> None:
    model = ScriptedModel(["Hi"])
    swarm = AsyncSwarm(model.client())
    with pytest.raises(ConfigurationError, match="genai-prices has no price for the model"):
        await swarm.run(Agent(model="llama-of-mine"), "Go", budget=Budget(cost=1))
    assert model.requests == []
    budget = Budget(cost=1, prices={"llama-of-mine": (1, 1)})
    assert (await swarm.run(Agent(model="llama-of-mine"), "Go", budget=budget)).text == "Hi"


# --- Usage.cost -------------------------------------------------------------------------------------------------------

_COUNTS = st.integers(0, 600_000)
_COMPLETIONS = st.lists(
    st.tuples(
        st.sampled_from(["gpt-4o", "gpt-5.4", "gemini-2.5-pro", "claude-sonnet-4-5"]),
        _COUNTS,
        st.integers(0, 9_000),
        _COUNTS,
    ),
    max_size=6,
)


@given(_COMPLETIONS)
def test_the_cost_of_a_sum_is_the_sum_of_the_prices(completions: list[tuple[str, int, int, int]]) -> None:
    """This is true although long prompts of some models cost more for each token."""
    usages = [
        (
            model,
            used(
                prompt,
                output,
                cached_tokens=share % (prompt + 1),
                cache_write_tokens=(prompt - share % (prompt + 1)) // 2,
            ),
        )
        for model, prompt, output, share in completions
    ]
    total = sum((priced(usage, model, None, {}) for model, usage in usages), Usage())
    assert total.cost == pytest.approx(float(sum(price_of(model, usage, {}) for model, usage in usages)))
    assert total == sum((usage for _, usage in usages), Usage())


def test_the_sizes_of_long_prompts_are_those_of_genai_prices() -> None:
    """If this fails after an update of genai-prices, add the new sizes to `LONG_PROMPTS`."""
    models = [model for provider in get_snapshot().providers for model in provider.models]
    conditional = [model.prices if isinstance(model.prices, list) else [model.prices] for model in models]
    prices = [getattr(price, "prices", price) for listed in conditional for price in listed]
    tiered = [value for price in prices for value in vars(price).values() if isinstance(value, TieredPrices)]
    assert {tier.start for value in tiered for tier in value.tiers} <= {*LONG_PROMPTS}


def test_the_prices_of_a_model_by_the_size_of_its_prompt() -> None:
    """The page computes the same cost from them. Only a size with other prices is an item."""
    assert [item["above"] for item in price_table("gpt-4o", OPENAI)] == [0]
    long = price_table("gemini-2.5-pro", None)
    assert len(long) == 2
    usage = priced(used(300_000, 1_000, cached_tokens=100_000), "gemini-2.5-pro", None, {})
    rates = long[1]
    assert long[1]["above"] < 300_000
    assert usage.cost == pytest.approx(
        200_000 * rates["input_tokens"] + 100_000 * rates["cache_read_tokens"] + 1_000 * rates["output_tokens"]
    )
    assert price_table("llama-of-mine", None) == []


def test_a_cost_that_is_unknown() -> None:
    known = priced(used(10, 10), "gpt-4o", OPENAI, {})
    assert Usage().cost == 0
    assert used(10, 10).cost is None
    assert (known + used(10, 10)).cost is None
    assert (used(10, 10) + known + known).cost is None
    assert (known + priced(used(10, 10), "llama-of-mine", None, {})).cost is None
    assert (known + priced(used(10, 10), "llama-of-mine", None, {"llama-of-mine": (1, 1)})).cost == pytest.approx(
        145e-6
    )


async def test_the_cost_of_a_run() -> None:
    """Each completion has the price of the model that answered, and cached tokens have their own price."""
    model = CachingModel(["One.", "Two."])
    model.fails = lambda body: CompletionError("gone", status_code=404) if body["model"] == "gpt-gone" else None
    swarm = AsyncSwarm(model, middleware=[fallback("gpt-4o")])
    agent = Agent(model="gpt-gone", instructions="Help. " * 5_000)
    first, second = await swarm.run(agent, "Go"), await swarm.run(agent, "Go")
    assert first.cost == float(price_of("gpt-4o", first.usage, {}))
    assert second.cost is not None
    assert first.cost is not None
    assert second.cost < first.cost * 0.6


async def test_the_cost_of_an_inner_run_and_of_own_prices() -> None:
    model = CachingModel([[("ask_helper", {"request": "Help."})], "Yes.", "Done."])
    helper = Agent(name="helper", model="own", instructions="Help.")
    agent = Agent(model="gpt-4o", functions=[agent_tool(helper, name="ask_helper")])
    budget = Budget(cost=1, prices={"own": (1_000, 0)})
    response = await AsyncSwarm(model).run(agent, "Go", budget=budget)
    tokens = [usage["prompt_tokens"] for usage in model.usages]
    assert response.cost == pytest.approx(tokens[1] / 1_000 + (tokens[0] + tokens[2]) * 2.5e-6 + 20 * 1e-5, rel=0.05)


async def test_a_completion_that_was_not_sent_costs_nothing() -> None:
    """A provider that reports no tokens has an unknown cost; the middleware `cache` sends no second request."""
    model = CachingModel(["One."])
    swarm = AsyncSwarm(model, middleware=[cache({})])
    agent = Agent(model="gpt-4o")
    assert (await swarm.run(agent, "Go")).cost is not None
    assert (await swarm.run(agent, "Go")).cost == 0
    silent = ScriptedModel([ScriptedAnswer("Hi", usage=None)])
    assert (await AsyncSwarm(silent.client()).run(agent, "Go")).cost is None
