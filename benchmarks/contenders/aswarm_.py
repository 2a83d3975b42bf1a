"""aswarm, as in its README, on each of its transports, and over the Responses API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from scenario import A_NAME, A_TEXT, API_KEY, B_NAME, B_TEXT, MODEL, QUESTION, Message, get_news, get_time, get_weather

from aswarm import Agent, AsyncSwarm

Close = Callable[[], Awaitable[None]]

B = Agent(name=B_NAME, model=MODEL, instructions=B_TEXT, functions=[get_time, get_news])
A = Agent(name=A_NAME, model=MODEL, instructions=A_TEXT, functions=[get_weather, B])


class Aswarm:
    """`AsyncSwarm.run`."""

    def __init__(self, swarm: AsyncSwarm, close: Close) -> None:
        self.swarm, self._close = swarm, close

    def prepare(self, past: Sequence[Message]) -> list[Message]:
        """Return the dicts unchanged."""
        return list(past)

    async def converse(self, past: list[Message]) -> str:
        """Make one run."""
        response = await self.swarm.run(A, [*past, {"role": "user", "content": QUESTION}])
        return str(response.messages[-1]["content"])

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer, from Swarm's events."""
        async for event in self.swarm.run(B, QUESTION, stream=True):
            if text := event.get("content"):
                yield text

    async def close(self) -> None:
        """Close the client."""
        await self._close()


def on_openai(url: str, connections: int | None = None, **options: Any) -> tuple[AsyncSwarm, Close]:
    """Return a swarm on the same client as the reference, and the function that closes the client."""
    from clients import openai_client  # noqa: PLC0415 - it imports openai, and the direct source does not

    client = openai_client(url, connections)
    return AsyncSwarm(client=client, **options), client.close


def on_own_client(url: str, transport: Any) -> tuple[AsyncSwarm, Close]:
    """Return a swarm that makes its client itself, without a limit of connections, and the function that closes it."""
    os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY=API_KEY)
    swarm = AsyncSwarm(transport=transport)
    return swarm, swarm.aclose


async def open_session(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm on the SDK's default transport."""
    return Aswarm(*on_openai(url, connections))


async def aiohttp(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm on the SDK's aiohttp transport."""
    return Aswarm(*on_own_client(url, "aiohttp"))


async def direct(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm on the source without the SDK."""
    return Aswarm(*on_own_client(url, "direct"))


async def responses(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm over the Responses API."""
    return Aswarm(*on_openai(url, connections, api="responses"))
