"""Retries of a batch: attempts and waits. The failures that are retried: see `tests/middleware/test_retry.py`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError
from aswarm.testing import Failure, ScriptedModel
from tests.support.batch.batches import Echo, answer, call, outcomes_of, text_of
from tests.support.runtime.virtual_time import virtual_backend


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both backends, in virtual time: waits take no time."""
    return virtual_backend(request.param)


def failing(*fates: Any) -> Callable[[str], Any]:
    """Return a gate that raises exceptions and answers with other values; after the last value each request passes."""
    left = iter(fates)

    async def gate(_: str) -> Any:
        fate = next(left, None)
        if isinstance(fate, Exception):
            raise fate
        return fate

    return gate


def fresh() -> CompletionError:
    return CompletionError("busy", status_code=503, retryable=True)


@pytest.mark.parametrize("failures", [0, 1, 2])
async def test_a_completion_with_a_retryable_failure_is_requested_again(failures: int) -> None:
    """A retry sends the same request, counts as no turn, and the outcome has the number of attempts."""
    source = Echo(failing(*(fresh() for _ in range(failures))))
    [outcome] = await outcomes_of(source, ["x"], max_turns=1)
    assert (text_of(outcome), outcome.attempts) == ("x", failures + 1)
    assert [request.body for request in source.requests] == [source.requests[0].body] * (failures + 1)


@pytest.mark.parametrize(("attempts", "asked"), [(1, 1), (2, 2), (5, 5)])
async def test_after_the_last_attempt_the_failure_is_the_error_of_the_item(attempts: int, asked: int) -> None:
    """`attempts` is the largest number of requests for one completion."""
    source = Echo(failing(*(fresh() for _ in range(10))))
    [outcome] = await outcomes_of(source, ["x"], attempts=attempts)
    assert isinstance(outcome.error, CompletionError)
    assert (outcome.error.status_code, outcome.attempts, len(source.requests)) == (503, asked, asked)


async def test_attempts_limit_all_requests_for_a_completion() -> None:
    """The retries of the client are off, and a rejection is no attempt: three requests fail."""
    rejected = Failure(429, headers={"retry-after": "1"})
    model = ScriptedModel([Failure(500), rejected, Failure(500), rejected, Failure(500), "never asked"])
    client = model.client(max_retries=5)
    client._platform = "Linux"  # asking a thread for it takes no virtual time
    async with AsyncSwarm(client).batch(Agent(), ["x"]) as outcomes:
        [outcome] = [outcome async for outcome in outcomes]
    assert isinstance(outcome.error, CompletionError)
    assert (outcome.error.status_code, outcome.attempts, len(model.requests)) == (500, 3, 5)


async def test_every_completion_has_all_the_attempts() -> None:
    """The number of attempts holds for each completion, not for the run."""

    def look() -> str:
        return "seen"

    turns = [fresh(), answer("", [call("look")]), fresh(), answer("", [call("look")]), fresh(), None]
    [outcome] = await outcomes_of(Echo(failing(*turns)), ["x"], Agent(functions=[look]), attempts=2)
    assert (text_of(outcome), outcome.attempts) == ("seen", 4)
    assert outcome.usage.requests == 3


async def test_waits_grow_and_are_part_of_the_duration() -> None:
    """The waits are 1, 2 and 4 seconds, less up to a random half."""
    began: list[float] = []

    async def gate(_: str) -> None:
        began.append(anyio.current_time())
        raise fresh()

    [outcome] = await outcomes_of(Echo(gate), ["x"], attempts=4)
    pauses = [after - before for before, after in pairwise(began)]
    assert all(longest / 2 <= pause <= longest for pause, longest in zip(pauses, (1, 2, 4), strict=True))
    assert outcome.duration == pytest.approx(sum(pauses))


async def test_other_items_run_while_an_item_waits_for_its_next_attempt() -> None:
    """An item that waits for its next attempt delays no other item."""

    async def gate(text: str) -> None:
        if text == "bad":
            raise fresh()

    source = Echo(gate)
    outcomes = await outcomes_of(source, ["bad", *map(str, range(20))], concurrency=2)
    assert [outcome.index for outcome in outcomes] == [*range(1, 21), 0]
