"""pydantic-ai: the programmatic handoff of its documentation, an output function that ends the run of agent `a`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from clients import openai_client
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from scenario import A_NAME, A_TEXT, B_NAME, B_TEXT, MODEL, QUESTION, Message, get_news, get_time, get_weather


@dataclass
class Handoff:
    """The output of agent `a`."""

    target: str = B_NAME


async def transfer_to_b() -> Handoff:
    """Hand over to the city guide."""
    return Handoff()


class PydanticAI:
    """Two agents, `run` after `run`."""

    def __init__(self, url: str, connections: int | None) -> None:
        self.client = openai_client(url, connections)
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=self.client))
        handoff = ToolOutput(transfer_to_b, name="transfer_to_b")
        self.a = Agent(model, name=A_NAME, instructions=A_TEXT, tools=[get_weather], output_type=[str, handoff])
        self.b = Agent(model, name=B_NAME, instructions=B_TEXT, tools=[get_time, get_news])

    def prepare(self, past: Sequence[Message]) -> list[ModelMessage]:
        """Return its own message objects."""
        return [
            ModelRequest(parts=[UserPromptPart(message["content"])])
            if message["role"] == "user"
            else ModelResponse(parts=[TextPart(message["content"])])
            for message in past
        ]

    async def converse(self, past: list[ModelMessage]) -> str:
        """Run agent `a`, then agent `b` on its messages."""
        first = await self.a.run(QUESTION, message_history=past)
        if not isinstance(first.output, Handoff):
            return str(first.output)
        second = await self.b.run(message_history=first.all_messages())
        return second.output

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer, without debouncing."""
        async with self.b.run_stream(QUESTION) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                yield text

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


async def open_session(url: str, connections: int | None = None) -> PydanticAI:
    """Make the agents."""
    return PydanticAI(url, connections)
