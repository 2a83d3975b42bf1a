"""A conversation with an independent server: two calls at once, and an answer."""

from __future__ import annotations

from typing import Any

from aswarm import Agent, AsyncSwarm, Response
from aswarm.events import ReasoningDelta
from aswarm.testing import check_history

WAYS = ("run", "run(stream=True)", "stream")
QUESTION = "How is the weather in Oslo and Rome?"


def look(city: str) -> str:
    """How the weather is in a city."""
    return {"Oslo": "rain", "Rome": "sun"}[city]


async def ask(swarm: AsyncSwarm, way: str, agent: Agent, messages: Any = QUESTION) -> tuple[Response, str]:
    """Run in one of the three ways. Returns the response, and the reasoning in the events."""
    if way == "run":
        return await swarm.run(agent, messages), ""
    if way == "stream":
        async with swarm.stream(agent, messages) as events:
            seen = [event async for event in events]
        return events.response, "".join(event.text for event in seen if isinstance(event, ReasoningDelta))
    return [event async for event in swarm.run(agent, messages, stream=True)][-1]["response"], ""


def check_weather(response: Response) -> None:
    """Check that both calls ran and were answered, and that the tokens of both turns were counted."""
    check_history(response.messages)
    texts = [message["content"] for message in response.messages]
    assert texts == ["Let me see.", "rain", "sun", "Rain, and sun."]
    usage = response.usage
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (2, 20, 10)
