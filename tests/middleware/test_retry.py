"""Retries of plain runs: the failures that are retried, the waits, and the events that a reader gets."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, RateLimits, Response, RunError
from aswarm.errors import StreamInterrupted
from aswarm.middleware import Middleware, fallback, retry
from aswarm.sources import CompletionRequest
from aswarm.testing import Failure, RawAnswer, ScriptedAnswer, ScriptedModel
from tests.support.rate_limits.timed_models import TimedModel, busy, client_of
from tests.support.run.ways_to_run import FACES, consume
from tests.support.runtime.virtual_time import virtual_backend

STREAMED = FACES[1:]
every_way = pytest.mark.parametrize("face", FACES)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both backends, in virtual time: waits take no time."""
    return virtual_backend(request.param)


def swarm_of(model: ScriptedModel, *middleware: Middleware, **options: Any) -> AsyncSwarm:
    """A swarm whose client would retry five times by itself."""
    return AsyncSwarm(client_of(model, max_retries=5), middleware=middleware or [retry()], **options)


async def response_of(swarm: AsyncSwarm, face: str) -> Response:
    left: list[Response] = []
    await consume(swarm, Agent(), face, left)
    return left[0]


async def error_of(swarm: AsyncSwarm, face: str = "run") -> CompletionError:
    with pytest.raises(CompletionError) as caught:
        await response_of(swarm, face)
    return caught.value


@every_way
async def test_a_completion_that_fails_is_asked_for_again(face: str) -> None:
    """The waits are about one and two seconds, and the client does not retry in between."""
    model = TimedModel([busy(status=500), busy(status=503), "Hello"])
    assert (await response_of(swarm_of(model), face)).text == "Hello"
    first, second, third = model.times
    assert 0.5 <= second - first <= 1
    assert 1 <= third - second <= 2
    assert model.requests[0].body == model.requests[1].body == model.requests[2].body


@every_way
@pytest.mark.parametrize("attempts", [1, 3])
async def test_after_the_last_attempt_the_run_ends_with_the_error(attempts: int, face: str) -> None:
    """It is the error of the last attempt, with the response of the run; the client makes no retries of its own."""
    model = TimedModel([*[busy(status=500)] * (attempts - 1), busy(status=502)])
    error = await error_of(swarm_of(model, retry(attempts)), face)
    assert (error.status_code, error.retryable, len(model.requests)) == (502, True, attempts)
    assert error.response is not None


@every_way
async def test_a_retry_after_is_the_wait(face: str) -> None:
    """A rejection (429) is retried like other failures if there are no limits."""
    model = TimedModel([busy(20), "Hello"])
    assert (await response_of(swarm_of(model), face)).text == "Hello"
    assert model.times == pytest.approx([0, 20])


async def test_a_retry_after_that_is_too_short_or_nonsense_shortens_no_wait() -> None:
    """The own wait is the least, and a `Retry-After` of more than a day counts as none."""
    model = TimedModel([busy(0.01), busy(90_000), "Hello"])
    await swarm_of(model).run(Agent(), "Hi")
    assert 0.5 <= model.times[1] <= 1
    assert model.times[2] <= 3


@every_way
@pytest.mark.parametrize("failure", [busy(status=400), busy(20, code="insufficient_quota"), busy(status=401)])
async def test_a_permanent_failure_is_not_retried(failure: Failure, face: str) -> None:
    """A wait does not help against a wrong request, a used quota or a wrong key."""
    model = TimedModel([failure])
    assert not (await error_of(swarm_of(model), face)).retryable
    assert model.times == [0]


@every_way
@pytest.mark.parametrize(
    "broken",
    [
        ScriptedAnswer("Hello", break_after=0),
        RawAnswer([b""], "application/json"),
        RawAnswer([b'{"error": {"code": 503, "message": "overloaded"}}'], "application/json"),
    ],
    ids=["reset", "empty", "an error with status 200"],
)
async def test_an_answer_that_breaks_before_its_first_chunk_is_retried(broken: Any, face: str) -> None:
    """Nothing of it was passed on."""
    model = TimedModel([broken, "Hello"])
    assert (await response_of(swarm_of(model), face)).text == "Hello"
    assert len(model.times) == 2


def chunks_of(*deltas: dict[str, Any]) -> list[bytes]:
    """Return the first chunks of a stream of Chat Completions."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]


ROLE = {"role": "assistant", "content": "", "refusal": None, "reasoning_content": ""}


@pytest.mark.parametrize("face", STREAMED)
@pytest.mark.parametrize("middleware", [retry(), fallback("small")], ids=["retry", "fallback"])
@pytest.mark.parametrize(
    "broken",
    [
        ScriptedAnswer("Hello", break_after=1),
        RawAnswer(chunks_of(ROLE, {"tool_calls": []}, {})),
        RawAnswer([*chunks_of(ROLE), b'data: {"choices": [], "usage": {"total_tokens": 1}}\n\n']),
        RawAnswer([*chunks_of(ROLE), b'data: {"error": {"code": 503, "message": "overloaded"}}\n\n']),
        RawAnswer([*chunks_of(ROLE), b'data: {"choices": [{"ind']),
        RawAnswer([b'data: {"choices": []}\n\n']),
        RawAnswer([b"data: {}\n\n"]),
    ],
    ids=["reset", "no end", "no end but usage", "an error", "cut JSON", "no choice", "nothing"],
)
async def test_a_stream_that_breaks_while_nothing_is_shown_is_asked_for_again(
    broken: Any, middleware: Middleware, face: str
) -> None:
    """A chunk with a role shows nothing, and a reader gets the role once."""
    model = TimedModel([broken, "Hello"])
    assert (await response_of(swarm_of(model, middleware), face)).text == "Hello"
    assert len(model.times) == 2
    again = swarm_of(TimedModel([broken, "Hello"]), middleware)
    classic = [event async for event in again.run(Agent(), "Hi", stream=True)]
    assert [event["role"] for event in classic if event.get("role")] == ["assistant"]


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("middleware", [retry(), fallback("small")], ids=["retry", "fallback"])
async def test_a_response_that_breaks_while_nothing_is_shown_is_retried(middleware: Middleware, at: int) -> None:
    """The Responses API announces an answer with several events."""
    model = ScriptedModel([ScriptedAnswer("Hello", break_after=at), "Hello"], api="responses")
    assert (await response_of(AsyncSwarm(client_of(model), middleware=[middleware]), "stream")).text == "Hello"
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning_content": "Hm"},
        {"refusal": "No"},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look"}}]},
        {"content": [{"type": "text", "text": "Hel"}]},
    ],
    ids=str,
)
async def test_a_stream_that_has_shown_anything_is_not_retried(delta: dict[str, Any]) -> None:
    """Reasoning, a refusal and a call are shown like a text."""
    model = TimedModel([RawAnswer(chunks_of(ROLE, delta)), "Hello"])
    assert isinstance(await error_of(swarm_of(model), "stream"), StreamInterrupted)
    assert len(model.times) == 1


@pytest.mark.parametrize("face", STREAMED)
async def test_a_stream_without_a_text_is_an_answer(face: str) -> None:
    """The chunks of an empty answer are delayed, and then passed on in their order."""
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"total_tokens": 7}}\n\n'
    model = TimedModel([RawAnswer([*chunks_of(ROLE, ROLE), end])])
    response = await response_of(swarm_of(model), face)
    assert (response.text, response.usage.total_tokens, len(model.times)) == ("", 7, 1)


@pytest.mark.parametrize("face", STREAMED)
async def test_a_stream_that_breaks_after_its_first_chunk_is_not_retried(face: str) -> None:
    """A reader must not get the same text twice."""
    model = TimedModel([ScriptedAnswer("Hello", break_after=2)])
    error = await error_of(swarm_of(model), face)
    assert isinstance(error, StreamInterrupted)
    assert (error.partial, error.retryable, len(model.times)) == ("Hello", True, 1)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [{"message": {"content": "Hel',
        b'{"choices": []}',
        b'{"choices": [{"index": 0, "error": {"code": 502}}]}',
    ],
)
async def test_a_whole_answer_that_is_incomplete_is_retried(body: bytes) -> None:
    """A plain run has passed on nothing of an incomplete answer."""
    model = TimedModel([RawAnswer([body], "application/json"), "Hello"])
    assert (await swarm_of(model).run(Agent(), "Hi")).text == "Hello"


@every_way
async def test_a_run_that_waits_for_its_next_attempt_can_be_cancelled(face: str) -> None:
    """It ends at once, with the response so far."""
    model = TimedModel([busy(20)])
    left: list[Response] = []
    with anyio.move_on_after(5):
        await consume(swarm_of(model), Agent(), face, left)
    assert anyio.current_time() == pytest.approx(5)
    assert [response.stop for response in left] == ["cancelled"]


async def test_a_retry_is_logged_with_the_id_of_its_run(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the wait and the reason at INFO."""
    caplog.set_level(logging.INFO, "aswarm")
    await swarm_of(TimedModel([busy(20), "Hello"])).run(Agent(), "Hi", run_id="r-1")
    (record,) = [record for record in caplog.records if record.name == "aswarm"]
    assert record.getMessage().startswith("retrying in 20.0 s after: the provider failed: RateLimitError")
    assert (record.levelno, record.__dict__["run_id"]) == (logging.INFO, "r-1")


@every_way
async def test_with_limits_a_rejection_is_left_to_the_rate_limiter(face: str) -> None:
    """The rate limiter waits and asks ten times in all, not thirty."""
    model = TimedModel(lambda _: busy(2))
    assert (await error_of(swarm_of(model, rate_limits=RateLimits(requests_per_minute=1000)), face)).status_code == 429
    assert len(model.times) == 10


@every_way
async def test_with_limits_other_failures_are_retried_once_only(face: str) -> None:
    """`retry` makes three attempts in all; the rate limiter adds none for the client."""
    model = TimedModel([busy(status=500), busy(3), busy(status=500), busy(status=500)])
    assert (await error_of(swarm_of(model, rate_limits=RateLimits(requests_per_minute=1000)), face)).status_code == 500
    assert len(model.times) == 4


async def test_retries_around_the_attempts_of_a_batch_do_not_multiply() -> None:
    """Three attempts of `retry` in a batch with three attempts are three requests."""
    model = TimedModel(lambda _: busy(status=500))
    async with swarm_of(model).batch(Agent(), ["x"]) as outcomes:
        [outcome] = [outcome async for outcome in outcomes]
    assert (outcome.attempts, len(model.times)) == (3, 3)


@pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "3", None])
def test_attempts_are_a_whole_number_from_one(attempts: Any) -> None:
    """Any other number is an error when the middleware is made."""
    with pytest.raises(ConfigurationError, match="attempts must be a whole number from 1, not "):
        retry(attempts)


async def test_an_error_that_is_raised_again_in_another_run_is_retried_again() -> None:
    """A source may keep one error and raise it in every run."""
    error = CompletionError("down", status_code=503, retryable=True)
    asked: list[str] = []

    class Down:
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            asked.append(request.agent.name)
            raise error
            yield {}

    swarm = AsyncSwarm(Down(), middleware=[retry(2)])
    for _ in range(2):
        with pytest.raises(RunError):
            await swarm.run(Agent(), "Hi")
    assert len(asked) == 4
