"""Retries of a batch: the completions that are requested again, and their waits. No call runs twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from itertools import pairwise
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, CompletionRequest, Result, StreamInterrupted, tool
from aswarm.testing import Failure, ScriptedModel
from tests.support.batch.batches import Echo, answer, call, outcomes_of, text_of
from tests.support.runtime.virtual_time import virtual_backend

pytestmark = pytest.mark.anyio


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


async def test_a_rejection_that_was_given_up_is_not_retried() -> None:
    """A rejection that the rate limiter has given up is no reason for another attempt."""
    rejection = CompletionError("slow down", status_code=429, retryable=True, retry_after=1)
    source = Echo(failing(*[rejection] * 50))
    [outcome] = await outcomes_of(source, ["x"])
    assert (outcome.error, outcome.attempts, len(source.requests)) == (rejection, 1, 10)


@pytest.mark.parametrize("error", [CompletionError("no", status_code=400), ValueError("a bug"), KeyError("a")])
async def test_a_permanent_failure_is_not_retried(error: Exception) -> None:
    """Only a retryable CompletionError is retried."""
    source = Echo(failing(error))
    [outcome] = await outcomes_of(source, ["x"])
    assert outcome.error is not None
    assert (outcome.attempts, len(source.requests)) == (1, 1)


async def test_every_completion_has_all_the_attempts() -> None:
    """The number of attempts holds for each completion, not for the run."""

    def look() -> str:
        return "seen"

    turns = [fresh(), answer("", [call("look")]), fresh(), answer("", [call("look")]), fresh(), None]
    [outcome] = await outcomes_of(Echo(failing(*turns)), ["x"], Agent(functions=[look]), attempts=2)
    assert (text_of(outcome), outcome.attempts) == ("seen", 4)
    assert outcome.usage.requests == 3


async def test_a_call_that_ran_does_not_run_again() -> None:
    """A retry after calls sends their answers, and keeps the context and the handoff."""
    ran: list[str] = []

    async def first() -> Result:
        ran.append("first")
        return Result(value="one", context_variables={"seen": 1})

    async def second() -> str:
        ran.append("second")
        return "two"

    other = Agent(name="Other")
    agent = Agent(functions=[first, second, other])
    calls = [call("first", call_id="a"), call("second", call_id="b"), call("transfer_to_other", call_id="c")]
    source = Echo(failing(answer("", calls), fresh(), fresh()))
    [outcome] = await outcomes_of(source, ["x"], agent)
    assert sorted(ran) == ["first", "second"]
    assert outcome.response is not None
    assert (outcome.response.agent, outcome.response.context_variables) == (other, {"seen": 1})
    assert (outcome.attempts, outcome.usage.requests) == (3, 2)
    roles = [message["role"] for message in source.requests[-1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "tool"]


async def test_a_forced_call_is_not_forced_again_by_a_retry() -> None:
    """A retry after a forced call does not force the call again."""
    ran: list[int] = []

    def pay() -> str:
        ran.append(1)
        return "paid"

    source = Echo(failing(answer("", [call("pay")]), fresh()))
    await outcomes_of(source, ["x"], Agent(functions=[pay], tool_choice="required"))
    assert [request.body["tool_choice"] for request in source.requests] == ["required", "auto", "auto"]
    assert ran == [1]


@pytest.mark.parametrize(
    "broken",
    [
        {"error": {"message": "overloaded", "code": 529}},
        {
            "choices": [{"index": 0, "error": {"message": "slow down", "code": 429}}]
        },  # the rate limiter does not wait for it
        {"choices": [{"index": 0, "error": {"message": "upstream", "code": 502}}]},
        {"choices": [{"index": 0, "message": {"content": "x"}, "error": {"code": 502}, "finish_reason": "stop"}]},
        {"choices": []},
        {"choices": None},
        {"choices": [{"index": 0, "delta": {"content": "he"}}]},
        {"choices": [{"index": 1, "message": {"content": "he"}, "finish_reason": "stop"}]},
        {},
    ],
)
async def test_a_failure_inside_an_answer_is_retried_too(broken: dict[str, Any]) -> None:
    """An error inside an answer with status 200 and an unfinished answer are retried."""
    [outcome] = await outcomes_of(Echo(failing(broken)), ["x"])
    assert (text_of(outcome), outcome.attempts) == ("x", 2)


async def test_an_answer_in_pieces_is_put_together() -> None:
    """The pieces of a broken stream are not part of the answer of the next attempt."""

    class Pieces:
        asked = 0

        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            self.asked += 1
            yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hel"}}]}
            if self.asked == 1:
                raise StreamInterrupted("broke")
            yield {"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]}

    [outcome] = await outcomes_of(Pieces(), ["x"])
    assert (text_of(outcome), outcome.attempts) == ("Hello", 2)


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


async def test_an_error_of_a_tool_is_no_failure_of_the_completion() -> None:
    """The model gets the error of a tool, also if it is a retryable CompletionError."""

    @tool
    def ask() -> str:
        raise fresh()

    [outcome] = await outcomes_of(Echo(failing(answer("", [call("ask")]))), ["x"], Agent(functions=[ask]))
    assert outcome.attempts == 1
    assert text_of(outcome) == "Error: CompletionError: busy"


async def test_leaving_does_not_wait_for_the_next_attempt() -> None:
    """A batch that is left while an item waits is closed at once."""
    source = Echo(failing(*(fresh() for _ in range(5))))
    began = anyio.current_time()
    async with source.swarm().batch(Agent(), ["x"]):
        await anyio.sleep(0.01)
    assert anyio.current_time() - began == pytest.approx(0.01)
    assert len(source.requests) == 1


async def test_a_rejection_for_the_rate_pauses_all_items() -> None:
    """After a 429 no request is sent until the time of the server, and the 429 is no failed attempt."""
    sent: list[float] = []

    async def gate(text: str) -> None:
        sent.append(anyio.current_time() - began)
        is_last = len(sent) == 3  # no request was sent after it, whose answer would end the pause early
        await anyio.sleep(1)
        if is_last:
            raise CompletionError("slow down", status_code=429, retryable=True, retry_after=30)

    began = anyio.current_time()
    outcomes = await outcomes_of(Echo(gate), map(str, range(8)), concurrency=3)
    assert [outcome.attempts for outcome in outcomes] == [1] * 8
    assert sum(at < 1 for at in sent) == 3
    assert not any(1.5 < at < 31 for at in sent)
    assert len(sent) == 9
