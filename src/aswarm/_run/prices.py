"""What a completion costs: by the prices of the caller, or by genai-prices, which is imported only for that.

Decides how the counts of a provider become those that have a price. A model without a price is an error, never free.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._json import is_object, shown
from aswarm._usage import Usage

_MILLION = 1_000_000
# The counts that a provider reports as parts of its input, and their names in genai-prices.
_PARTS_OF_INPUT = {
    "cached_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "cache_creation_tokens": "cache_write_tokens",
    "audio_tokens": "input_audio_tokens",
}


def price_of(model: str, usage: Usage, prices: Mapping[str, tuple[float, float]], url: str | None = None) -> Decimal:
    """The price of one completion in US dollars. `url`: the base URL of the provider, if it is known.

    Raises ConfigurationError for a model that has no price, and if genai-prices is needed and missing.
    """
    counts = _counts(usage)
    if (own := prices.get(model)) is not None:
        of_input, of_output = (Decimal(str(each)) / _MILLION for each in own)
        return of_input * counts["input_tokens"] + of_output * counts["output_tokens"]
    library = _genai_prices(model)
    provider = _provider_at(url)
    found: dict[str, Any] = {} if provider is None else {"provider_id": provider}
    try:
        price: Decimal = library.calc_price(library.Usage(**counts), model, **found).total_price
    except LookupError as error:
        where = "" if provider is None else f" at {provider}"
        raise ConfigurationError(
            f"budget has cost=, but genai-prices knows no price of the model {shown(model, 80)}{where}; pass "
            "Budget(..., prices={" + f"{model!r}: (input, output)" + "}) in dollars for a million tokens"
        ) from error
    return price


def _genai_prices(model: str) -> Any:
    try:
        return importlib.import_module("genai_prices")
    except ImportError as error:
        raise ConfigurationError(
            "budget has cost=, which needs genai-prices; install the extra aswarm[prices], or pass "
            "Budget(..., prices={" + f"{model!r}: (input, output)" + "}) in dollars for a million tokens"
        ) from error


def _provider_at(url: str | None) -> str | None:
    """The provider whose API has this URL; None for a proxy or a server of one's own: then the name of the model decides."""
    snapshot = importlib.import_module("genai_prices.data_snapshot").get_snapshot()
    with suppress(LookupError):
        name: str = snapshot.find_provider(None, None, url).id
        return name
    return None


def _counts(usage: Usage) -> dict[str, int]:
    """The counts by the names of genai-prices. No part is larger than the whole, whatever a server reports."""
    details = usage.details.get("prompt_tokens_details")
    # A count of reasoning that is not in the output tokens is in the total: it costs what output costs.
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
