"""Failures of a completion: their kind, whether they may pass, the wait before a retry, and the provider's text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, CompletionError
from aswarm._values.errors import ATTEMPT_BACKOFF, SDK_BACKOFF, Backoff, FailureKind, classify, requested_wait
from aswarm._wire.accumulator import provider_error
from aswarm._wire.failures import headers_of, is_retryable_status, may_pass, provider_text, retry_after, should_retry
from aswarm.errors import StreamInterrupted
from aswarm.testing import Failure, ScriptedModel

NOW = datetime(2025, 11, 20, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "-5"}, 0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "2"}, 2),
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Thu, 99 Nov 2025 12:00:00 GMT"}, None),
        ({"retry-after": "Thu, 20 Nov " + "9" * 30 + " 12:00:00 GMT"}, None),
    ],
)
def test_the_forms_of_the_headers(headers: dict[str, str], seconds: float | None) -> None:
    """Milliseconds before seconds, never below 0; an unknown form counts as no header."""
    assert retry_after(headers) == seconds


@given(st.integers(-100_000, 100_000))
def test_a_date_counts_by_the_servers_own_clock(seconds: int) -> None:
    """The time is the `Date` of the answer, not the clock of this machine."""
    headers = {"date": format_datetime(NOW, usegmt=True)}
    headers["retry-after"] = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert retry_after(headers) == max(0, seconds)


@pytest.mark.parametrize("date", [None, "noon"])
def test_a_date_without_the_time_of_the_answer(date: str | None) -> None:
    """Without a `Date`, the clock of this machine counts."""
    headers = {"retry-after": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)}
    seconds = retry_after({**headers, **({} if date is None else {"date": date})})
    assert seconds is not None
    assert 3500 < seconds <= 3600


def failed(status: int | None, *, retryable: bool = True, after: float | None = None) -> CompletionError:
    return CompletionError("no", status_code=status, retryable=retryable, retry_after=after)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (failed(429), "rate_limited"),
        (failed(503, after=0.0), "rate_limited"),
        (failed(409, after=3.0), "rate_limited"),
        (failed(None), "overloaded"),
        (failed(500), "overloaded"),
        (failed(529), "overloaded"),
        (failed(409), "transient"),
        (failed(400), "transient"),
        (failed(429, retryable=False, after=3.0), "permanent"),
        (failed(500, retryable=False), "permanent"),
        (StreamInterrupted("broke"), "transient"),
        (StreamInterrupted("broke", status_code=429), "transient"),
        (StreamInterrupted("broke", retryable=False), "permanent"),
    ],
)
def test_the_kind_of_a_failure(error: CompletionError, kind: FailureKind) -> None:
    """`retryable` decides first; then a broken stream is no rejection, whatever its status."""
    assert classify(error) == kind


@given(st.integers(min_value=100, max_value=599))
def test_the_statuses_that_may_pass(status: int) -> None:
    """408, 409, 429 and every 5xx, as in the openai SDK."""
    assert is_retryable_status(status) is (status in {408, 409, 429} or status >= 500)


def test_a_failure_without_a_status_has_no_retryable_one() -> None:
    """Then the code of the provider decides, not the status."""
    assert is_retryable_status(None) is False


@pytest.mark.parametrize(
    ("status", "code", "advice", "passes"),
    [
        (429, None, None, True),
        (400, None, None, False),
        (400, "tool_use_failed", None, True),
        (None, "tool_use_failed", None, True),
        (None, "rate_limit_exceeded", None, True),
        (None, "server_error", None, True),
        (None, "overloaded_error", None, True),
        (None, "invalid_request_error", None, False),
        (None, None, None, False),
        (400, "server_error", None, False),
        (500, None, False, False),
        (400, None, True, True),
    ],
)
def test_a_failure_may_pass(status: int | None, code: str | None, advice: bool | None, passes: bool) -> None:
    """The advice of the server counts more than the status, and the status more than the code of the provider."""
    assert may_pass("no", status, code, advice) is passes


@pytest.mark.parametrize("text", ["Request too large for gpt-4o", "x insufficient_quota", "context_length_exceeded"])
def test_a_permanent_failure_does_not_pass_whatever_the_server_says(text: str) -> None:
    """The text counts more than the status and the advice."""
    assert may_pass(text, 429, None, advice=True) is False


def test_an_error_inside_an_answer_is_permanent_too_if_its_type_says_so() -> None:
    """Its message need not repeat the type."""
    error = provider_error({"message": "Pay first.", "code": 429, "type": "insufficient_quota"})
    assert (error.status_code, error.retryable) == (429, False)


@pytest.mark.parametrize(
    ("error", "status", "passes"),
    [
        ({"code": "rate_limit_exceeded", "type": "requests"}, 429, True),
        ({"type": "rate_limit_error"}, 429, True),
        ({"code": "rate_limit_exceeded", "message": "Request too large for gpt-6-sol"}, 429, False),
        ({"code": "server_is_overloaded", "type": "service_unavailable_error"}, None, True),
        ({"code": "unknown", "type": "service_unavailable_error"}, None, True),
        ({"code": "slow_down"}, None, True),
        ({"code": "vector_store_timeout"}, None, True),
        ({"code": "503"}, 503, True),
        ({"code": 400, "type": "server_error"}, 400, False),
        ({"code": "invalid_prompt", "type": "invalid_request_error"}, None, False),
        ({"code": ["odd"]}, None, False),
    ],
    ids=str,
)
def test_an_error_inside_an_answer(error: dict[str, object], status: int | None, passes: bool) -> None:
    """The name of a rejection counts as its status; the type of the error counts like its code."""
    made = provider_error({"message": "no", **error})
    assert (made.status_code, made.retryable) == (status, passes)


def test_an_error_inside_many_objects_is_read_to_a_limit() -> None:
    error: dict[str, object] = {"message": "no"}
    for _ in range(9):
        error = {"error": error}
    assert provider_error(error).status_code is None


@pytest.mark.parametrize(("asked", "wait"), [(None, 0), (0.0, 0), (20.0, 20), (86_400.0, 86_400), (1e9, 0)])
def test_a_wait_of_more_than_a_day_is_ignored(asked: float | None, wait: float) -> None:
    """Such a number is a point in time, or a mistake."""
    assert requested_wait(asked) == wait


def test_a_date_without_a_zone_is_in_universal_time() -> None:
    """`-0000` means no zone; dates in HTTP are GMT."""
    headers = {"date": "Thu, 20 Nov 2025 12:00:00 GMT", "retry-after": "Thu, 20 Nov 2025 12:00:30 -0000"}
    assert retry_after(headers) == 30


@pytest.mark.parametrize(("said", "meant"), [("true", True), ("false", False), ("perhaps", None), (None, None)])
def test_x_should_retry(said: str | None, meant: bool | None) -> None:
    """The advice of the server on retries."""
    assert should_retry({} if said is None else {"x-should-retry": said}) is meant


def test_only_an_answer_has_headers() -> None:
    """An exception without a response, or with one of another kind, has none."""
    error = ValueError("x")
    assert headers_of(error) == {}
    error.response = "hm"  # type: ignore[attr-defined]
    assert headers_of(error) == {}
    error.response = httpx.Response(429, headers={"Retry-After": "3"})  # type: ignore[attr-defined]
    assert retry_after(headers_of(error)) == 3


async def _error(failure: Failure) -> CompletionError:
    with pytest.raises(CompletionError) as caught:
        await AsyncSwarm(ScriptedModel([failure]).client()).run(Agent(), "Hi")
    return caught.value


async def test_the_error_of_a_run_says_how_long_to_wait() -> None:
    """`retry_after` is in seconds, and None without a header."""
    error = await _error(Failure(429, headers={"Retry-After": "7"}))
    assert (error.retry_after, error.retryable) == (7, True)
    assert (await _error(Failure(500))).retry_after is None
    assert StreamInterrupted("x").retry_after is None


FAILURES = (1, 2, 3, 4, 7, 8, 5000)


@pytest.mark.parametrize(
    ("backoff", "longest"), [(SDK_BACKOFF, [0.5, 1, 2, 4, 8, 8, 8]), (ATTEMPT_BACKOFF, [1, 2, 4, 8, 60, 60, 60])]
)
def test_a_wait_doubles_with_each_failure_up_to_the_longest(backoff: Backoff, longest: list[float]) -> None:
    """The numbers of the openai SDK, and the numbers of attempts."""
    assert [backoff.seconds(failures, 0.0) for failures in FAILURES] == longest


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_chance_takes_away_at_most_the_share_of_the_jitter(failures: int, chance: float) -> None:
    """Half of a wait for attempts, a quarter for the SDK's."""
    for backoff, share in ((ATTEMPT_BACKOFF, 0.5), (SDK_BACKOFF, 0.25)):
        longest = backoff.seconds(failures, 0.0)
        assert longest * (1 - share) <= backoff.seconds(failures, chance) <= longest


@pytest.mark.parametrize(
    "body", [None, "", {}, [], {"error": None}, {"error": {}}, {"code": 1}, 0, {"metadata": {"raw": ""}}]
)
def test_a_body_that_says_nothing(body: object) -> None:
    """There is no text then."""
    assert provider_text(body) == ""
