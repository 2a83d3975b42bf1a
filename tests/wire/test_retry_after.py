"""How long the provider asks to wait: every form of the headers, and what an error of a run carries of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, CompletionError, StreamInterrupted
from aswarm._wire.retry_after import headers_of, is_overload, is_rate_limited, retry_after, should_retry
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
    """Milliseconds before seconds, never below 0; what is not understood is as if it were not there."""
    assert retry_after(headers) == seconds


@given(st.integers(-100_000, 100_000))
def test_a_date_counts_by_the_servers_own_clock(seconds: int) -> None:
    """The answer's `Date` says what time it is, whatever this machine believes."""
    headers = {"date": format_datetime(NOW, usegmt=True)}
    headers["retry-after"] = format_datetime(NOW + timedelta(seconds=seconds), usegmt=True)
    assert retry_after(headers) == max(0, seconds)


@pytest.mark.parametrize("date", [None, "noon"])
def test_a_date_without_the_time_of_the_answer(date: str | None) -> None:
    """Without a `Date`, this machine's clock has to do."""
    headers = {"retry-after": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)}
    seconds = retry_after({**headers, **({} if date is None else {"date": date})})
    assert seconds is not None
    assert 3500 < seconds <= 3600


def test_an_error_without_a_status_or_with_one_of_the_server_looks_like_overload() -> None:
    """A wrong moment (409) is not it."""
    errors = [CompletionError("no", status_code=status, retryable=True) for status in (None, 500, 529, 409)]
    assert [is_overload(error) for error in errors] == [True, True, True, False]


def test_a_stream_that_broke_is_no_refusal() -> None:
    """Whatever number it gave: something had been taken."""
    assert not is_rate_limited(StreamInterrupted("broke", status_code=429))
    assert is_rate_limited(CompletionError("slow down", status_code=429, retryable=True))


def test_a_date_without_a_zone_is_in_universal_time() -> None:
    """`-0000` is "no zone is meant"; HTTP's dates are GMT."""
    headers = {"date": "Thu, 20 Nov 2025 12:00:00 GMT", "retry-after": "Thu, 20 Nov 2025 12:00:30 -0000"}
    assert retry_after(headers) == 30


@pytest.mark.parametrize(("said", "meant"), [("true", True), ("false", False), ("perhaps", None), (None, None)])
def test_x_should_retry(said: str | None, meant: bool | None) -> None:
    """The server's own word on trying again."""
    assert should_retry({} if said is None else {"x-should-retry": said}) is meant


def test_only_an_answer_has_headers() -> None:
    """An exception about no answer, or about something else that is called a response, has none."""
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


@pytest.mark.anyio
async def test_the_error_of_a_run_says_how_long_to_wait() -> None:
    """`retry_after` in seconds, None where nothing was said."""
    error = await _error(Failure(429, headers={"Retry-After": "7"}))
    assert (error.retry_after, error.retryable) == (7, True)
    assert (await _error(Failure(500))).retry_after is None
    assert StreamInterrupted("x").retry_after is None


@pytest.mark.anyio
async def test_an_empty_account_is_not_worth_another_attempt() -> None:
    """OpenAI's 429 for an account without money is not about the rate."""
    assert (await _error(Failure(429, code="insufficient_quota"))).retryable is False
    too_large = "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 45000."
    assert (await _error(Failure(429, too_large, code="rate_limit_exceeded"))).retryable is False


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "said"), [(500, "false"), (400, "true")])
async def test_the_servers_own_word_decides(status: int, said: str) -> None:
    """As in the openai SDK, `x-should-retry` outweighs the status."""
    assert (await _error(Failure(status, headers={"x-should-retry": said}))).retryable is (said == "true")
