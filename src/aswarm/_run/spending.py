"""The spending of a run, including the runs inside its tools: counts, and the price of a completion.

`Spending` counts, and compares the counts with one budget; `_run.budget_control` acts on a reached limit. Prices come from
the caller or from genai-prices, which is imported only for a budget with a cost. A model without a price is an error.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal

from aswarm._values.budget import Budget, Limit
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_object, shown
from aswarm._values.text import how_to_install
from aswarm._values.usage import Usage

_MILLION = 1_000_000
# Parts of the input that a provider counts, and their names in genai-prices.
_PARTS_OF_INPUT = {
    "cached_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "cache_creation_tokens": "cache_write_tokens",
    "audio_tokens": "input_audio_tokens",
}


@dataclass(eq=False, slots=True)
class Spending:
    """The spending of a run, including the runs inside its tools. `outer`: the spending of the run around this run.

    `turns` and `calls` are counted before they start, so that concurrent runs never exceed a common limit. `has_refused`:
    whether a budget has refused a call.
    """

    budget: Budget | None = None
    outer: Spending | None = None
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    calls: int = 0
    cost: Decimal = Decimal(0)
    has_refused: bool = False

    def chain(self) -> Iterator[Spending]:
        """Yield the spending of this run, then of its outer runs; the outermost run is last."""
        spending: Spending | None = self
        while spending is not None:
            yield spending
            spending = spending.outer

    def add(self, usage: Usage) -> None:
        """Add the usage to this run and its outer runs."""
        for spending in self.chain():
            spending.usage += usage

    def reached(self) -> Limit | None:
        """Return the limit of this run's own budget that is reached and allows no further request, or None."""
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
    """Return whether `used` has reached the limit. `limit`: None for no limit."""
    return limit is not None and used >= Decimal(str(limit))


# --- prices -----------------------------------------------------------------------------------------------------------


def price_of(model: str, usage: Usage, prices: Mapping[str, tuple[float, float]], url: str | None = None) -> Decimal:
    """Return the price of one completion in US dollars. `url`: the base URL of the provider, if it is known.

    Raises ConfigurationError for a model without a price, and if genai-prices is needed but not installed.
    """
    counts = _counts(usage)
    if (own_price := prices.get(model)) is not None:
        of_input, of_output = (Decimal(str(amount)) / _MILLION for amount in own_price)
        return of_input * counts["input_tokens"] + of_output * counts["output_tokens"]
    remedy = f"pass Budget(..., prices={{{model!r}: (input, output)}}) in dollars for a million tokens"
    provider = None
    try:
        library = importlib.import_module("genai_prices")
        provider = _provider_at(url)
        price: Decimal = library.calc_price(library.Usage(**counts), model, provider_id=provider).total_price
    except ImportError as error:
        raise ConfigurationError(
            f"budget has cost=, which needs genai-prices: {how_to_install('prices')}; or {remedy}"
        ) from error
    except LookupError as error:
        where = f" at {provider}" if provider else ""
        raise ConfigurationError(
            f"budget has cost=, but genai-prices has no price for the model {shown(model, 80)}{where}; {remedy}"
        ) from error
    return price


def _provider_at(url: str | None) -> str | None:
    """Return the provider of this URL in genai-prices. None for a proxy or a private server: only the model name decides."""
    snapshot = importlib.import_module("genai_prices.data_snapshot").get_snapshot()
    with suppress(LookupError):
        name: str = snapshot.find_provider(None, None, url).id
        return name
    return None


def _counts(usage: Usage) -> dict[str, int]:
    """Return the counts by their names in genai-prices. If a server reports a part that exceeds the whole, reduce the part."""
    details = usage.details.get("prompt_tokens_details")
    # Some providers count reasoning tokens in the total, but not in the output tokens. They are priced as output.
    output = max(usage.completion_tokens, usage.total_tokens - usage.prompt_tokens, 0)
    counts = {"input_tokens": max(usage.prompt_tokens, 0), "output_tokens": output}
    left = counts["input_tokens"]
    for key, name in _PARTS_OF_INPUT.items():
        reported = details.get(key) if is_object(details) else None
        if isinstance(reported, int | float) and reported > 0:
            part = min(int(reported), left)
            left -= part
            counts[name] = counts.get(name, 0) + part
    return counts
