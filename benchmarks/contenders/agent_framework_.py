"""agent-framework: two agents, `run` after `run`, the handoff tool ended by a middleware as its own builder does it.

Its `HandoffBuilder` would make a workflow for each conversation, and its agents do not see each other's tool messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from agent_framework import (
    Agent,
    FunctionInvocationContext,
    FunctionMiddleware,
    Message,
    MiddlewareTermination,
)
from agent_framework.openai import OpenAIChatCompletionClient
from clients import openai_client
from scenario import A_NAME, A_TEXT, B_NAME, B_TEXT, MODEL, QUESTION, get_news, get_time, get_weather
from scenario import Message as Past


async def transfer_to_b() -> str:
    """Hand over to the city guide."""
    return '{"assistant": "b"}'


class Handoff(FunctionMiddleware):
    """Ends the run after the handoff."""

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Run the tool, and stop after `transfer_to_b`."""
        await call_next()
        if context.function.name == "transfer_to_b":
            raise MiddlewareTermination(result=context.result)


class AgentFramework:
    """Agents are made once; a run without a session keeps nothing."""

    def __init__(self, url: str, connections: int | None) -> None:
        self.client = openai_client(url, connections)
        client = OpenAIChatCompletionClient(model=MODEL, async_client=self.client)
        self.a = Agent(client, A_TEXT, name=A_NAME, tools=[get_weather, transfer_to_b], middleware=[Handoff()])
        self.b = Agent(client, B_TEXT, name=B_NAME, tools=[get_time, get_news])

    def prepare(self, past: Sequence[Past]) -> list[Message]:
        """Return its own message objects."""
        return [Message(message["role"], [message["content"]]) for message in past]

    async def converse(self, past: list[Message]) -> str:
        """Run agent `a`, then agent `b` on its messages."""
        messages = [*past, Message("user", [QUESTION])]
        first = await self.a.run(messages)
        second = await self.b.run([*messages, *first.messages])
        return second.text

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        async for update in self.b.run(QUESTION, stream=True):
            if update.text:
                yield update.text

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


async def open_session(url: str, connections: int | None = None) -> AgentFramework:
    """Make the agents."""
    return AgentFramework(url, connections)
