"""Why a completion failed: whether the same request may succeed later, and after which wait.

The one place that decides this. `may_pass` is asked where an error is made, and sets `CompletionError.retryable`.
`classify` reads a finished error, also one that a user's own source has raised. Never waits, never sends.

Of the headers this reads those that the openai SDK reads, and no more: `x-ratelimit-reset-*` says when a limit is wholly
unused again, which is later than when the next request may go.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal, TypeAlias, cast

from aswarm._errors import CompletionError, StreamInterrupted, set_attribute, with_causes

# permanent: the same request would fail again.
# rate_limited: the provider takes no more requests for now. It has not worked on this one.
# overloaded: the provider has too much to do: a 5xx, a timeout, no connection.
# transient: any other failure that may pass: a conflict (408, 409), a call that did not parse, a stream that broke.
FailureKind: TypeAlias = Literal["permanent", "rate_limited", "overloaded", "transient"]

_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500
# No wait helps a request or an account of which a provider says this, whatever the status. OpenAI and Groq: "Request too
# large for gpt-4o ... on tokens per min (TPM): Limit 30000, Requested 36278." with the code of any other rejection.
_PERMANENT = ("request too large", "request_too_large", "context_length_exceeded", "insufficient_quota")
# What providers write in place of a status, in an error inside an answer.
_REJECTED_CODES = ("rate_limit_exceeded", "rate_limit_error")
_PASSING_CODES = (
    *_REJECTED_CODES,
    *("overloaded_error", "server_error", "server_is_overloaded", "service_unavailable_error", "slow_down"),
    "vector_store_timeout",
)
_ADVICE = {"true": True, "false": False}
# A longer Retry-After is a mistake, for example a point in time. It counts as if nothing had been said.
_LONGEST_WAIT = 86_400.0
# A header value as transports quote it: "Illegal header value b'Bearer ...'" (h11), http.client, requests, h2. It is the
# repr of a str or of bytes, so a quotation mark inside it is the other one, or has a backslash.
_QUOTED_HEADER = re.compile(
    r"""((?:Illegal|Invalid) header value|in header value:|header value surrounded by whitespace)"""
    r""" b?(['"])(?:\\.|(?!\2).)*\2""",
    re.DOTALL,
)
_HIDDEN = r"\1 (hidden, because it may be the API key; look for a line break or a space at its end)"


def classify(error: CompletionError) -> FailureKind:
    """What kind of failure this is. Decided by the public attributes of the error alone."""
    if not error.retryable:
        return "permanent"
    if isinstance(error, StreamInterrupted):
        return "transient"
    if error.status_code == _TOO_MANY_REQUESTS or error.retry_after is not None:
        return "rate_limited"
    if error.status_code is None or error.status_code >= _SERVER_ERRORS:
        return "overloaded"
    return "transient"


def may_pass(text: str, status: int | None, code: object = None, advice: bool | None = None) -> bool:
    """Whether a request that failed may succeed later.

    `text`: all that the provider said; `code`: its own name for the failure; `advice`: what `should_retry` returned.
    """
    if any(permanent in text.lower() for permanent in _PERMANENT):
        return False
    if advice is not None:
        return advice
    # Groq answers 400 if the model wrote a call that does not parse; the next attempt usually does.
    if code == "tool_use_failed":
        return True
    return code in _PASSING_CODES if status is None else is_retryable_status(status)


def status_of(code: object) -> int | None:
    """The HTTP status that the provider's name for a failure stands for; None if it stands for none."""
    if code in _REJECTED_CODES:
        return _TOO_MANY_REQUESTS
    return int(str(code)) if str(code).isdecimal() else None


def is_retryable_status(status: int | None) -> bool:
    """Whether an HTTP status means "maybe later": 408, 409, 429 and every 5xx (the openai SDK's own rule)."""
    return status is not None and (status in (408, 409, 429) or 500 <= status < 600)  # noqa: PLR2004 - HTTP's own numbers


def requested_wait(seconds: float | None) -> float:
    """The seconds of a Retry-After; 0 if there is none, or one of more than a day, which must be a mistake."""
    return seconds if seconds is not None and seconds <= _LONGEST_WAIT else 0.0


def give_up(error: CompletionError, run_id: str) -> None:
    """Note that this failure has been retried enough in this run: retries further out do not begin again."""
    set_attribute(error, "_given_up_in", run_id)  # not for good: a source may raise one error in many runs


def is_given_up(error: CompletionError, run_id: str) -> bool:
    """Whether retries further in have tried often enough in this run."""
    return getattr(error, "_given_up_in", None) == run_id


def hide_header_values(error: BaseException) -> None:
    """Take header values out of the texts of this error, its causes and its parts: a traceback in a log shows all."""
    for each in with_causes(error):
        args = tuple(_QUOTED_HEADER.sub(_HIDDEN, arg) if isinstance(arg, str) else arg for arg in each.args)
        if args != each.args:
            set_attribute(each, "args", args)


# --- what the answer says ---------------------------------------------------------------------------------------------


def headers_of(error: Exception) -> Mapping[str, str]:
    """The headers of the answer that an SDK's exception is about; empty if there are none."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    return cast("Mapping[str, str]", headers) if isinstance(headers, Mapping) else {}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait from now, at least 0; None if the headers do not say, or not in a form that is known.

    `retry-after-ms` (Azure's), then `Retry-After`: seconds, also with a fraction, or a date (RFC 9110, 10.2.3).
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _number(headers.get(name))
        if seconds is not None:
            return max(0.0, seconds * unit)
    at, now = _date(headers.get("retry-after")), _date(headers.get("date"))
    if at is None:
        return None
    # By the server's own clock if it sends the time: the clock of this machine may be wrong.
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """The advice of the server (`x-should-retry`); None if it gives none."""
    return _ADVICE.get(headers.get("x-should-retry", ""))


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
