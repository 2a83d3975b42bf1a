"""`hedge`: a stream that begins late is requested once more, on a clock that jumps, against a slow model of the rules."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aswarm import (
    Agent,
    AsyncSwarm,
    CompletionError,
    ConfigurationError,
    RateLimits,
    Response,
    StreamInterrupted,
    TextDelta,
)
from aswarm._rate_limits.policy import MINUTE
from aswarm.middleware import CompletionRequest, Handlers, hedge
from aswarm.middleware._hedge import HedgePolicy
from tests.support.runtime.virtual_time import run_virtual

BOTH = pytest.mark.parametrize("backend", ["asyncio", "trio"])


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


@dataclass
class Slow:
    """A source whose answers take so many seconds to their content, or fail then. The text is the number of the request."""

    seconds: list[float]
    failures: dict[int, Exception] = field(default_factory=dict[int, Exception])
    sent: list[float] = field(default_factory=list[float])
    closed: dict[int, float] = field(default_factory=dict[int, float])
    retries: list[int | None] = field(default_factory=list[int | None])
    max_retries = 1

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        number = len(self.sent)
        self.sent.append(anyio.current_time())
        self.retries.append(request.max_retries)
        try:
            if number not in self.failures:
                yield chunk(role="assistant")
            await anyio.sleep(self.seconds[number])
            if number in self.failures:
                raise self.failures[number]
            yield chunk(content=f"{number}")
            await anyio.sleep(1)
            yield chunk("stop")
        finally:
            self.closed[number] = anyio.current_time()


@dataclass
class Seen:
    """What a reader of a stream saw."""

    text: str = ""
    at: float = -1.0
    error: CompletionError | None = None
    response: Response | None = None


async def streamed(swarm: AsyncSwarm, agent: Agent | None = None) -> Seen:
    seen = Seen()
    try:
        async with swarm.stream(agent or Agent(), "Hi") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    seen.text += event.text
                    seen.at = anyio.current_time()
            seen.response = run.response
    except CompletionError as error:
        seen.error, seen.at = error, anyio.current_time()
    return seen


def run(backend: str, *arguments: Any) -> Any:
    return run_virtual(backend, *arguments)


# --- the decision, on numbers alone ---


@given(st.floats(0, 1), st.lists(st.booleans(), max_size=300))
def test_never_more_than_its_share_is_requested_twice(share: float, slow: list[bool]) -> None:
    """At every moment, except for the first slow stream of all; and the share is used."""
    policy, hedged = HedgePolicy(1.0, share), 0
    for number, is_slow in enumerate(slow, 1):
        assert policy.start() == 1.0
        if is_slow:
            may_send = policy.claim()
            hedged += may_send
            assert hedged <= max(1, share * number) * (share > 0)
            assert may_send or share == 0 or hedged + 1 > share * number


@given(st.lists(st.floats(0, 100), max_size=250))
def test_without_a_number_the_last_streams_decide(waits: list[float]) -> None:
    """One in twenty of the last 200 took longer; before there are twenty, none is requested twice."""
    policy = HedgePolicy(None, 0.05)
    for number, seconds in enumerate(waits):
        after, last = policy.start(), sorted(waits[max(0, number - 200) : number])
        if number < 20:
            assert after is None
        else:
            assert after is not None
            assert sum(wait > after for wait in last) <= 0.05 * len(last) <= sum(wait >= after for wait in last)
        policy.note(seconds)


# --- the race ---

SECONDS = st.integers(0, 20)


@example(first=5, second=2, after=1, failing={0}, backend="asyncio")
@example(first=9, second=2, after=1, failing={1}, backend="trio")
@example(first=9, second=2, after=1, failing={0, 1}, backend="asyncio")
@given(SECONDS, SECONDS, st.integers(1, 10), st.sets(st.integers(0, 1)), st.sampled_from(["asyncio", "trio"]))
def test_the_first_content_wins(first: int, second: int, after: int, failing: set[int], backend: str) -> None:
    """When, with which text or error, after how many requests; and each is closed at once when the other has won."""
    failures: dict[int, Exception] = {
        number: CompletionError(f"failure {number}", status_code=400, retryable=False) for number in failing
    }
    slow = Slow([first + 0.25, second + 0.5], failures)
    seen = run(backend, streamed, AsyncSwarm(slow, middleware=[hedge(after_seconds=after, share=1)]))
    ends = [first + 0.25, after + second + 0.5][: 1 + (first + 0.25 > after)]
    contents = [(at, number) for number, at in enumerate(ends) if number not in failing]
    assert [at - slow.sent[0] for at in slow.sent] == [0, after][: len(ends)]
    assert slow.closed.keys() == set(range(len(ends)))
    if not contents:
        assert str(seen.error) == "failure 0"
        assert seen.at - slow.sent[0] == pytest.approx(max(ends))
        return
    at, winner = min(contents)
    assert (seen.text, seen.at - slow.sent[0]) == (f"{winner}", pytest.approx(at))
    for number in set(range(len(ends))) - {winner}:
        assert slow.closed[number] - slow.sent[0] == pytest.approx(min(at, ends[number]))
    assert seen.response is not None
    charged = len(ends) == 2 and (1 - winner not in failing or ends[1 - winner] > at)
    assert seen.response.usage.requests == 1 + charged
    assert (seen.response.usage.prompt_tokens > 0) == charged


@BOTH
def test_a_reader_that_leaves_ends_both_requests(backend: str) -> None:
    """While both wait for content."""
    slow = Slow([100, 100])

    async def leave() -> None:
        with anyio.move_on_after(5):
            await streamed(AsyncSwarm(slow, middleware=[hedge(after_seconds=2)]))

    run(backend, leave)
    assert [slow.closed[number] - slow.sent[0] for number in (0, 1)] == [5, 5]


@BOTH
def test_a_stream_that_is_cut_after_its_content_is_not_requested_again(backend: str) -> None:
    """The reader has seen a part of it already."""

    class Cut(Slow):
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            async with aclosing(super().complete(request)) as chunks:
                async for each in chunks:
                    if each == chunk("stop"):
                        raise StreamInterrupted("cut")
                    yield each

    slow = Cut([0])
    assert isinstance(
        run(backend, streamed, AsyncSwarm(slow, middleware=[hedge(after_seconds=0.5)])).error, StreamInterrupted
    )
    assert len(slow.sent) == 1


@BOTH
def test_time_in_the_queue_of_the_limits_does_not_count(backend: str) -> None:
    """The second stream waits a minute for its turn, and is quick then."""
    slow = Slow([1, 1, 1, 1])
    swarm = AsyncSwarm(
        slow, rate_limits=RateLimits(requests_per_minute=1), middleware=[hedge(after_seconds=5, share=1)]
    )

    async def two() -> None:
        for _ in range(2):
            await streamed(swarm)

    run(backend, two)
    assert [at - slow.sent[0] for at in slow.sent] == pytest.approx([0, MINUTE])


@BOTH
def test_no_second_request_during_a_pause(backend: str) -> None:
    """After a 429 the time begins again when the request is sent again; then it is hedged as any other."""
    slow = Slow([1, 10, 1], {0: CompletionError("slow down", status_code=429, retryable=True, retry_after=30.0)})
    swarm = AsyncSwarm(slow, rate_limits=RateLimits(), middleware=[hedge(after_seconds=3, share=1)])
    seen = run(backend, streamed, swarm)
    assert [at - slow.sent[0] for at in slow.sent] == pytest.approx([0, 31, 34])
    assert seen.text == "2"


@BOTH
def test_no_second_request_before_a_retry(backend: str) -> None:
    """After a failure the time begins again when the retry is sent, at least 0.375 s later."""
    slow = Slow([0.1, 10, 1], {0: CompletionError("down", status_code=503, retryable=True)})
    swarm = AsyncSwarm(slow, rate_limits=RateLimits(), middleware=[hedge(after_seconds=0.2, share=1)])
    seen = run(backend, streamed, swarm)
    assert slow.sent[1] - slow.sent[0] >= 0.475
    assert slow.sent[2] - slow.sent[1] == pytest.approx(0.2)
    assert seen.text == "2"


@BOTH
def test_a_second_request_in_the_queue_is_not_sent_and_not_charged(backend: str) -> None:
    """The first has content before the limits allow the second."""
    slow = Slow([10])
    swarm = AsyncSwarm(slow, rate_limits=RateLimits(requests_per_minute=1), middleware=[hedge(after_seconds=2)])
    seen = run(backend, streamed, swarm)
    assert seen.response is not None
    assert (seen.text, seen.response.usage.requests, len(slow.sent)) == ("0", 1, 1)


def test_each_request_is_a_copy_and_the_second_is_not_retried() -> None:
    """Inner middleware may change its request."""
    seen: list[int] = []

    def clearing(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            seen.append(len(request.body["messages"]))
            request.body["messages"].clear()
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    slow = Slow([50, 1])
    assert run("trio", streamed, AsyncSwarm(slow, middleware=[hedge(after_seconds=1), clearing])).text == "1"
    assert seen == [2, 2]
    assert slow.retries == [None, 0]


@pytest.mark.parametrize(
    "settings",
    [
        {"store": True},
        {"background": True},
        {"extra_body": {"previous_response_id": "r"}},
        {"extra_body": {"conversation": "c"}},
        {"web_search_options": {"search_context_size": "low"}},
        {"tools": [{"type": "web_search"}]},
    ],
)
def test_a_request_that_is_more_than_a_question_is_sent_once(settings: dict[str, Any]) -> None:
    """The provider keeps something for it, or works for it."""
    slow = Slow([50, 1])
    swarm = AsyncSwarm(slow, middleware=[hedge(after_seconds=1)])
    assert run("trio", streamed, swarm, Agent(model_settings=settings)).text == "0"
    assert len(slow.sent) == 1


def test_a_whole_answer_is_requested_once() -> None:
    """Nothing of it shows that it is slow."""
    slow = Slow([50, 1])
    swarm = AsyncSwarm(slow, middleware=[hedge(after_seconds=1)])
    assert run("trio", swarm.run, Agent(), "Hi").text == "0"
    assert len(slow.sent) == 1


def test_the_functions_of_an_agent_are_no_reason_against_it() -> None:
    """Only the winner's calls run."""

    def look() -> str:
        return ""

    slow = Slow([50, 1])
    swarm = AsyncSwarm(slow, middleware=[hedge(after_seconds=1)])
    assert run("trio", streamed, swarm, Agent(functions=[look])).text == "1"


@pytest.mark.parametrize(
    "wrong", [{"after_seconds": 0}, {"after_seconds": "1"}, {"share": -0.1}, {"share": 2}, {"share": None}]
)
def test_wrong_numbers(wrong: Any) -> None:
    """The message names the argument."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        hedge(**wrong)
