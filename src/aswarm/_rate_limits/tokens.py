"""Estimate of the tokens of a request, until the provider's count replaces it.

The estimate of the input follows the size of the request: at first one token for four bytes, then the ratio in the provider's
recent counts. The estimate of the answer follows the length of recent answers. It is at most `max_tokens` (`max_output_tokens`
in the Responses API). At first it is high, so that few requests are sent before the first answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aswarm._values.json import is_array, is_object
from aswarm._values.messages import Message, as_plain
from aswarm._values.usage import Usage, latest_usage
from aswarm._values.wire_messages import ITEM_KEYS
from aswarm._wire.responses_request import LIMITS

_TOKENS_PER_BYTE = 0.25
_LONG_ANSWER = 4000.0
# The tokens of an answer if the provider never reports a count.
_USUAL_ANSWER = 250
# Images are scaled to about a thousand tokens. The size of a file is a weak hint: a page of a PDF may have 100 kB or 5 kB.
_IMAGES = ("image_url", "input_image")
_IMAGE_SIZE = 4000
_FILES = ("file", "input_file", "input_audio")
_FILE_SHARE = 12
# The minimal weight of the newest answer, so that about the last twenty answers count. The first answers have more weight.
_NEWEST = 0.1


class TokenEstimate:
    """Estimate of the tokens of requests, learned from earlier requests. `limit`: the tokens of all requests in a minute."""

    def __init__(self, limit: float = math.inf) -> None:
        self._per_byte = _TOKENS_PER_BYTE
        # At most half of the limit. Otherwise the second request would wait a minute because of an estimate that is too high.
        self._answer = min(_LONG_ANSWER, limit / 2)
        self._answers = 0
        self._has_counts = False

    def of(self, body: Mapping[str, Any], size: int) -> int:
        """Return the estimated tokens of a request with this size in bytes, including its answer; at least 1."""
        most = next((body[key] for key in LIMITS if body.get(key)), None)
        answer = min(self._answer, most) if isinstance(most, int) else self._answer
        return max(1, round(size * self._per_byte + answer))

    def learn(self, size: int, usage: Usage) -> None:
        """Learn from the usage of a request of this size. A count of 0 means unknown."""
        if usage.prompt_tokens:
            self._per_byte += _NEWEST * (usage.prompt_tokens / size - self._per_byte)
        self._has_counts = self._has_counts or usage.completion_tokens > 0
        answer = usage.completion_tokens or (None if self._has_counts else _USUAL_ANSWER)
        if answer is not None:
            self._answers += 1
            self._answer += max(_NEWEST, 1 / (self._answers + 1)) * (answer - self._answer)


def estimated_tokens(body: Mapping[str, Any]) -> int:
    """Return the estimated input tokens of a request: one for four bytes of its messages and tools.

    `body`: the body of a request, or a dict with `messages`.
    """
    return round(size_of(body) * _TOKENS_PER_BYTE)


def size_of(body: Mapping[str, Any]) -> int:
    """Return the approximate bytes of text that the model reads: messages and tools, with some punctuation.

    An image counts like a text with the same number of tokens. A file counts by its length. Output items of the Responses API
    and blocks of Claude do not count, because they repeat their message, or are encrypted.
    """
    media = 0
    texts: list[Message] = []
    for message in body["messages"]:
        text = {key: value for key, value in message.items() if key not in ITEM_KEYS}
        if is_array(parts := message.get("content")):
            media += sum(map(_media_size, parts))
            text["content"] = [part for part in parts if not _media_size(part)]
        texts.append(text)
    return media + len(f"{texts}{body.get('tools', '')}".encode("utf-8", "replace"))


def _media_size(part: Any) -> int:
    kind = part.get("type") if is_object(part) else None
    if kind in _IMAGES:
        return _IMAGE_SIZE
    return len(str(part)) // _FILE_SHARE if kind in _FILES else 0


def latest_report(earlier: object, reported: object) -> object:
    """Return the usage of a stream after its next report, of which some fields may be missing or 0."""
    plain: object = as_plain(reported)
    return latest_usage(earlier, plain) if is_object(earlier) and is_object(plain) else plain


def usage_of(reported: object) -> Usage:
    """Return the usage of a chunk. `reported`: the usage as an object of any class."""
    plain = as_plain(reported)
    return Usage.of_completion(plain if is_object(plain) else None, is_checked=True)
