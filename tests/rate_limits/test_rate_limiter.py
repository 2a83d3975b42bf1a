"""Limits over all runs of a swarm, on a clock that jumps: the times of requests, and rejections."""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Any

import anyio
import httpx
import pytest
import trio

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, TextDelta
from aswarm.events import TurnStarted
from aswarm.testing import ScriptedAnswer, call
from tests.support.rate_limits.timed_models import FACES, MINUTE, TimedModel, busy, client_of, limited, run_all
from tests.support.runtime.virtual_time import in_virtual_time


@in_virtual_time
async def test_no_more_requests_in_a_minute_than_the_limit() -> None:
    """All ways to run share the limit: two requests go together, and two more as soon as the limit allows."""
    model = TimedModel()
    assert await run_all(limited(model, requests=120), 250) == ["Hi"] * 250
    for later, at in zip(model.times[2:], model.times, strict=False):
        assert MINUTE / 60 - 0.01 < later - at < MINUTE / 60 + 0.01
    for later, at in zip(model.times[120:], model.times, strict=False):
        assert later - at >= MINUTE - 0.01


def look() -> str:
    return "seen"


@in_virtual_time
async def test_a_request_that_is_cancelled_while_it_waits_uses_nothing() -> None:
    """The next request is sent at the time of the cancelled request."""
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


def used_in_any_minute(model: TimedModel, tokens: int) -> int:
    """The most tokens, where every answer uses so many."""
    return max(tokens * sum(at <= other < at + 60 for other in model.times) for at in model.times)


@in_virtual_time
async def test_no_more_tokens_in_a_minute_than_the_limit() -> None:
    """This holds for requests that wait from the start too; before the first answer, few go."""
    usage = {"prompt_tokens": 200, "completion_tokens": 800, "total_tokens": 1000}
    model = TimedModel(lambda _: ScriptedAnswer("Hi", usage=usage, delay=2))
    await run_all(limited(model, tokens=6000), 100)
    assert used_in_any_minute(model, 1000) <= 6000
    assert model.times[-1] < 1.15 * 100 / 6 * 60, "and not many fewer"


@in_virtual_time
async def test_an_answer_that_used_less_lets_the_next_one_go() -> None:
    """The correction counts at once, and not only after a minute."""
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    model = TimedModel(lambda _: ScriptedAnswer("Hi", usage=usage, delay=1))
    await run_all(limited(model, tokens=300), 3)
    assert model.times == pytest.approx([0, 1, 1], abs=0.1)


@in_virtual_time
async def test_a_request_that_waits_goes_before_one_that_comes() -> None:
    """This holds even if there is room just when the second one comes."""
    model = TimedModel(lambda _: ScriptedAnswer("Hi", usage={"total_tokens": 10}, delay=1))
    swarm = limited(model, tokens=300)

    async def second() -> None:
        await anyio.sleep(0.5)
        await swarm.run(Agent(), "2")

    async with anyio.create_task_group() as group:
        group.start_soon(second)
        for said in ("1", "3"):
            await swarm.run(Agent(), said)
    assert model.asked == ["1", "2", "3"]


@in_virtual_time
async def test_estimates_learn_from_what_was_used() -> None:
    """Long answers make the next requests count for more tokens from the start."""
    model = TimedModel(lambda _: ScriptedAnswer("Hi", usage={"prompt_tokens": 20, "completion_tokens": 5000}))
    swarm = limited(model, tokens=100_000)
    before = swarm._rate_limiter._estimate.of({}, 100)
    await swarm.run(Agent(), "Hi")
    assert swarm._rate_limiter._estimate.of({}, 100) > before + 400


@pytest.mark.parametrize("usage", [None, {"total_tokens": 0}])
@in_virtual_time
async def test_without_a_count_the_estimate_stays(usage: Any) -> None:
    """Without a report, and if the answer got lost, the estimate counts; for an error nothing counts."""
    model = TimedModel([ScriptedAnswer("Hi", usage=usage), busy(status=400), httpx.ReadError("cut"), "Hi"])
    swarm = limited(model, tokens=300)
    await swarm.run(Agent(), "1")
    for said in ("2", "3"):
        with pytest.raises(CompletionError):
            await swarm.run(Agent(), said)
    await swarm.run(Agent(), "4")
    assert model.times == pytest.approx([0, MINUTE, MINUTE, 2 * MINUTE], abs=0.1)


@in_virtual_time
async def test_a_slow_reader_holds_up_no_other_run() -> None:
    """After a pause, a started answer lets the next request go, however slowly it is read."""
    model = TimedModel([busy(10), ScriptedAnswer("Hello there"), "Hi"])
    swarm = limited(model)
    async with anyio.create_task_group() as group, swarm.stream(Agent(), "Hi") as run:
        async for event in run:
            if isinstance(event, TurnStarted):
                group.start_soon(wait_and_run, swarm)
            if isinstance(event, TextDelta):
                await anyio.sleep(1)
    assert model.times == pytest.approx([0, 10, 10])


async def wait_and_run(swarm: AsyncSwarm) -> None:
    await anyio.sleep(5)
    await swarm.run(Agent(), "meanwhile")


@pytest.mark.parametrize("face", FACES[1:])
@in_virtual_time
async def test_a_stream_that_is_left_is_closed(face: str) -> None:
    """Limits keep nothing open: the answer is closed with the stream, and the next run goes."""
    model = TimedModel(lambda _: ScriptedAnswer("Hello there", pause=1))
    swarm = limited(model)
    if face == "stream":
        async with swarm.stream(Agent(), "Hi") as run:
            assert isinstance(await anext(aiter(run)), TurnStarted)
            async for _ in run:
                break
    else:
        async with aclosing(swarm.run(Agent(), "Hi", stream=True)) as events:
            async for _ in events:
                break
    assert model.open_streams == 0
    await swarm.run(Agent(), "Hi")


@in_virtual_time
async def test_an_adaptive_limit_follows_the_results_of_all_requests() -> None:
    """Inside the block a rejection pauses all runs, also without limits, and the adaptive limit follows all of them."""
    model = TimedModel([busy(30), *["Hi"] * 6])
    swarm = AsyncSwarm(client_of(model))
    with swarm._rate_limiter.in_use(), swarm._rate_limiter.adaptive(8, 100) as limit:
        await swarm.run(Agent(), "Hi")
        assert limit.limit == 4
        assert model.times == pytest.approx([0, 30])
        for _ in range(4):
            await swarm.run(Agent(), "Hi")
        assert limit.limit == 5
    await swarm.run(Agent(), "Hi")
    assert limit.limit == 5, "outside of the block it gets no results"


@in_virtual_time
async def test_a_batch_that_is_opened_during_a_run_limits_its_next_request() -> None:
    """A 429 in a batch pauses runs that started before; when the batch is closed, their requests go directly again."""
    model = TimedModel([call("look"), busy(30), "Item", call("look"), busy(0.02), "Run"])
    swarm = AsyncSwarm(client_of(model, max_retries=1))

    async def look() -> str:
        await anyio.sleep(10)
        return "seen"

    async with anyio.create_task_group() as group:
        group.start_soon(swarm.run, Agent(functions=[look]), "Go")
        await anyio.sleep(5)
        async with swarm.batch(Agent(), ["item"]) as outcomes:
            assert [outcome.error async for outcome in outcomes] == [None]
    assert model.times == pytest.approx([0, 5, 35, 35, 45, 45.02])


@pytest.mark.parametrize(("seconds", "level"), [(59, logging.INFO), (60, logging.WARNING)])
def test_a_pause_is_logged(seconds: int, level: int, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the reason of the pause, and the run; a long pause is a warning."""
    caplog.set_level(logging.INFO, "aswarm")

    @in_virtual_time
    async def rejected() -> None:
        await limited(TimedModel([busy(seconds), "Hi"])).run(Agent(), "Hi", run_id="r-1")

    rejected()
    (record,) = [record for record in caplog.records if record.name == "aswarm"]
    assert record.levelno == level
    assert record.getMessage().startswith(f"all runs of this swarm pause for {seconds}.0 s: ")
    assert "429" in record.getMessage()
    assert record.__dict__["run_id"] == "r-1"


@in_virtual_time
async def test_a_cancelled_request_makes_room_after_a_pause() -> None:
    """The request that goes first is cancelled before it is answered: the next one goes at once."""
    model = TimedModel([busy(10), ScriptedAnswer("Hi", delay=1.5), "Hi"])
    swarm = limited(model)
    async with anyio.create_task_group() as group:
        group.start_soon(swarm.run, Agent(), "rejected", None, None)
        group.cancel_scope.deadline = trio.current_time() + 11
        await anyio.sleep(5)
        with anyio.CancelScope(shield=True):
            await swarm.run(Agent(), "next")
    assert model.times == pytest.approx([0, 10, 11])


def test_limits_must_be_limits() -> None:
    """A dict or a number in their place is the caller's mistake, found when the swarm is made."""
    with pytest.raises(ConfigurationError, match=r"must be RateLimits\(...\), not dict"):
        AsyncSwarm(rate_limits={"requests_per_minute": 5})  # type: ignore[arg-type]
