"""agno: two agents, `arun` after `arun`; the handoff is a tool that ends the run. No database, no telemetry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from agno.agent import Agent, RunContentEvent
from agno.models.message import Message
from agno.models.openai import OpenAIChat
from agno.tools import tool
from clients import openai_client
from scenario import A_NAME, A_TEXT, API_KEY, B_NAME, B_TEXT, MODEL, QUESTION, get_news, get_time, get_weather
from scenario import Message as Past


@tool(stop_after_tool_call=True)
async def transfer_to_b() -> str:
    """Hand over to the city guide."""
    return '{"assistant": "b"}'


class Agno:
    """Agents are made once; the messages go in whole."""

    def __init__(self, url: str, connections: int | None) -> None:
        self.client = openai_client(url, connections)
        model = OpenAIChat(
            id=MODEL,
            api_key=API_KEY,
            base_url=url,
            async_client=self.client,
            role_map={"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"},
        )
        self.a = Agent(
            name=A_NAME, model=model, system_message=A_TEXT, tools=[get_weather, transfer_to_b], telemetry=False
        )
        self.b = Agent(name=B_NAME, model=model, system_message=B_TEXT, tools=[get_time, get_news], telemetry=False)

    def prepare(self, past: Sequence[Past]) -> list[Message]:
        """Return its own message objects."""
        return [Message(role=message["role"], content=message["content"]) for message in past]

    async def converse(self, past: list[Message]) -> str:
        """Run agent `a`, then agent `b` on its messages."""
        first = await self.a.arun([*past, Message(role="user", content=QUESTION)])
        second = await self.b.arun([message for message in first.messages or () if message.role != "system"])
        return str(second.content)

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        async for event in self.b.arun(QUESTION, stream=True):
            if isinstance(event, RunContentEvent) and event.content:
                yield str(event.content)

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


async def open_session(url: str, connections: int | None = None) -> Agno:
    """Make the agents."""
    return Agno(url, connections)
