"""Models and runs for the tests of limits: what was sent, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
from faces import consume
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm, RateLimits
from aswarm.testing import Failure, Request, ScriptedModel, Step

FACES = ("run", "run(stream=True)", "stream")


class TimedModel(ScriptedModel):
    """A scripted model that records when each request came, and the text of its last message."""

    def __init__(self, script: Callable[[Request], Step] | list[Any] | None = None) -> None:
        super().__init__(script or (lambda _: "Hi"))
        self.times: list[float] = []

    def next_step(self, request: Request) -> Step:
        self.times.append(anyio.current_time())
        return super().next_step(request)

    @property
    def asked(self) -> list[str]:
        return [request.messages[-1]["content"] for request in self.requests]


def limited(model: ScriptedModel, requests: int | None = None, tokens: int | None = None, **options: Any) -> AsyncSwarm:
    """A swarm of this model, with limits; `options` are the client's."""
    return AsyncSwarm(client_of(model, **options), limits=RateLimits(requests, tokens))


def client_of(model: ScriptedModel, **options: Any) -> AsyncOpenAI:
    """A client that does not read the platform in a thread at its first request: a virtual clock would run on meanwhile."""
    client = model.client(**options)
    client._platform = "Linux"
    return client


async def run_all(swarm: AsyncSwarm, count: int, agent: Agent | None = None) -> list[str]:
    """So many runs at once, in all three ways to run; their instructions are "0", "1", ... in the order of their begin."""
    texts: list[str] = []

    async def one(number: int) -> None:
        left: list[Any] = []
        await consume(swarm, agent or Agent(instructions=f"{number}"), FACES[number % 3], left)
        texts.append(left[0].text)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(one, number)
            await anyio.sleep(0.001)
    return texts


def busy(seconds: float | None = None, status: int = 429, **options: Any) -> Failure:
    """A rejection, with or without a Retry-After."""
    headers = {} if seconds is None else {"retry-after": str(seconds)}
    return Failure(status, headers=headers, **options)
