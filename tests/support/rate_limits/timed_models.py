"""Models that record the times of their requests, and runs with them, for the tests of rate limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm, RateLimits
from aswarm.testing import Failure, Request, ScriptedModel, Step
from tests.support.run.ways_to_run import FACES, consume

# Seconds of the window in which a limit applies: a minute, and a second for the way to the server.
MINUTE = 61.0


class TimedModel(ScriptedModel):
    """A scripted model that records the time and the last message of each request."""

    def __init__(self, script: Callable[[Request], Step] | list[Any] | None = None) -> None:
        super().__init__(script or (lambda _: "Hi"))
        self.times: list[float] = []

    def _next_step(self, request: Request) -> Step:
        self.times.append(anyio.current_time())
        return super()._next_step(request)

    @property
    def asked(self) -> list[str]:
        return [request.messages[-1]["content"] for request in self.requests]


def limited(model: ScriptedModel, requests: int | None = None, tokens: int | None = None, **options: Any) -> AsyncSwarm:
    """Return a swarm of this model, with limits; `options` are for the client."""
    return AsyncSwarm(
        client_of(model, **options), rate_limits=RateLimits(requests_per_minute=requests, tokens_per_minute=tokens)
    )


def client_of(model: ScriptedModel, **options: Any) -> AsyncOpenAI:
    """Return a client that does not start a thread at its first request: a virtual clock would continue meanwhile."""
    client = model.client(**options)
    client._platform = "Linux"
    return client


async def run_all(swarm: AsyncSwarm, count: int) -> list[str]:
    """Make `count` runs at once, in all three ways to run, started in the order of their instructions ("0", "1", ...)."""
    texts: list[str] = []

    async def one(number: int) -> None:
        left: list[Any] = []
        await consume(swarm, Agent(instructions=f"{number}"), FACES[number % 3], left)
        texts.append(left[0].text)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(one, number)
            await anyio.sleep(0.001)
    return texts


def busy(seconds: float | None = None, status: int = 429, **options: Any) -> Failure:
    """Return a rejection, with or without a `Retry-After`."""
    headers = {} if seconds is None else {"retry-after": str(seconds)}
    return Failure(status, headers=headers, **options)
