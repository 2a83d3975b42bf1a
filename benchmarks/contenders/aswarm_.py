"""aswarm, as in its README."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from clients import openai_client
from scenario import A_NAME, A_TEXT, B_NAME, B_TEXT, MODEL, QUESTION, Message, get_news, get_time, get_weather

from aswarm import Agent, AsyncSwarm, TextDelta

PACKAGES = ("aswarm", "openai", "httpx2", "httpx", "anyio")
IMPORT = "import aswarm"

B = Agent(name=B_NAME, model=MODEL, instructions=B_TEXT, functions=[get_time, get_news])
A = Agent(name=A_NAME, model=MODEL, instructions=A_TEXT, functions=[get_weather, B])


class Aswarm:
    """`AsyncSwarm.run`, and its two kinds of streams."""

    def __init__(self, swarm: AsyncSwarm) -> None:
        self.swarm = swarm

    def prepare(self, past: Sequence[Message]) -> list[Message]:
        """Return the dicts unchanged."""
        return list(past)

    async def converse(self, past: list[Message]) -> str:
        """Make one run."""
        response = await self.swarm.run(A, [*past, {"role": "user", "content": QUESTION}])
        return str(response.messages[-1]["content"])

    @property
    def views(self) -> Mapping[str, Callable[[], AsyncIterator[str]]]:
        """Return the streams of Swarm's dicts and of typed events."""
        return {"classic": self.classic, "stream()": self.typed}

    async def classic(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer, from Swarm's events."""
        async for event in self.swarm.run(B, QUESTION, stream=True):
            if text := event.get("content"):
                yield text

    async def typed(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer, from typed events."""
        async with self.swarm.stream(B, QUESTION) as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    yield event.text

    async def close(self) -> None:
        """Close the client."""
        await self.swarm.client.close()


async def open_session(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm, on the same client as the reference."""
    return Aswarm(AsyncSwarm(client=openai_client(url, connections)))
