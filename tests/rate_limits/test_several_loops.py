"""One swarm's limits on several event loops, in threads, without `await`, and with clients of other kinds."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import httpx
import openai
import pytest
from openai.resources.chat.completions import AsyncCompletions
from virtual_time import in_virtual_time

from aswarm import Agent, AsyncSwarm, CompletionError, CompletionRequest, RateLimits, Swarm
from aswarm._rate_limits.rate_limiter import RateLimiter
from aswarm.testing import Answer, Failure, ScriptedModel, completion


class Source:
    """A source of the user's own, on any loop; notes when it is asked, and how often it may try again."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.times.append(time.monotonic())
        self.requests.append(request)
        yield completion(Answer("Hi"))


def paced(client: Any, requests: int | None = None, minute: float = 0.3) -> AsyncSwarm:
    swarm = AsyncSwarm(client)
    swarm._rate_limiter = RateLimiter(RateLimits(requests), minute=minute)
    return swarm


async def _runs(swarm: AsyncSwarm, count: int) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(swarm.run, Agent(), "Hi")


def _in_threads(*works: tuple[str, Callable[[], Awaitable[None]]]) -> None:
    """Each on a backend and a loop of its own, all at once."""
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(anyio.run, work, backend=backend) for backend, work in works]:
            done.result(20)


def test_loops_in_threads_share_the_limit() -> None:
    """Two backends, four threads: no minute has more than the limit, and everybody comes to an end."""
    source = Source()
    swarm, before = paced(source, requests=6), time.monotonic()
    _in_threads(*((backend, lambda: _runs(swarm, 4)) for backend in ("asyncio", "trio", "asyncio", "trio")))
    assert len(source.times) == 16
    for number, at in enumerate(sorted(source.times)):
        assert at - before > number // 6 * 0.3 - 0.01


def test_loops_one_after_another_share_the_limit() -> None:
    """What one loop has used still counts in the next, also where its clock starts elsewhere."""
    source = Source()
    swarm, before = paced(source, requests=2), time.monotonic()
    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(_runs, swarm, 2, backend=backend)
    for number, at in enumerate(source.times):
        assert at - before > number // 2 * 0.3 - 0.01


def test_a_clock_that_ran_ahead_takes_none_of_the_next_loops_time() -> None:
    """After a thousand seconds on a virtual clock, the next loop waits for a minute, not for a thousand seconds."""
    swarm, took = paced(Source(), requests=1, minute=60.0), []

    @in_virtual_time
    async def run() -> None:
        await swarm.run(Agent(), "Hi")
        took.append(anyio.current_time())
        await anyio.sleep(1000)
        await swarm.run(Agent(), "Hi")

    run()
    run()
    assert took == [0, pytest.approx(60, abs=1)]


def test_a_user_who_answers_requests_sees_that_nothing_is_to_be_tried_again() -> None:
    """`max_retries` of the request is 0 while limits are kept, and None otherwise."""
    source = Source()
    anyio.run(_runs, paced(source), 1)
    anyio.run(_runs, AsyncSwarm(source), 1)
    assert [request.max_retries for request in source.requests] == [0, None]


def test_a_loop_that_stands_still_holds_up_nobody() -> None:
    """Its requests wait, and when it was closed over them they are forgotten; other loops go on."""
    source = Source()
    swarm = paced(source, requests=1)
    stopped = asyncio.new_event_loop()
    stopped.set_exception_handler(lambda *_: None)
    stopped.run_until_complete(swarm.run(Agent(), "Hi"))
    waiting = stopped.create_task(_runs(swarm, 2))
    stopped.run_until_complete(asyncio.sleep(0.02))
    assert len(swarm._rate_limiter._lines) == 1
    anyio.run(_runs, swarm, 1)
    assert len(source.times) == 2
    waiting.cancel()
    stopped.run_until_complete(asyncio.wait([waiting]))
    assert not swarm._rate_limiter._lines
    stopped.close()


def test_a_loop_that_was_closed_over_its_waiters_is_forgotten() -> None:
    """Telling it that there is room would fail; that is nobody else's trouble."""
    swarm = paced(Source(), requests=1)
    swarm._rate_limiter._lines[object()] = gone = _Gone()  # type: ignore[assignment]
    anyio.run(_runs, swarm, 1)
    assert gone.was_told
    assert not swarm._rate_limiter._lines


class _Gone:
    was_told = False

    def wake(self) -> None:
        self.was_told = True
        raise RuntimeError("Event loop is closed")


def test_news_from_one_loop_reach_those_who_wait_in_another() -> None:
    """After a pause one goes first; whoever waits for its answer in another thread hears of it at once."""
    let_go, has_come = threading.Event(), threading.Event()

    class Slow(Source):
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            self.requests.append(request)
            if len(self.requests) == 1:
                raise CompletionError("slow down", status_code=429, retryable=True, retry_after=0.01)
            if len(self.requests) == 2:
                has_come.set()
                await anyio.to_thread.run_sync(let_go.wait)
            yield completion(Answer("Hi"))

    source = Slow()
    swarm = paced(source, minute=3000.0)

    async def second() -> None:
        await anyio.to_thread.run_sync(has_come.wait)
        async with anyio.create_task_group() as group:
            group.start_soon(swarm.run, Agent(), "other loop")
            await anyio.sleep(0.02)
            assert len(source.requests) == 2
            let_go.set()

    _in_threads(("asyncio", lambda: _runs(swarm, 1)), ("trio", second))
    assert len(source.requests) == 3


def test_swarm_keeps_limits_too() -> None:
    """Without `await`, with a blocking client: the limit holds, and a refusal is waited for."""
    slow_down = httpx.Response(429, headers={"retry-after": "0.1"}, json={"error": {"message": "slow down"}})
    answers = [slow_down, *(httpx.Response(200, json=completion(Answer("Hi"))) for _ in range(3))]
    http_client: Any = httpx.Client(transport=httpx.MockTransport(lambda _: answers.pop(0)))
    client = openai.OpenAI(api_key="k", base_url="http://scripted.test/v1", max_retries=5, http_client=http_client)
    with Swarm(client, limits=RateLimits(requests_per_minute=3)) as swarm:
        swarm._engine._rate_limiter = RateLimiter(RateLimits(requests_per_minute=3), minute=0.3)
        before = time.monotonic()
        assert swarm.run(Agent(), "Hi").text == "Hi"
        assert time.monotonic() - before > 0.09
        for _ in swarm.run(Agent(), "Hi", stream=True):
            pass
        assert swarm.run(Agent(), "Hi").text == "Hi"
        assert time.monotonic() - before > 0.29
    assert not answers


@pytest.mark.asyncio
async def test_an_instrumented_client_does_not_try_again_by_itself_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a class was patched, a copy of the client is called that sends once; the patch sees every request."""
    original, seen = AsyncCompletions.create, []

    async def traced(self: Any, **arguments: Any) -> Any:
        seen.append(self._client.max_retries)
        return await original(self, **arguments)

    monkeypatch.setattr(AsyncCompletions, "create", traced)
    model = ScriptedModel([Failure(500), Failure(429, headers={"retry-after-ms": "5"}), "Hi", "Hi"])
    client = model.client(max_retries=2)
    assert (await paced(client).run(Agent(), "Hi")).text == "Hi"
    assert (await AsyncSwarm(client).run(Agent(), "Hi")).text == "Hi"
    assert seen == [0, 0, 0, 2]


@pytest.mark.asyncio
async def test_an_error_after_the_answer_has_begun_is_not_tried_again() -> None:
    """Whatever it is: somebody has seen the beginning."""

    class Breaking(Source):
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            self.requests.append(request)
            yield {"choices": [{"delta": {"content": "Hel"}}]}
            raise CompletionError("slow down", status_code=429, retryable=True, retry_after=0.0)

    source = Breaking()
    with pytest.raises(CompletionError) as caught:
        await paced(source).run(Agent(), "Hi")
    assert caught.value.partial == "Hel"
    assert len(source.requests) == 1


@pytest.mark.asyncio
async def test_what_is_patched_on_an_object_is_not_copied_away() -> None:
    """A `create` on the instance is what must be called; what its client tries again by itself stays as it is."""
    client = openai.AsyncOpenAI(api_key="k", max_retries=2)
    asked: list[Any] = []

    async def create(**arguments: Any) -> Any:
        asked.append(arguments)
        error = CompletionError("down", status_code=500, retryable=True)
        raise error

    client.chat.completions.create = create  # type: ignore[method-assign, assignment]
    with pytest.raises(CompletionError):
        await paced(client).run(Agent(), "Hi")
    assert len(asked) == 1
