"""Rejections and all runs of a swarm, and other failures that are retried while limits are on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, RateLimits
from aswarm.middleware import Handlers
from aswarm.sources import CompletionRequest
from aswarm.testing import Failure, RawAnswer, Request, ScriptedAnswer
from tests.support.rate_limits.timed_models import MINUTE, TimedModel, busy, client_of, limited, run_all
from tests.support.runtime.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_rejection_pauses_all_runs_and_none_of_them_notices() -> None:
    """Nothing is sent before the time that the provider gave; then the rejected request goes first, alone."""
    model = TimedModel(lambda _: busy(30) if anyio.current_time() < 20 else ScriptedAnswer("Hi", delay=0.5))
    async with anyio.create_task_group() as group:
        swarm = limited(model, max_retries=5)
        group.start_soon(swarm.run, Agent(), "rejected")
        await anyio.sleep(1)
        assert await run_all(swarm, 6) == ["Hi"] * 6
    assert model.times == pytest.approx([0, 30, 30.5, 30.5, 31, 31, 31, 31], abs=0.01)
    assert model.asked[:2] == ["rejected", "rejected"]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("is_inside", [False, True], ids=["status 429", "status 200"])
@in_virtual_time
async def test_a_rejection_counts_over_both_apis(api: Any, is_inside: bool) -> None:
    """Also as an error inside the answer: all runs pause, and the client's own retries are not needed."""
    error = {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down."}
    event = f"data: {json.dumps(error if api == 'responses' else {'error': error})}\n\n".encode()
    rejection = RawAnswer([event]) if is_inside else Failure(429, "Slow down.", "rate_limit_exceeded")
    model = TimedModel([rejection, "Hi", "Hi"])
    swarm = AsyncSwarm(client_of(model, max_retries=0), rate_limits=RateLimits(), api=api)
    async with anyio.create_task_group() as group:
        group.start_soon(swarm.run, Agent(model="gpt-6-luna"), "rejected")
        await anyio.sleep(0.01)
        assert (await swarm.run(Agent(model="gpt-6-luna"), "later")).text == "Hi"
    assert [_said_last(request) for request in model.requests] == ["rejected", "rejected", "later"]
    assert model.times[1] > 0.5


def _said_last(request: Request) -> str:
    said: str = (request.body.get("messages") or request.body["input"])[-1]["content"]
    return said


@in_virtual_time
async def test_a_rejected_request_keeps_its_position() -> None:
    """A request that came later, and waits for the limit, stays behind it."""
    model = TimedModel([ScriptedAnswer("Hi", delay=2), busy(10, delay=2), "Hi", "Hi"])
    swarm = limited(model, requests=2)
    async with anyio.create_task_group() as group:
        for said in ("first", "rejected", "later"):
            group.start_soon(swarm.run, Agent(), said)
            await anyio.sleep(0.5)
    assert model.asked == ["first", "rejected", "rejected", "later"]


@in_virtual_time
async def test_a_request_that_is_always_rejected_ends_with_the_error() -> None:
    """Ten rejections, each with a pause in between, are enough; the error has the provider's text."""
    model = TimedModel(lambda _: busy(2))
    with pytest.raises(CompletionError) as caught:
        await limited(model).run(Agent(), "Hi")
    assert (caught.value.status_code, caught.value.retryable, caught.value.retry_after) == (429, True, 2)
    assert caught.value.response is not None
    assert len(model.times) == 10


def too_large(request: Request) -> Any:
    """A model that always rejects "large", without a reason, and takes two seconds for other requests."""
    return busy() if request.messages[-1]["content"] == "large" else ScriptedAnswer("Hi", delay=2)


@pytest.mark.slow
@in_virtual_time
async def test_a_request_that_is_never_accepted_holds_up_the_others_only_at_first() -> None:
    """A thousand others go as fast as without it, but for the first pauses; it fails before ten rejections."""
    model = TimedModel(too_large)
    items = [*map(str, range(500)), "large", *map(str, range(500))]
    async with AsyncSwarm(client_of(model)).batch(Agent(), items, concurrency=20) as outcomes:
        failed = [outcome async for outcome in outcomes if outcome.error]
    assert [(outcome.index, outcome.attempts) for outcome in failed] == [(500, 1)]
    assert model.asked.count("large") < 10
    assert model.times[-1] < 1.3 * 100


@in_virtual_time
async def test_a_request_that_is_rejected_twice_yields_to_some_others() -> None:
    """Their results show whether the rejections are about it; but not all that have come meanwhile go first."""
    model = TimedModel(lambda request: busy() if len(model.times) <= 2 else ScriptedAnswer("Hi", delay=0.1))
    swarm = limited(model)
    async with anyio.create_task_group() as group:
        group.start_soon(swarm.run, Agent(), "rejected")
        await anyio.sleep(0.01)
        for _ in range(30):
            group.start_soon(swarm.run, Agent(), "other")
    assert [at for at, said in enumerate(model.asked) if said == "rejected"] == [0, 1, 22]


TOO_LARGE = "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 45000."


@pytest.mark.parametrize(
    "answer",
    [
        Failure(429, TOO_LARGE, code="rate_limit_exceeded"),
        RawAnswer([b'{"error": {"code": 429, "message": "Request too large for this model"}}'], "application/json"),
        busy(20, code="context_length_exceeded"),
        RawAnswer([b'{"error": {"status": 429, "type": "insufficient_quota"}}'], "application/json"),
    ],
)
@in_virtual_time
async def test_a_request_that_is_over_the_limit_itself_fails_at_once(answer: Any) -> None:
    """OpenAI sends a 429 and the code of any rejection; no run waits for it, and it is not `retryable`."""
    model = TimedModel([answer, "Hi"])
    async with AsyncSwarm(client_of(model)).batch(Agent(), ["1", "2"], concurrency=1) as outcomes:
        first, second = [outcome async for outcome in outcomes]
    assert isinstance(first.error, CompletionError)
    assert not first.error.retryable
    assert (second.error, model.times) == (None, [0, 0])


@pytest.mark.parametrize("failure", [busy(), busy(code="insufficient_quota"), busy(1, 400), busy(status=404)])
@in_virtual_time
async def test_a_permanent_failure_is_not_waited_for(failure: Failure) -> None:
    """An empty account and a wrong request fail at once and hold up no other run; a real rejection is retried."""
    model = TimedModel([failure, "Hi"])
    swarm = limited(model, max_retries=5)
    if failure == busy():
        await swarm.run(Agent(), "Hi")
        assert 0.7 < model.times[1] <= MINUTE / 60
        return
    with pytest.raises(CompletionError):
        await swarm.run(Agent(), "Hi")
    await swarm.run(Agent(), "Hi")
    assert model.times == [0, 0]


@pytest.mark.parametrize("failure", [busy(status=409), busy(status=500), busy(status=503), httpx.ReadError("cut")])
@in_virtual_time
async def test_other_failures_are_retried_as_often_as_the_sdk_would(failure: Any) -> None:
    """`max_retries` of the client, with the SDK's waits; no other run waits."""
    model = TimedModel([failure] * 3)
    with pytest.raises(CompletionError):
        await limited(model, max_retries=2).run(Agent(), "Hi")
    assert len(model.times) == 3
    assert 0.35 < model.times[1] <= 0.5
    assert 0.75 < model.times[2] - model.times[1] <= 1


class BrokenSource:
    """A source of the user's own, which always fails."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.asked += 1
        raise CompletionError("no", status_code=500, retryable=True)
        yield {}


@pytest.mark.parametrize(("said", "attempts"), [({}, 1), ({"max_retries": None}, 1), ({"max_retries": 2}, 3)])
@in_virtual_time
async def test_a_source_that_does_not_say_how_often_it_retries_is_asked_once(said: Any, attempts: int) -> None:
    """`max_retries` of a source counts if it is a number."""
    source = BrokenSource()
    vars(source).update(said)
    with pytest.raises(CompletionError):
        await AsyncSwarm(source, rate_limits=RateLimits()).run(Agent(), "Hi")
    assert source.asked == attempts


@in_virtual_time
async def test_a_middleware_may_say_how_often_other_failures_are_retried() -> None:
    """`max_retries` of a request counts in place of the client's."""

    def once(handlers: Handlers) -> Handlers:
        return replace(handlers, complete=lambda request: handlers.complete(replace(request, max_retries=1)))

    model = TimedModel([busy(status=500)] * 3)
    swarm = AsyncSwarm(client_of(model, max_retries=5), rate_limits=RateLimits(), middleware=[once])
    with pytest.raises(CompletionError):
        await swarm.run(Agent(), "Hi")
    assert len(model.times) == 2


@pytest.mark.parametrize("failure", [busy(status=500), busy(status=400, code="tool_use_failed"), RawAnswer([b"<p>"])])
@in_virtual_time
async def test_a_failure_that_the_sdk_would_not_retry_is_not_retried(failure: Any) -> None:
    """Nothing is retried with `max_retries=0`, and never a 400, or an answer that is no completion."""
    model = TimedModel([failure])
    retries = 0 if failure == busy(status=500) else 5
    with pytest.raises(CompletionError):
        await limited(model, max_retries=retries).run(Agent(), "Hi")
    assert len(model.times) == 1
