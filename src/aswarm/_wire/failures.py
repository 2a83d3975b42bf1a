"""Failures of completions on the wire: their texts, whether the same request may succeed later, and how long to wait.

`may_pass` computes `CompletionError.retryable` for a new error. The module never waits and never sends.

It reads the same headers as the openai SDK. It does not read `x-ratelimit-reset-*`: these headers contain the time until the
whole limit is available again, but a single request may succeed earlier.

Security: No error text, traceback or log record of aswarm contains an API key or the value of a request header.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from aswarm._runtime import clocks
from aswarm._values.errors import TOO_MANY_REQUESTS, error_and_causes, set_attribute
from aswarm._values.json import is_array, is_object, is_zero
from aswarm._values.text import shortened

_LOWEST_STATUS = 100
# Texts of permanent failures; the status does not matter. OpenAI and Groq reject a request that is larger than the limit of a
# minute: "Request too large for gpt-4o ... on tokens per min (TPM): Limit 30000, Requested 36278.". They send the same code
# as for a temporary rejection.
_PERMANENT = ("request too large", "request_too_large", "context_length_exceeded", "insufficient_quota")
# Codes of errors inside an answer. These errors have no HTTP status.
_REJECTED_CODES = ("rate_limit_exceeded", "rate_limit_error")
_PASSING_CODES = (
    *_REJECTED_CODES,
    "api_error",
    "overloaded_error",
    "server_error",
    "timeout_error",
    "server_is_overloaded",
    "service_unavailable_error",
    "slow_down",
    "vector_store_timeout",
)
_ADVICE = {"true": True, "false": False}
# The keys of an error body under which providers put their texts, the best first. FastAPI sends `detail` (a text, an object, or a
# list with `msg`), OAuth `error_description`; other keys are those of gateways. `_SAID_BESIDE`: only if there is no other text.
_SAID = ("message", "error_description", "error", "detail", "details", "errors", "msg")
_SAID_BESIDE = ("description", "title", "reason")
_MOST_ITEMS = 5  # items of a list of errors that are read
_CODES = frozenset({"code", "type", "param", "status", "status_code"})
_DEEPEST = 5
_MOST_SAID = 1000  # characters of a provider's text
_MOST_READ = 10_000  # characters of an HTML page that are read
_TAGS = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^<>]*>", re.DOTALL | re.IGNORECASE)
# A header value in the error texts of h11 ("Illegal header value b'Bearer ...'"), http.client, requests and h2. It is the
# `repr` of a str or of bytes. So the first unescaped quotation mark of the same kind ends it.
_QUOTED_HEADER = re.compile(
    r"""((?:Illegal|Invalid) header value|in header value:|header value surrounded by whitespace)"""
    r""" b?(['"])(?:\\.|(?!\2).)*\2""",
    re.DOTALL,
)
_HIDDEN = r"\1 (hidden, because it may be the API key; look for a line break or a space at its end)"


def may_pass(text: str, status: int | None, code: object = None, advice: bool | None = None) -> bool:
    """Return whether a failed request may succeed later.

    `text` and `code`: the provider's text and code of the failure. `advice`: the result of `should_retry`.
    """
    if any(permanent in text.lower() for permanent in _PERMANENT):
        return False
    if advice is not None:
        return advice
    # Groq answers with 400 if the model wrote a tool call that is not JSON. The next attempt usually succeeds.
    if code == "tool_use_failed":
        return True
    return code in _PASSING_CODES if status is None else is_retryable_status(status)


def status_of(code: object) -> int | None:
    """Return the HTTP status for a provider's code of a failure, or None."""
    if code in _REJECTED_CODES:
        return TOO_MANY_REQUESTS
    number = int(text) if (text := str(code)).isdecimal() and len(text) == 3 else 0  # noqa: PLR2004 - HTTP has three digits
    return number if number >= _LOWEST_STATUS else None


def failure_in(error: Any) -> tuple[str, int | None, bool]:
    """Return text, HTTP status and `retryable` of an error object inside an answer. The text contains the code."""
    error = _innermost(error)
    details: Mapping[str, Any] = error if is_object(error) else {"message": error if is_array(error) else str(error)}
    kind, name = details.get("type"), details.get("status")
    code: Any = details.get("code") or name or kind
    statuses = map(status_of, (details.get("code"), name, details.get("status_code"), kind))
    status = next((value for value in statuses if value is not None), None)
    has_text = details.get("message") or details.get("error")
    text = provider_text(details) if has_text else json.dumps(details, default=str, ensure_ascii=False)
    suffix = f" (code {code})" if code and not (is_object(code) or is_array(code)) else ""
    retryable = any(may_pass(f"{text} {code} {kind}", status, value) for value in (code, kind))
    return f"{text}{suffix}", status, retryable


def _innermost(error: Any) -> Any:
    """Return the error inside an object that only wraps it, as gateways do: `{"error": {"error": {...}}}`."""
    for _ in range(_DEEPEST):
        inner = error.get("error") if is_object(error) and not (error.get("message") or error.get("code")) else None
        if not is_object(inner) or is_zero(inner):
            break
        error = inner
    return error


def provider_text(body: Any) -> str:
    """Return what the provider says in the body of an error: a text, or JSON of any form. At most 1,000 characters."""
    return shortened("; ".join(provider_texts(body)), _MOST_SAID)


def provider_texts(body: Any) -> list[str]:
    """Return the different texts in the body of an error, the most important first. If there is none, return its JSON."""
    said = _said(body, _DEEPEST)
    if not said and not is_zero({key: body[key] for key in body.keys() - _CODES} if is_object(body) else body):
        said = [body if isinstance(body, str) else json.dumps(body, default=str, ensure_ascii=False)]
    return [text for at, text in enumerate(said) if not any(text in earlier for earlier in said[:at])]


def _said(value: Any, depth: int) -> list[str]:
    if isinstance(value, str):
        return _in_text(value, depth)
    if is_array(value):
        return [text for item in value[:_MOST_ITEMS] for text in _said(item, depth - 1)] if depth else []
    if not (is_object(value) and depth):
        return []
    said = [text for key in _SAID for text in _said(value.get(key), depth - 1)]
    said = said or [text for key in _SAID_BESIDE for text in _said(value.get(key), depth - 1)]
    place = value.get("loc")  # FastAPI: the field that is wrong
    if said and is_array(place) and place:
        said[0] = f"{'.'.join(map(str, place))}: {said[0]}"
    # OpenRouter: the text of the provider behind it. `message` only says that the provider returned an error.
    metadata = value.get("metadata")
    return said + (_said(metadata.get("raw"), depth - 1) if is_object(metadata) else [])


def _in_text(text: str, depth: int) -> list[str]:
    """Return what a text says. It may be an HTML page, or JSON that a gateway passes on as a text."""
    text = text.strip()
    if text[:1] in ("{", "[") and depth:
        with suppress(ValueError, RecursionError):
            return _said(json.loads(text), depth - 1) or [text]
    text = " ".join(_TAGS.sub(" ", text[:_MOST_READ]).split()) if text[:1] == "<" else text
    return [text] if text else []


def is_retryable_status(status: int | None) -> bool:
    """Return whether a request with this HTTP status may be retried: 408, 409, 429 or 5xx, as in the openai SDK."""
    return status is not None and (status in (408, 409, 429) or 500 <= status < 600)  # noqa: PLR2004 - HTTP's numbers


def hide_header_values(error: BaseException) -> None:
    """Remove header values, which may be API keys, from the texts of this error, its causes and the errors of a group."""
    for cause in error_and_causes(error):
        args = tuple(_QUOTED_HEADER.sub(_HIDDEN, arg) if isinstance(arg, str) else arg for arg in cause.args)
        if args != cause.args:
            set_attribute(cause, "args", args)


# --- response headers -------------------------------------------------------------------------------------------------


def headers_of(error: Exception) -> Mapping[str, str]:
    """Return the response headers of an SDK's exception; empty if there are none."""
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    return cast("Mapping[str, str]", headers) if isinstance(headers, Mapping) else {}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait from now, at least 0; None if the headers have no valid value.

    Reads `retry-after-ms` (Azure), then `Retry-After`: seconds, which may have a fraction, or a date (RFC 9110, 10.2.3).
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            if math.isfinite(seconds := float(headers.get(name, ""))):
                return max(0.0, seconds * unit)
    at, now = _date(headers.get("retry-after")), _date(headers.get("date"))
    if at is None:
        return None
    # The clock of this machine may be wrong, so compare with the `Date` of the server if there is one.
    return max(0.0, (at - (now or datetime.fromtimestamp(clocks.time(), UTC))).total_seconds())


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Return the advice of the server (`x-should-retry`); None if there is none."""
    return _ADVICE.get(headers.get("x-should-retry", ""))


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
