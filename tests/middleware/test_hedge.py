"""`hedge`: a stream that starts late is requested once more, on a clock that jumps, against a slow model of the rules."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, RateLimits, Response, TextDelta
from aswarm.errors import StreamInterrupted
from aswarm.middleware import CompletionRequest, hedge
from tests.support.middleware.middlewares import asking_first, chunk
from tests.support.runtime.virtual_time import run_virtual

BOTH = pytest.mark.parametrize("backend", ["asyncio", "trio"])


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
    """The text, the time, the error and the response for the reader of a stream."""

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


def second_requests(waits: list[float], **options: Any) -> list[float | None]:
    """Read streams with these waits for their content. Return the wait for the second request of each, or None."""
    slow, found = Slow([]), list[float | None]()
    swarm = AsyncSwarm(slow, middleware=[hedge(**options)])

    async def read() -> None:
        for wait in waits:
            first = len(slow.sent)
            slow.seconds[first:] = [wait, 10_000.0]  # the second request never wins
            await streamed(swarm)
            found.append(slow.sent[first + 1] - slow.sent[first] if len(slow.sent) == first + 2 else None)

    run_virtual("trio", read)
    return found


@settings(max_examples=40)
@given(st.floats(0, 1), st.lists(st.booleans(), max_size=40))
def test_never_more_than_its_share_is_requested_twice(share: float, slow: list[bool]) -> None:
    """The first slow stream of all is an exception; and the share is used."""
    found = second_requests([9.0 if each else 0.5 for each in slow], after_seconds=1, share=share)
    for number, is_slow in enumerate(slow, 1):
        hedged = number - found[:number].count(None)
        assert hedged <= max(1, share * number) * (share > 0)
        assert (found[number - 1] is not None) <= is_slow
        if is_slow and found[number - 1] is None:
            assert share == 0 or hedged + 1 > share * number


@pytest.mark.parametrize("longest", [5, 1000])
def test_without_a_number_the_last_streams_decide(longest: int) -> None:
    """One in twenty of the last 200 took longer; before there are twenty, none is requested twice."""
    chance = random.Random(longest)
    waits = [*[50.0] * 30, *(float(chance.randint(1, longest)) for _ in range(230))]
    for number, after in enumerate(second_requests(waits, share=1)):
        last = waits[max(0, number - 200) : number]
        if after is not None:
            assert number >= 20
            assert sum(wait > after for wait in last) <= 0.05 * len(last) <= sum(wait >= after for wait in last)
        elif number >= 20:
            assert sum(wait >= waits[number] for wait in last) >= 0.05 * len(last)


SECONDS = st.integers(0, 20)


@example(first=5, second=2, after=1, failing={0}, backend="asyncio")
@example(first=9, second=2, after=1, failing={1}, backend="trio")
@example(first=9, second=2, after=1, failing={0, 1}, backend="asyncio")
@given(SECONDS, SECONDS, st.integers(1, 10), st.sets(st.integers(0, 1)), st.sampled_from(["asyncio", "trio"]))
def test_the_first_content_wins(first: int, second: int, after: int, failing: set[int], backend: str) -> None:
    """The text or error, its time and the requests follow the rules, and a loser is closed at once."""
    failures: dict[int, Exception] = {
        number: CompletionError(f"failure {number}", status_code=400, retryable=False) for number in failing
    }
    slow = Slow([first + 0.25, second + 0.5], failures)
    seen = run_virtual(backend, streamed, AsyncSwarm(slow, middleware=[hedge(after_seconds=after, share=1)]))
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
    """Both requests are closed if the reader leaves while they wait for content."""
    slow = Slow([100, 100])

    async def leave() -> None:
        with anyio.move_on_after(5):
            await streamed(AsyncSwarm(slow, middleware=[hedge(after_seconds=2)]))

    run_virtual(backend, leave)
    assert [slow.closed[number] - slow.sent[0] for number in (0, 1)] == [5, 5]


@pytest.mark.parametrize("error", [None, asyncio.CancelledError()], ids=repr)
def test_answers_without_content(error: Any) -> None:
    """An answer without a chunk is an error of its own, and a cancellation that the source raises is raised."""

    class Empty(Slow):
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            await anyio.sleep(3)
            if error is not None:
                raise error
            for each in ():
                yield each

    swarm = AsyncSwarm(Empty([]), middleware=[hedge(after_seconds=2)])
    with nullcontext() if error is None else pytest.raises(asyncio.CancelledError):
        assert isinstance(run_virtual("asyncio", streamed, swarm).error, StreamInterrupted)


@BOTH
def test_a_stream_that_is_cut_after_its_content_is_not_requested_again(backend: str) -> None:
    """The reader has a part of the answer already."""

    class Cut(Slow):
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            async with aclosing(super().complete(request)) as chunks:
                async for each in chunks:
                    if each == chunk("stop"):
                        raise StreamInterrupted("cut")
                    yield each

    slow = Cut([0])
    assert isinstance(
        run_virtual(backend, streamed, AsyncSwarm(slow, middleware=[hedge(after_seconds=0.5)])).error, StreamInterrupted
    )
    assert len(slow.sent) == 1


@BOTH
def test_time_in_the_queue_of_the_limits_does_not_count(backend: str) -> None:
    """The second stream waits 61 s for the limits, and is quick then."""
    slow = Slow([1, 1, 1, 1])
    swarm = AsyncSwarm(
        slow, rate_limits=RateLimits(requests_per_minute=1), middleware=[hedge(after_seconds=5, share=1)]
    )

    async def two() -> None:
        for _ in range(2):
            await streamed(swarm)

    run_virtual(backend, two)
    assert [at - slow.sent[0] for at in slow.sent] == pytest.approx([0, 61])


@BOTH
def test_no_second_request_during_a_pause(backend: str) -> None:
    """After a 429, the time starts again with the next request, which is hedged like others."""
    slow = Slow([1, 10, 1], {0: CompletionError("slow down", status_code=429, retryable=True, retry_after=30.0)})
    swarm = AsyncSwarm(slow, rate_limits=RateLimits(), middleware=[hedge(after_seconds=3, share=1)])
    seen = run_virtual(backend, streamed, swarm)
    assert [at - slow.sent[0] for at in slow.sent] == pytest.approx([0, 31, 34])
    assert seen.text == "2"


@BOTH
def test_no_second_request_before_a_retry(backend: str) -> None:
    """After a failure, the time starts again with the retry, at least 0.375 s later."""
    slow = Slow([0.1, 10, 1], {0: CompletionError("down", status_code=503, retryable=True)})
    swarm = AsyncSwarm(slow, rate_limits=RateLimits(), middleware=[hedge(after_seconds=0.2, share=1)])
    seen = run_virtual(backend, streamed, swarm)
    assert slow.sent[1] - slow.sent[0] >= 0.475
    assert slow.sent[2] - slow.sent[1] == pytest.approx(0.2)
    assert seen.text == "2"


@BOTH
def test_a_second_request_in_the_queue_is_not_sent_and_not_charged(backend: str) -> None:
    """If the first has content before the limits allow the second, there is one request."""
    slow = Slow([10])
    swarm = AsyncSwarm(slow, rate_limits=RateLimits(requests_per_minute=1), middleware=[hedge(after_seconds=2)])
    seen = run_virtual(backend, streamed, swarm)
    assert seen.response is not None
    assert (seen.text, seen.response.usage.requests, len(slow.sent)) == ("0", 1, 1)


def test_each_request_is_a_copy_and_the_second_is_not_retried() -> None:
    """Inner middleware may change its request."""
    seen: list[int] = []

    def clear(body: dict[str, Any]) -> None:
        seen.append(len(body["messages"]))
        body["messages"].clear()

    slow = Slow([50, 1])
    swarm = AsyncSwarm(slow, middleware=[hedge(after_seconds=1), asking_first(clear)])
    assert run_virtual("trio", streamed, swarm).text == "1"
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
    """The provider keeps data for such a request, or works for it."""
    slow = Slow([50, 1])
    swarm = AsyncSwarm(slow, middleware=[hedge(after_seconds=1)])
    assert run_virtual("trio", streamed, swarm, Agent(model_settings=settings)).text == "0"
    assert len(slow.sent) == 1


def test_the_functions_of_an_agent_are_no_reason_against_it() -> None:
    """Only the calls of the winner run."""

    def look() -> str:
        return ""

    slow = Slow([50, 1])
    swarm = AsyncSwarm(slow, middleware=[hedge(after_seconds=1)])
    assert run_virtual("trio", streamed, swarm, Agent(functions=[look])).text == "1"


@pytest.mark.parametrize(
    "wrong", [{"after_seconds": 0}, {"after_seconds": "1"}, {"share": -0.1}, {"share": 2}, {"share": None}]
)
def test_wrong_numbers(wrong: Any) -> None:
    """The error names the argument."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        hedge(**wrong)


def test_a_whole_answer_is_requested_once() -> None:
    """Only a stream shows that it is slow."""
    slow = Slow([50, 1])
    assert run_virtual("trio", AsyncSwarm(slow, middleware=[hedge(after_seconds=1)]).run, Agent(), "Hi").text == "0"
    assert len(slow.sent) == 1
