"""Chunks of completions: a text in place of a completion, and the usage that chunks report."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, TypeAlias

from aswarm._errors import AswarmError
from aswarm._usage import Usage
from aswarm._wire.accumulator import Accumulator

Chunk: TypeAlias = Mapping[str, Any]
Chunks: TypeAlias = AsyncGenerator[Chunk, None]
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def text_completion(text: str, usage: Usage | None = None) -> Chunk:
    """A whole completion with this text. `usage`: that of the completion that it replaces."""
    message = {"role": "assistant", "content": text}
    reported = usage and {**usage.details, **{key: getattr(usage, key) for key in _COUNTS}}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": reported}


def usage_of(chunks: Sequence[Chunk]) -> Usage | None:
    """The usage of a completion, or None if it had not ended."""
    accumulator = Accumulator()
    try:
        for chunk in chunks:
            accumulator.feed(chunk)
        return accumulator.finish().usage
    except AswarmError:
        return None
