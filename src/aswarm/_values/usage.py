"""Token counts of a run: the sums of the numbers that the provider reports for its completions.

Nothing is estimated. If a provider reports nothing, the counts stay 0; then 0 means unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from .json import is_object

# Larger numbers are mistakes of a server, and are ignored. So a sum can always be converted to a float.
_TOO_MANY = 2**63
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


@dataclass(frozen=True, slots=True)
class Usage:
    """Used tokens, as the provider counts them.

    Args:
        prompt_tokens: The tokens of requests.
        completion_tokens: The tokens of answers.
        total_tokens: The total, as the provider reports it; the sum of the two others if the reported total is less.
        requests: The number of completions.
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
        prompt, completion, total = map(_count, map(reported.get, _COUNTS))
        if (total < prompt + completion or not prompt) and is_checked:
            prompt = prompt or _count(reported.get("input_tokens"))  # the names of Anthropic and of the Responses API
            completion = completion or _count(reported.get("output_tokens"))
            total = max(total, prompt + completion)
        details = {key: value for key, value in reported.items() if key not in _COUNTS}
        return cls(prompt, completion, total, 1, _sum({}, details) if details else details)

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum as a new object."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            self.requests + other.requests,
            _sum(self.details, other.details) if self.details or other.details else {},
        )


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


def _count(reported: Any) -> int:
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
