"""How many tokens a request will use, before the provider has counted them.

The estimate of the input follows the size of the request: at first one token for four bytes, then as many tokens for
each byte as the provider counted lately. The estimate of the answer follows the length of recent answers, and is at most
`max_tokens` (`max_output_tokens` in the Responses API). At first an answer counts as a long one, so that few requests go before the length of answers is known.
Decides on sizes and counts that it is given. The provider's own count replaces the estimate when it comes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aswarm._json import is_array, is_object
from aswarm._messages import Message, as_plain
from aswarm._usage import Usage
from aswarm._wire.responses_items import OUTPUT_ITEMS

_MOST = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_TOKENS_PER_BYTE = 0.25
_LONG_ANSWER = 4000.0
# The tokens of an answer if the provider never counts them.
_USUAL_ANSWER = 250
# Images are scaled to about a thousand tokens. Base64 says little of a file: a page of a PDF may have 100 kB or 5 kB.
_IMAGES = ("image_url", "input_image")
_IMAGE_SIZE = 4000
_FILES = ("file", "input_file", "input_audio")
_FILE_SHARE = 12
# The least weight of the newest answer: about the last twenty decide. The first answers weigh more.
_NEWEST = 0.1


class TokenEstimate:
    """How many tokens requests will use, learned from earlier ones. `limit`: the tokens of all requests in a minute."""

    def __init__(self, limit: float = math.inf) -> None:
        self._per_byte = _TOKENS_PER_BYTE
        # At most half of the limit: otherwise the second request would wait a minute for tokens that are never used.
        self._answer = min(_LONG_ANSWER, limit / 2)
        self._answers = 0
        self._has_counts = False

    def of(self, body: Mapping[str, Any], size: int) -> int:
        """Tokens of a request of so many bytes, with its answer; at least 1."""
        most = next((body[key] for key in _MOST if body.get(key)), None)
        answer = min(self._answer, most) if isinstance(most, int) else self._answer
        return max(1, round(size * self._per_byte + answer))

    def learn(self, size: int, usage: Usage) -> None:
        """Learn what a request of this size used, once it was answered. A count of 0 means unknown."""
        if usage.prompt_tokens:
            self._per_byte += _NEWEST * (usage.prompt_tokens / size - self._per_byte)
        self._has_counts = self._has_counts or usage.completion_tokens > 0
        answer = usage.completion_tokens or (None if self._has_counts else _USUAL_ANSWER)
        if answer is not None:
            self._answers += 1
            self._answer += max(_NEWEST, 1 / (self._answers + 1)) * (answer - self._answer)


def input_tokens(size: int) -> int:
    """Tokens of a request of so many bytes, without its answer, before any was counted."""
    return round(size * _TOKENS_PER_BYTE)


def size_of(body: Mapping[str, Any]) -> int:
    """About how many bytes of text the model reads: messages and tools, with some punctuation.

    An image counts as a text of as many tokens, a file by its length. Output items of the Responses API do not count:
    their message says the same, or they are encrypted.
    """
    messages: list[Message] = body["messages"]
    media = sum(_media_size(part) for message in messages for part in _parts(message))
    texts = [_text_of(message) for message in messages]
    return media + len(f"{texts}{body.get('tools', '')}".encode("utf-8", "replace"))


def _text_of(message: Message) -> Message:
    if not _parts(message) and OUTPUT_ITEMS not in message:
        return message
    text = {key: value for key, value in message.items() if key != OUTPUT_ITEMS}
    if parts := _parts(message):
        text["content"] = [part for part in parts if not _media_size(part)]
    return text


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return content if is_array(content) else []


def _media_size(part: Any) -> int:
    kind = part.get("type") if is_object(part) else None
    if kind in _IMAGES:
        return _IMAGE_SIZE
    return len(str(part)) // _FILE_SHARE if kind in _FILES else 0


def used_tokens(usage: Usage) -> int:
    """The tokens that were used; 0 if the provider did not count them."""
    return usage.total_tokens or usage.prompt_tokens + usage.completion_tokens


def usage_of(reported: object) -> Usage:
    """The usage that a chunk reports, in an object of any kind."""
    plain = as_plain(reported)
    return Usage.of_completion(plain if is_object(plain) else None)
