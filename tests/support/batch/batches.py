"""A completion source that tests of batches can delay, and helpers to run a batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel

from aswarm import Agent, AsyncSwarm
from aswarm.batch import Batch, BatchResult
from aswarm.sources import CompletionRequest

AGENT = Agent(name="Echo", instructions="Say it again.")


def answer(text: str, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a whole completion, as a server sends it."""
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return {"choices": [choice], "usage": usage}


def call(name: str, arguments: str = "{}", call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def at_once(text: str) -> None:
    """Wait for nothing."""


class Echo:
    """A source that answers each conversation with its last message, or with the result of `gate`, which is awaited and may raise.

    `begun`: the texts in the order of the requests; `running`, `most`: the number of concurrent requests, now and at most.
    """

    def __init__(self, gate: Callable[[str], Awaitable[Any]] = at_once) -> None:
        self.gate = gate
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.requests: list[CompletionRequest] = []
        self.running = self.most = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        text = str(request.body["messages"][-1]["content"])
        self.requests.append(request)
        self.begun.append(text)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            given = await self.gate(text)
            yield answer(text) if given is None else given
        finally:
            self.running -= 1
            self.ended.append(text)

    def swarm(self) -> AsyncSwarm:
        return AsyncSwarm(client=self)


async def outcomes_of(source: Any, items: Any, agent: Agent = AGENT, **options: Any) -> list[BatchResult]:
    """Return all outcomes of a batch."""
    async with AsyncSwarm(client=source).batch(agent, items, **options) as outcomes:
        return [outcome async for outcome in outcomes]


def text_of(outcome: BatchResult) -> str:
    assert outcome.error is None, outcome.error
    assert outcome.response is not None
    return outcome.response.text


async def idle() -> None:
    """Wait until all other tasks wait for something."""
    await anyio.wait_all_tasks_blocked()


class Counted:
    """Endless numbered texts; `pulled` counts the texts that were read."""

    def __init__(self) -> None:
        self.pulled = 0

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> str:
        self.pulled += 1
        return str(self.pulled - 1)


class Scene:
    """A batch in which some items finish and others never do; `events` has the names of the cleaned up parts."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.source = Echo(self._gate)

    async def _gate(self, text: str) -> None:
        if int(text) < 2:
            return
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.events.append("run")

    async def items(self) -> AsyncIterator[str]:
        try:
            for number in range(5):
                yield str(number)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.events.append("items")

    def batch(self) -> Batch:
        return self.source.swarm().batch(AGENT, self.items(), concurrency=20)

    def check(self) -> None:
        """Check that three runs and the iterator of the items have stopped."""
        assert sorted(self.events) == ["items", "run", "run", "run"]
        assert self.source.running == 0
