"""What a refusal does to all runs of a swarm, and what else is tried again while limits are kept."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import pytest

from aswarm import Agent, CompletionError, StreamInterrupted
from aswarm._pace import MINUTE
from aswarm.testing import Answer, Failure, RawAnswer
from paced import TimedModel, busy, limited, run_all
from virtual_time import in_virtual_time


@in_virtual_time
async def test_a_refusal_pauses_all_runs_and_none_of_them_notices() -> None:
    """Nothing is sent until the provider said; then the refused one goes first, alone, and all are answered."""
    model = TimedModel()
    model._function = lambda _: busy(30) if anyio.current_time() < 20 else Answer("Hi", delay=0.5)
    async with anyio.create_task_group() as group:
        swarm = limited(model, max_retries=5)
        group.start_soon(swarm.run, Agent(), "refused")
        await anyio.sleep(1)
        assert await run_all(swarm, 6) == ["Hi"] * 6
    assert model.times == pytest.approx([0, 30, 30.5, 30.5, 31, 31, 31, 31], abs=0.01)
    assert model.asked[:2] == ["refused", "refused"]


@in_virtual_time
async def test_a_refused_request_has_its_old_place_again() -> None:
    """Whoever came later and waits for the minute to pass stays behind it."""
    model = TimedModel([Answer("Hi", delay=2), busy(10, delay=2), "Hi", "Hi"])
    swarm = limited(model, requests=2)
    async with anyio.create_task_group() as group:
        for said in ("first", "refused", "later"):
            group.start_soon(swarm.run, Agent(), said)
            await anyio.sleep(0.5)
    assert model.asked == ["first", "refused", "refused", "later"]


@in_virtual_time
async def test_a_request_that_is_always_refused_ends_with_the_error() -> None:
    """Ten refusals, each with a pause in between, are enough; the error says what the provider said."""
    model = TimedModel(lambda _: busy(2))
    with pytest.raises(CompletionError) as caught:
        await limited(model).run(Agent(), "Hi")
    assert (caught.value.status_code, caught.value.retryable, caught.value.retry_after) == (429, True, 2)
    assert caught.value.response is not None
    assert len(model.times) == 10


@in_virtual_time
async def test_any_answer_with_a_retry_after_is_a_refusal() -> None:
    """503 and Retry-After is how overloaded servers say it."""
    model = TimedModel([busy(10, 503), "Hi"])
    await limited(model).run(Agent(), "Hi")
    assert model.times == pytest.approx([0, 10])


@in_virtual_time
async def test_a_refusal_inside_a_200_is_one() -> None:
    """Some gateways say it as an error object in the answer."""
    body = b'{"error": {"code": 429, "message": "slow down"}}'
    model = TimedModel([RawAnswer([body], "application/json"), RawAnswer([b"data: " + body + b"\n\n"]), "Hi"])
    swarm = limited(model)
    assert (await swarm.run(Agent(), "Hi", stream=False)).text == "Hi"
    assert len(model.times) == 3


@pytest.mark.parametrize("failure", [busy(), busy(code="insufficient_quota"), busy(1, 400), busy(status=404)])
@in_virtual_time
async def test_what_no_wait_helps_is_not_waited_for(failure: Failure) -> None:
    """An empty account, and requests that are wrong, fail at once and hold up nobody; a real refusal is tried again."""
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


@pytest.mark.parametrize("failure", [busy(status=500), busy(status=503), httpx.ReadError("cut")])
@in_virtual_time
async def test_other_failures_are_tried_again_as_often_as_the_sdk_would(failure: Any) -> None:
    """`max_retries` of the client, with the SDK's waits; nobody else waits for it."""
    model = TimedModel([failure] * 3)
    with pytest.raises(CompletionError):
        await limited(model, max_retries=2).run(Agent(), "Hi")
    assert len(model.times) == 3
    assert 0.35 < model.times[1] <= 0.5
    assert 0.75 < model.times[2] - model.times[1] <= 1


@pytest.mark.parametrize("failure", [busy(status=500), busy(status=400, code="tool_use_failed"), RawAnswer([b"<p>"])])
@in_virtual_time
async def test_what_the_sdk_would_not_try_again_is_not(failure: Any) -> None:
    """Not with `max_retries=0`, not a 400, not an answer that is no completion."""
    model = TimedModel([failure])
    retries = 0 if failure == busy(status=500) else 5
    with pytest.raises(CompletionError):
        await limited(model, max_retries=retries).run(Agent(), "Hi")
    assert len(model.times) == 1


@in_virtual_time
async def test_a_stream_that_had_begun_is_not_tried_again() -> None:
    """What somebody has seen is not said twice."""
    model = TimedModel([Answer("Hello", break_after=2)])
    with pytest.raises(StreamInterrupted):
        async for _ in limited(model, max_retries=5).run(Agent(), "Hi", stream=True):
            pass
    assert len(model.times) == 1
