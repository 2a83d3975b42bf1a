"""How many tokens a request will use, before the provider has said it.

What is sent counts by its size: at first a token for four bytes, then as many for each byte as the provider counted
lately. What is answered counts as the answers were long lately, and no longer than `max_tokens` allows; at first as a
long one, so that few go before it is known how long they are. Decides on sizes and counts that it is given; the
provider's own count, when it comes, takes the place of the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aswarm._json import is_object
from aswarm._messages import as_plain
from aswarm._usage import Usage

_TOKENS_PER_BYTE = 0.25
_LONG_ANSWER = 4000.0
# What an answer counts for where the provider never says how long one was.
_USUAL_ANSWER = 250
# The least weight of the newest answer: the last twenty or so decide. The first ones weigh more.
_NEWEST = 0.1


class TokenEstimate:
    """What requests will use, learned from what those before used. `limit`: how much all may use in a minute."""

    def __init__(self, limit: float = math.inf) -> None:
        self._per_byte = _TOKENS_PER_BYTE
        # Not more than there is, or the second one would wait a minute for what nobody uses.
        self._answer = min(_LONG_ANSWER, limit / 2)
        self._answers = 0
        self._is_told = False

    def of(self, body: Mapping[str, Any], size: int) -> int:
        """Tokens of a request of so many bytes and its answer; at least 1."""
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        answer = min(self._answer, most) if isinstance(most, int) else self._answer
        return max(1, round(size * self._per_byte + answer))

    def learn(self, size: int, usage: Usage) -> None:
        """Take note of what a request of this size used, once it was answered. A count of 0 is "unknown"."""
        if usage.prompt_tokens:
            self._per_byte += _NEWEST * (usage.prompt_tokens / size - self._per_byte)
        self._is_told = self._is_told or usage.completion_tokens > 0
        answer = usage.completion_tokens or (None if self._is_told else _USUAL_ANSWER)
        if answer is not None:
            self._answers += 1
            self._answer += max(_NEWEST, 1 / (self._answers + 1)) * (answer - self._answer)


def size_of(body: Mapping[str, Any]) -> int:
    """The bytes of what the model reads, about: messages and tools, with some punctuation."""
    return len(f"{body['messages']}{body.get('tools', '')}".encode("utf-8", "replace"))


def used_tokens(usage: Usage) -> int:
    """The tokens that were used; 0 where the provider did not say."""
    return usage.total_tokens or usage.prompt_tokens + usage.completion_tokens


def usage_of(reported: object) -> Usage:
    """The usage that a chunk reports, in whatever kind of object."""
    plain = as_plain(reported)
    return Usage.of_completion(plain if is_object(plain) else None)
