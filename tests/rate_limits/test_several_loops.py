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

from aswarm import Agent, AsyncSwarm, CompletionError, RateLimits, Swarm
from aswarm.sources import CompletionRequest
from aswarm.testing import Failure, ScriptedModel
from tests.support.runtime.virtual_time import in_virtual_time

HI = {"choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}


class Source:
    """A source of the user's own, on any loop; records when it is asked, and how often it may retry."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.times.append(time.monotonic())
        self.requests.append(request)
        yield HI


def limited(client: Any, each_second: int = 0) -> AsyncSwarm:
    return AsyncSwarm(client, rate_limits=RateLimits(requests_per_minute=60 * each_second or None))


async def _runs(swarm: AsyncSwarm, count: int) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(swarm.run, Agent(), "Hi")


def _in_threads(*works: tuple[str, Callable[[], Awaitable[None]]]) -> None:
    """Run each on a backend and a loop of its own, all at once."""
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(anyio.run, work, backend=backend) for backend, work in works]:
            done.result(120)


def test_loops_in_threads_share_the_limit() -> None:
    """Two backends, four threads: no second has more requests than the limit, and all runs end."""
    source = Source()
    swarm, before = limited(source, 6), time.monotonic()
    _in_threads(*((backend, lambda: _runs(swarm, 3)) for backend in ("asyncio", "trio", "asyncio", "trio")))
    assert len(source.times) == 12
    for number, at in enumerate(sorted(source.times)):
        assert at - before > number // 6 - 0.01


def test_loops_one_after_another_share_the_limit() -> None:
    """Requests of one loop still count in the next, although its clock starts elsewhere."""
    source = Source()
    swarm, before = limited(source, 2), time.monotonic()
    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(_runs, swarm, 2, backend=backend)
    for number, at in enumerate(source.times):
        assert at - before > number // 2 - 0.01


def test_a_clock_that_ran_ahead_does_not_delay_the_next_loop() -> None:
    """After a thousand seconds on a virtual clock, the next loop waits for a minute, not for a thousand seconds."""
    swarm, took = AsyncSwarm(Source(), rate_limits=RateLimits(requests_per_minute=1)), []

    @in_virtual_time
    async def run() -> None:
        await swarm.run(Agent(), "Hi")
        took.append(anyio.current_time())
        await anyio.sleep(1000)
        await swarm.run(Agent(), "Hi")

    run()
    run()
    assert took == [0, pytest.approx(61, abs=1)]


def test_a_request_says_that_its_source_must_not_retry() -> None:
    """`max_retries` of the request is 0 while limits are on, and None otherwise."""
    source = Source()
    anyio.run(_runs, limited(source), 1)
    anyio.run(_runs, AsyncSwarm(source), 1)
    assert [request.max_retries for request in source.requests] == [0, None]


def test_a_loop_that_is_blocked_holds_up_no_other() -> None:
    """Its requests wait, and are forgotten when it is closed; other loops continue."""
    source = Source()
    swarm = limited(source, 1)
    stopped = asyncio.new_event_loop()
    stopped.set_exception_handler(lambda *_: None)
    stopped.run_until_complete(swarm.run(Agent(), "Hi"))
    waiting = stopped.create_task(_runs(swarm, 2))
    stopped.run_until_complete(asyncio.sleep(0.02))
    anyio.run(_runs, swarm, 1)
    assert len(source.times) == 2
    waiting.cancel()
    stopped.run_until_complete(asyncio.wait([waiting]))
    stopped.close()
    anyio.run(_runs, swarm, 1)
    assert len(source.times) == 3


def test_a_loop_that_was_closed_with_waiting_requests_is_forgotten() -> None:
    """To wake its requests fails; other runs do not notice."""
    swarm = limited(source := Source(), 1)
    stopped = ClosedLater()
    stopped.run_until_complete(swarm.run(Agent(), "Hi"))
    waiting = stopped.create_task(swarm.run(Agent(), "Hi"))
    stopped.run_until_complete(asyncio.sleep(0.02))
    stopped.counts_as_closed = True
    anyio.run(_runs, swarm, 1)
    assert (len(source.times), stopped.refused) == (2, 1)
    waiting.cancel()
    stopped.run_until_complete(asyncio.wait([waiting]))
    stopped.close()


class ClosedLater(asyncio.SelectorEventLoop):
    """An event loop that refuses calls of other threads like a closed loop, but can still finish its tasks."""

    counts_as_closed = False
    refused = 0

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> asyncio.Handle:
        if self.counts_as_closed:
            self.refused += 1
            raise RuntimeError("Event loop is closed")
        return super().call_soon_threadsafe(*args, **options)


def test_an_answer_in_one_loop_wakes_requests_in_another() -> None:
    """After a pause one request goes first; a request that waits for its answer in another thread goes at once."""
    let_go, has_come, released = threading.Event(), threading.Event(), list[float]()

    class Slow(Source):
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            self.requests.append(request)
            if len(self.requests) == 1:
                raise CompletionError("slow down", status_code=429, retryable=True, retry_after=0.01)
            if len(self.requests) == 2:
                has_come.set()
                await anyio.to_thread.run_sync(let_go.wait)
            self.times.append(time.monotonic())
            yield HI

    source = Slow()
    swarm = limited(source)

    async def second() -> None:
        await anyio.to_thread.run_sync(has_come.wait)
        async with anyio.create_task_group() as group:
            group.start_soon(swarm.run, Agent(), "other loop")
            await anyio.sleep(0.02)
            assert len(source.requests) == 2
            let_go.set()
            released.append(time.monotonic())

    _in_threads(("asyncio", lambda: _runs(swarm, 1)), ("trio", second))
    assert len(source.requests) == 3
    assert source.times[-1] - released[0] < 1.5, "after two seconds it would go without an answer"


def test_swarm_keeps_limits_too() -> None:
    """Without `await`, with a blocking client: the limit holds, and a rejection is waited for."""
    slow_down = httpx.Response(429, headers={"retry-after": "0.1"}, json={"error": {"message": "slow down"}})
    answers = [slow_down, *(httpx.Response(200, json=HI) for _ in range(3))]
    http_client: Any = httpx.Client(transport=httpx.MockTransport(lambda _: answers.pop(0)))
    client = openai.OpenAI(api_key="k", base_url="http://scripted.test/v1", max_retries=5, http_client=http_client)
    with Swarm(client, rate_limits=RateLimits(requests_per_minute=180)) as swarm:
        before = time.monotonic()
        assert swarm.run(Agent(), "Hi").text == "Hi"
        assert time.monotonic() - before > 0.09
        for _ in swarm.run(Agent(), "Hi", stream=True):
            pass
        assert swarm.run(Agent(), "Hi").text == "Hi"
        assert time.monotonic() - before > 0.99
    assert not answers


@pytest.mark.asyncio
async def test_an_instrumented_client_does_not_retry_by_itself_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a class was patched, a copy of the client is called that sends once; the patch sees every request."""
    original, seen = AsyncCompletions.create, []

    async def traced(self: Any, **arguments: Any) -> Any:
        seen.append(self._client.max_retries)
        return await original(self, **arguments)

    monkeypatch.setattr(AsyncCompletions, "create", traced)
    model = ScriptedModel([Failure(500), Failure(429, headers={"retry-after-ms": "5"}), "Hi", "Hi"])
    client = model.client(max_retries=2)
    assert (await limited(client).run(Agent(), "Hi")).text == "Hi"
    assert (await AsyncSwarm(client).run(Agent(), "Hi")).text == "Hi"
    assert seen == [0, 0, 0, 2]


@pytest.mark.asyncio
async def test_an_error_after_the_answer_has_begun_is_not_retried() -> None:
    """A reader may have seen the first part."""

    class Breaking(Source):
        async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            self.requests.append(request)
            yield {"choices": [{"delta": {"content": "Hel"}}]}
            raise CompletionError("slow down", status_code=429, retryable=True, retry_after=0.0)

    source = Breaking()
    with pytest.raises(CompletionError) as caught:
        await limited(source).run(Agent(), "Hi")
    assert caught.value.partial == "Hel"
    assert len(source.requests) == 1


@pytest.mark.asyncio
async def test_a_function_patched_on_an_instance_is_called() -> None:
    """A copy of the client would lack it, so the client keeps its own retries."""
    client = openai.AsyncOpenAI(api_key="k", max_retries=2)
    asked: list[Any] = []

    async def create(**arguments: Any) -> Any:
        asked.append(arguments)
        error = CompletionError("down", status_code=500, retryable=True)
        raise error

    client.chat.completions.create = create  # type: ignore[method-assign, assignment]
    with pytest.raises(CompletionError):
        await limited(client).run(Agent(), "Hi")
    assert len(asked) == 1
