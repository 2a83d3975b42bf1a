"""The tokens of a run, their cost in US dollars, and the misses of the prompt cache.

genai-prices is imported only when a price is asked for. The price of a completion depends on the size of its prompt, because
some models cost more for long prompts. So a sum of completions keeps the tokens of each size apart; see `PriceKey`.

No count is estimated. If a provider reports nothing, the counts stay 0; then 0 means unknown.
"""

# No `from __future__ import annotations`: pydantic reads the hints of `Usage` for `Response[T]`, where a text has no `Any`.

import importlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard

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


# Larger numbers are mistakes of a server, and are ignored. So a sum can always be converted to a float.
_TOO_MANY = 2**63
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
# The key in the details for the further requests of a completion that the provider has paused.
CONTINUED = "continued_requests"


class _Priced:
    """The slot for the tokens of a sum by their prices. It is no field, so no dump and no comparison contains it."""

    __slots__ = ("_by_price",)
    _by_price: "Mapping[PriceKey | None, Usage] | PriceKey"


@dataclass(frozen=True, slots=True)
class Usage(_Priced):
    """Used tokens, as the provider counts them.

    Args:
        prompt_tokens: The tokens of requests.
        completion_tokens: The tokens of answers.
        total_tokens: The total, as the provider reports it; the sum of the two others if the reported total is less.
        requests: The number of completions, and of the further requests of completions that the provider has paused.
        details: The sums of all other numbers of the provider, under its own keys, for example
            `details["prompt_tokens_details"]["cached_tokens"]`.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    requests: int = 0
    details: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of_completion(cls, reported: Mapping[str, Any] | None, *, is_checked: bool = False) -> "Usage":
        """Return the usage of one completion. `reported`: the `usage` object of the provider, or None.

        `is_checked`: if the total is unknown or less than its parts, it becomes their sum.
        """
        if not reported:
            return cls(requests=1)
        counts: list[Any] = [*map(reported.get, _COUNTS)]
        prompt, completion, total = counts
        is_usual = type(prompt) is type(completion) is type(total) is int
        if not is_usual or max(abs(prompt), abs(completion), abs(total)) >= _TOO_MANY:
            prompt, completion, total = map(count_of, counts)
        if (total < prompt + completion or not prompt) and is_checked:
            prompt = prompt or count_of(reported.get("input_tokens"))  # the names of Anthropic and of the Responses API
            completion = completion or count_of(reported.get("output_tokens"))
            total = max(total, prompt + completion)
        details = dict(reported)
        for key in _COUNTS:
            details.pop(key, None)
        requests = 1 + max(0, count_of(details.get(CONTINUED))) if CONTINUED in details else 1
        return cls(prompt, completion, total, requests, _sum({}, details) if details else details)

    @property
    def _reported(self) -> dict[str, Any] | None:
        """The counts in the form in which a provider reports those of a completion; None if it has reported nothing."""
        counts = {**self.details, **{key: getattr(self, key) for key in _COUNTS}}
        return counts if any(counts.values()) else None

    @property
    def cost(self) -> float | None:
        """The cost in US dollars, or None if it is unknown. Cached tokens, and tokens written to a cache, have their own prices.

        The prices are those of `Budget(prices=...)`, or those of today in genai-prices (the extra `prices`). The cost is
        unknown if a model has no price, if a provider reported no tokens, and for a stored or copied object. The first access
        imports genai-prices, which takes a second.
        """
        costs = [None if key is None else price_of_sum(key, part) for key, part in self._parts()]
        known = [cost for cost in costs if cost is not None]
        return float(sum(known)) if len(known) == len(costs) else None

    def _parts(self) -> Iterable[tuple[PriceKey | None, "Usage"]]:
        """Return the parts of the sum, each with the key of its price; None for an unknown price."""
        by_price: Mapping[PriceKey | None, Usage] | PriceKey | None = getattr(self, "_by_price", None)
        if isinstance(by_price, PriceKey) or by_price is None:
            return [(by_price, self)] if by_price or self.requests or self.total_tokens else ()
        return by_price.items()

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum as a new object."""
        total = Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            self.requests + other.requests,
            _sum(self.details, other.details) if self.details or other.details else {},
        )
        mine, others = getattr(self, "_by_price", None), getattr(other, "_by_price", None)
        if mine is not None or others is not None:
            is_one = mine == others or not (self.requests or self.total_tokens)
            object.__setattr__(total, "_by_price", others if is_one else _joined(self._parts(), other._parts()))
        return total


def _joined(
    parts: Iterable[tuple[PriceKey | None, "Usage"]], others: Iterable[tuple[PriceKey | None, "Usage"]]
) -> Mapping[PriceKey | None, Usage] | PriceKey:
    """Return the parts of a sum. Parts with the same key are added up."""
    joined = dict(parts)
    for key, part in others:
        joined[key] = joined[key] + part if key in joined else part
    (first, *more) = joined
    return joined if more or first is None else first


def latest_usage(earlier: Mapping[str, Any], reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of one completion after another report in its stream.

    Servers report the total so far in some or all chunks, so the values are never added up. A later report may have only some
    fields, or nulls and zeros. So of each field, also in nested objects, the last value counts that is neither null nor 0.
    """
    latest = dict(earlier)
    for key, value in reported.items():
        old = latest.get(key)
        if is_object(value):
            latest[key] = latest_usage(old if is_object(old) else {}, value)
        elif key not in latest or (value and not is_object(old) and (_is_number(value) or not _is_number(old))):
            latest[key] = value
    return latest


def set_price(usage: Usage, model: str, url: object, prices: Prices) -> None:
    """Set the facts that decide the cost of one completion. `url`: the base URL of the provider. `prices`: see `Budget`.

    It changes the object, because each run sets them for each completion.
    """
    key = PriceKey(model, url, bisect_left(LONG_PROMPTS, usage.prompt_tokens), prices.get(model) if prices else None)
    object.__setattr__(usage, "_by_price", key)


def cached_tokens(usage: Usage) -> int | None:
    """Return the tokens of the prompt that came from a cache, or None if the provider did not report them."""
    nested = usage.details.get("prompt_tokens_details")
    # DeepSeek and Moonshot also report it beside the other counts, or only there.
    for counts, key in (
        (nested, "cached_tokens"),
        (usage.details, "prompt_cache_hit_tokens"),
        (usage.details, "cached_tokens"),
    ):
        if is_object(counts) and _is_number(count := counts.get(key)):
            return int(count)
    return None


def count_of(reported: Any) -> int:
    """Return a reported count; 0 if it is no number."""
    if type(reported) is int and -_TOO_MANY < reported < _TOO_MANY:  # as in `_sum`
        return reported
    return int(reported) if _is_number(reported) else 0


def _sum(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums as a new dict, which shares no dict with the arguments."""
    total = dict(left)
    for key, value in left.items():
        # Copy an object that is only in `left`; the loop below adds objects that are in both. The check for int comes first,
        # because it is ten times as fast and true for most values.
        if type(value) is not int and is_object(value) and not is_object(right.get(key)):
            total[key] = _sum({}, value)
    for key, value in right.items():
        current: Any = total.get(key)
        if type(value) is int and (current is None or type(current) is int):
            if -_TOO_MANY < value < _TOO_MANY:
                total[key] = value + (current or 0)
        elif is_object(value):
            # If a number and an object have the same key, the object wins, because it has more details.
            total[key] = _sum(current if is_object(current) else {}, value)
        elif _is_number(value) and not is_object(current):
            total[key] = (current or 0) + value
    return total


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _TOO_MANY


MissKind = Literal["changed", "expired", "compacted", "unreported", "unknown"]


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Tokens of a prompt that the provider has evaluated again, although the last answer of the conversation had used them.

    It has names, indexes, positions and counts, and never a text of the request. A miss of less than 2,000 tokens, or of less
    than 5 % of the tokens of the last request, is not reported.

    Args:
        kind: "changed": the request does not extend the last request. "expired": it does, but the provider no longer had the
            tokens. "compacted": the provider has replaced earlier messages by a shorter item. "unreported": the request
            does not extend the last request, and the provider does not report cached tokens. "unknown": the first request of
            a run that continues a conversation, so the last request is not known.
        where: The first difference, such as "tool 3 'track' has another description"; None if there is none.
        kept_tokens: The tokens from the cache. For "unreported", an estimate.
        lost_tokens: The tokens that were evaluated again. For "unreported" and "unknown", an estimate.
    """

    kind: MissKind
    where: str | None
    kept_tokens: int
    lost_tokens: int

    def __str__(self) -> str:
        """Return the miss as a text, such as "cache miss (changed): 2,093 tokens again, the instructions changed at character 4"."""
        text = f"cache miss ({self.kind}): {self.lost_tokens:,} tokens again"
        return text if self.where is None else f"{text}, {self.where}"
