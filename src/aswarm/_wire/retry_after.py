"""What an HTTP answer says about trying again: how long to wait, and whether to.

Reads the headers that the openai SDK reads, and no more: `x-ratelimit-reset-*` says when a limit is wholly unused
again, which is later than when the next request may go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from aswarm._errors import CompletionError, StreamInterrupted

_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500
# What providers say, some of them with a 429, to a request or an account that no wait helps. OpenAI and Groq: "Request
# too large for gpt-4o ... on tokens per min (TPM): Limit 30000, Requested 36278." with the code of any other refusal.
_HOPELESS = ("request too large", "request_too_large", "context_length_exceeded", "insufficient_quota")
_SAID = {"true": True, "false": False}


def headers_of(error: Exception) -> Mapping[str, str]:
    """The headers of the answer that an SDK's exception is about; empty where there are none."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    return cast("Mapping[str, str]", headers) if isinstance(headers, Mapping) else {}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait from now, not below 0; None where the answer does not say, or not in a way that is understood.

    `retry-after-ms` (Azure's), then `Retry-After`: seconds, also with a fraction, or a date (RFC 9110, 10.2.3).
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _number(headers.get(name))
        if seconds is not None:
            return max(0.0, seconds * unit)
    at, now = _date(headers.get("retry-after")), _date(headers.get("date"))
    if at is None:
        return None
    # By the server's own clock, where it tells the time: this machine's may be wrong.
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """What the server says itself (`x-should-retry`), None where it does not."""
    return _SAID.get(headers.get("x-should-retry", ""))


def is_rate_limited(error: CompletionError) -> bool:
    """Whether the provider refused a request for its rate: 429, or whatever else may pass and has a Retry-After."""
    if not error.retryable or isinstance(error, StreamInterrupted):
        return False
    return error.status_code == _TOO_MANY_REQUESTS or error.retry_after is not None


def is_overload(error: CompletionError) -> bool:
    """Whether a failure that may pass looks like too much to do: a 5xx, or no answer at all (a timeout)."""
    return error.status_code is None or error.status_code >= _SERVER_ERRORS


def is_permanent(words: str) -> bool:
    """Whether no wait helps, although the status says so: the request itself is over a limit, or nothing is paid for."""
    return any(hopeless in words.lower() for hopeless in _HOPELESS)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
