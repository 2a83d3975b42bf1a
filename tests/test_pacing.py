"""Limits over all runs of a swarm, on a clock that jumps: what is sent when, and what a refusal does."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import httpx
import pytest
import trio

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, StreamInterrupted
from aswarm._pace import MINUTE
from aswarm.testing import Answer, Failure, RawAnswer, call
from paced import TimedModel, client_of, limited, run_all
from virtual_time import in_virtual_time


def busy(seconds: float | None = None, status: int = 429, **options: Any) -> Failure:
    headers = {} if seconds is None else {"retry-after": str(seconds)}
    return Failure(status, headers=headers, **options)


@in_virtual_time
async def test_no_more_requests_in_a_minute_than_the_limit() -> None:
    """All faces share the limit: the first go at once, the others as soon as a minute allows."""
    model = TimedModel()
    assert await run_all(limited(model, requests=10), 25) == ["Hi"] * 25
    assert max(model.times[:10]) < 1
    for later, at in zip(model.times[10:], model.times, strict=False):
        assert MINUTE - 0.01 < later - at < MINUTE + 0.02


@in_virtual_time
async def test_every_turn_counts() -> None:
    """The limit is one of requests, not of runs."""
    model = TimedModel([call("look"), call("look"), "Done"])
    await limited(model, requests=2).run(Agent(functions=[look]), "Go")
    assert model.times[2] - model.times[0] == pytest.approx(MINUTE)


def look() -> str:
    return "seen"


@in_virtual_time
async def test_requests_go_in_the_order_in_which_they_came() -> None:
    """First come, first served, in whatever face."""
    model = TimedModel()
    await run_all(limited(model, requests=2), 9)
    order = [int(request.messages[0]["content"]) for request in model.requests]
    assert order == list(range(9))


@in_virtual_time
async def test_whoever_is_cancelled_while_waiting_gives_the_place_back() -> None:
    """The next one goes when the cancelled one would have gone."""
    model = TimedModel()
    swarm = limited(model, requests=1)
    await swarm.run(Agent(), "first")
    async with anyio.create_task_group() as group:
        for said in ("given up", "next", "last"):
            group.start_soon(swarm.run, Agent(), said) if said != "given up" else group.start_soon(give_up, swarm)
            await anyio.sleep(1)
    assert model.asked == ["first", "next", "last"]
    assert model.times == pytest.approx([0, MINUTE, 2 * MINUTE])


async def give_up(swarm: AsyncSwarm) -> None:
    with anyio.move_on_after(20):
        await swarm.run(Agent(), "given up")


@in_virtual_time
async def test_tokens_are_estimated_and_then_corrected() -> None:
    """Before the first answer a request counts as 250 tokens and its size; then as what was reported, streams too."""
    usage = {"prompt_tokens": 200, "completion_tokens": 200, "total_tokens": 400}
    model = TimedModel(lambda _: Answer("Hi", usage=usage, delay=1))
    await run_all(limited(model, tokens=1000), 5)
    in_first_minute = [at for at in model.times if at < MINUTE]
    # Three of a bit more than 250 fit; with 400 each, what is left is not enough for a fourth.
    assert len(in_first_minute) == 3
    assert max(in_first_minute) < 0.1
    assert [at for at in model.times if at > MINUTE] == pytest.approx([MINUTE, MINUTE + 1], abs=1.1)


@in_virtual_time
async def test_an_answer_that_used_less_lets_the_next_one_go() -> None:
    """The correction does not wait for the minute to pass."""
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    model = TimedModel(lambda _: Answer("Hi", usage=usage, delay=1))
    await run_all(limited(model, tokens=300), 3)
    assert model.times == pytest.approx([0, 1, 2], abs=0.1)


@in_virtual_time
async def test_without_a_count_the_estimate_stays() -> None:
    """A provider that reports nothing, and an answer that got lost, count as estimated; an error answer as nothing."""
    model = TimedModel([Answer("Hi", usage=None), busy(status=400), httpx.ReadError("cut"), "Hi"])
    swarm = limited(model, tokens=300)
    await swarm.run(Agent(), "1")
    for said in ("2", "3"):
        with pytest.raises(CompletionError):
            await swarm.run(Agent(), said)
    await swarm.run(Agent(), "4")
    assert model.times == pytest.approx([0, MINUTE, MINUTE, 2 * MINUTE], abs=0.1)


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


@in_virtual_time
async def test_a_reader_who_takes_long_holds_up_nobody() -> None:
    """After a pause, an answer that has begun is enough for the next to go; its reader may dawdle."""
    model = TimedModel([busy(10), Answer("Hello there"), "Hi"])
    swarm = limited(model)
    async with swarm.stream(Agent(), "Hi") as run:
        async for event in run:
            if type(event).__name__ == "TextDelta":
                await swarm.run(Agent(), "meanwhile")
    assert model.times == pytest.approx([0, 10, 10])


@in_virtual_time
async def test_a_run_inside_a_tool_keeps_the_limit_too() -> None:
    """The run around it holds no place while its tools run."""
    model = TimedModel([call("ask"), "Inner", "Outer"])
    swarm = limited(model, requests=1)

    async def ask() -> str:
        return (await swarm.run(Agent(), "Inner?")).text

    assert (await swarm.run(Agent(functions=[ask]), "Go")).text == "Outer"
    assert model.times == pytest.approx([0, MINUTE, 2 * MINUTE])


@in_virtual_time
async def test_a_batch_hears_what_becomes_of_the_requests() -> None:
    """While a block holds, runs are paced without limits too, and the adaptive limit follows all of them."""
    model = TimedModel([busy(30), *["Hi"] * 6])
    swarm = AsyncSwarm(client_of(model))
    with swarm._pacing.in_use(), swarm._pacing.adaptive(8, 100) as limit:
        await swarm.run(Agent(), "Hi")
        assert limit.limit == 4
        assert model.times == pytest.approx([0, 30])
        for _ in range(4):
            await swarm.run(Agent(), "Hi")
        assert limit.limit == 5
    await swarm.run(Agent(), "Hi")
    assert limit.limit == 5, "whoever does not ask any more is not told"


@in_virtual_time
async def test_without_limits_retries_are_the_sdks() -> None:
    """Nothing comes between a run and the client."""
    model = TimedModel([busy(0.02), "Hi"])
    swarm = AsyncSwarm(client_of(model, max_retries=1))
    assert swarm._pacing.door(swarm._source_of(swarm.client)).__func__ is type(swarm._source_of(swarm.client)).complete  # type: ignore[attr-defined]
    assert (await swarm.run(Agent(), "Hi")).text == "Hi"
    assert model.times == pytest.approx([0, 0.02])


@pytest.mark.parametrize(("seconds", "level"), [(5, logging.INFO), (300, logging.WARNING)])
def test_a_pause_is_logged(seconds: int, level: int, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody who wonders why nothing happens finds it; a long pause is a warning."""
    caplog.set_level(logging.INFO, "aswarm")

    @in_virtual_time
    async def refused() -> None:
        await limited(TimedModel([busy(seconds), "Hi"])).run(Agent(), "Hi")

    refused()
    (record,) = [record for record in caplog.records if record.name == "aswarm"]
    assert record.levelno == level
    assert f"pause for {seconds}.0 s" in record.getMessage()


@in_virtual_time
async def test_a_cancelled_request_makes_room_after_a_pause() -> None:
    """The one that goes first is cancelled before it is answered: the next goes at once."""
    model = TimedModel([busy(10), Answer("Hi", delay=1.5), "Hi"])
    swarm = limited(model)
    async with anyio.create_task_group() as group:
        group.start_soon(swarm.run, Agent(), "refused", None, None)
        group.cancel_scope.deadline = trio.current_time() + 11
        await anyio.sleep(5)
        with anyio.CancelScope(shield=True):
            await swarm.run(Agent(), "next")
    assert model.times == pytest.approx([0, 10, 11])


def test_limits_must_be_limits() -> None:
    """A dict or a number in their place is the caller's mistake, found when the swarm is made."""
    with pytest.raises(ConfigurationError, match="RateLimits"):
        AsyncSwarm(limits={"requests_per_minute": 5})  # type: ignore[arg-type]
