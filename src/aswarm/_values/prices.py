"""The prices of completions in US dollars, from the caller or from the package genai-prices.

genai-prices is imported only when a price is asked for. The price of a completion depends on the size of its prompt, because
some models cost more for long prompts. So a sum of completions keeps the tokens of each size apart; see `PriceKey`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from .errors import ConfigurationError
from .json import is_object, shown
from .text import how_to_install

_MILLION = 1_000_000
# Parts of the input that a provider counts, and their names in genai-prices.
_PARTS_OF_INPUT = {
    "cached_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "cache_creation_tokens": "cache_write_tokens",
    "audio_tokens": "input_audio_tokens",
}
# A part of the writes, with a higher price. Its rate is the difference to the price of the other writes.
_LONG_WRITES = "cache_write_1h_tokens"
# The largest prompts with the price of the size. A test compares them with the data of genai-prices.
LONG_PROMPTS = (32_000, 100_000, 128_000, 199_999, 200_000, 256_000, 272_000, 512_000, 524_288)

Prices = Mapping[str, tuple[float, float]]


class TokenCounts(Protocol):
    """The counts of a `Usage`."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def total_tokens(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def details(self) -> dict[str, Any]: ...


class PriceKey(NamedTuple):
    """The facts that decide the prices of a completion. Completions with equal keys can be added up.

    `url`: the base URL of the provider, as a str or an object, or None. `size`: the number of `LONG_PROMPTS` that the prompt
    exceeds. `own`: the prices of the caller, or None.
    """

    model: str
    url: object
    size: int
    own: tuple[float, float] | None


def price_of(model: str, usage: TokenCounts, prices: Prices, url: str | None = None) -> Decimal:
    """Return the price of one completion in US dollars. `url`: the base URL of the provider, if it is known.

    Raises ConfigurationError for a model without a price, and if genai-prices is needed but not installed.
    """
    counts = _counts(usage)
    if (own_price := prices.get(model)) is not None:
        return _own_price(own_price, counts)
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


def _own_price(own: tuple[float, float], counts: Mapping[str, int]) -> Decimal:
    of_input, of_output = (Decimal(str(amount)) / _MILLION for amount in own)
    return of_input * counts["input_tokens"] + of_output * counts["output_tokens"]


def load_prices() -> None:
    """Import genai-prices. Raises ConfigurationError if it is not installed."""
    try:
        importlib.import_module("genai_prices")
    except ImportError as error:
        raise ConfigurationError(f"the cost needs genai-prices: {how_to_install('prices')}") from error


def _provider_at(url: str | None) -> str | None:
    """Return the provider of this URL in genai-prices. None for a proxy or a private server: only the model name decides."""
    snapshot = importlib.import_module("genai_prices.data_snapshot").get_snapshot()
    with suppress(LookupError):
        name: str = snapshot.find_provider(None, None, url).id
        return name
    return None


def _counts(usage: TokenCounts) -> dict[str, int]:
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
    long_writes = details.get(_LONG_WRITES) if is_object(details) else None
    if isinstance(long_writes, int | float) and long_writes > 0 and (writes := counts.get("cache_write_tokens")):
        counts[_LONG_WRITES] = min(int(long_writes), writes)
    return counts


# --- the price of a sum -----------------------------------------------------------------------------------------------


def price_of_sum(key: PriceKey, usage: TokenCounts) -> Decimal | None:
    """Return the price of completions with this key in US dollars, or None if it is unknown. `usage`: their sum."""
    counts = _counts(usage)
    if key.own is not None:
        return _own_price(key.own, counts)
    if (rates := _rates(key.model, str(key.url or "") or None, key.size)) is None:
        return None
    plain = counts["input_tokens"] - sum(counts.get(name, 0) for name in {*_PARTS_OF_INPUT.values()})
    tokens = {**counts, "input_tokens": plain}
    return sum((rates[name] * count for name, count in tokens.items()), rates["requests"] * usage.requests)


def price_table(model: str, url: str | None) -> list[dict[str, float]]:
    """Return the prices of a model by the size of the prompt, or an empty list if they are unknown.

    An item has the prices of a token of each kind in US dollars, for prompts with more tokens than `above`.
    """
    sizes = ((above, _rates(model, url, size)) for size, above in enumerate((0, *LONG_PROMPTS)))
    known = [(above, {name: float(rate) for name, rate in rates.items()}) for above, rates in sizes if rates]
    return [{"above": above, **rates} for at, (above, rates) in enumerate(known) if not at or rates != known[at - 1][1]]


@lru_cache(maxsize=1000)
def _rates(model: str, url: str | None, size: int) -> Mapping[str, Decimal] | None:
    """Return the prices of a token of each kind, and of a request, in prompts of this size. None if they are unknown.

    They are the prices of example completions, because the objects of genai-prices may change.
    """
    try:
        library = importlib.import_module("genai_prices")
        provider = _provider_at(url)

        def price(**counts: int) -> Decimal:
            total: Decimal = library.calc_price(library.Usage(**counts), model, provider_id=provider).total_price
            return total

        prompt = LONG_PROMPTS[size] if size < len(LONG_PROMPTS) else LONG_PROMPTS[-1] + 1
        of_request, of_prompt = price(input_tokens=0, output_tokens=0), price(input_tokens=prompt, output_tokens=0)
        of_parts = {
            name: (price(input_tokens=prompt, output_tokens=0, **{name: prompt}) - of_request) / prompt
            for name in {*_PARTS_OF_INPUT.values()}
        }
        writes = {"input_tokens": prompt, "output_tokens": 0, "cache_write_tokens": prompt}
        more_of_long_writes = (price(**writes, **{_LONG_WRITES: prompt}) - price(**writes)) / prompt
        of_output = (price(input_tokens=prompt, output_tokens=_MILLION) - of_prompt) / _MILLION
    except (ImportError, LookupError):
        return None
    return {
        "requests": of_request,
        "input_tokens": (of_prompt - of_request) / prompt,
        "output_tokens": of_output,
        **of_parts,
        _LONG_WRITES: more_of_long_writes,
    }
