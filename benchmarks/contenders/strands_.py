"""strands-agents: two agents, `invoke_async` after `invoke_async`; the handoff is a tool that ends the run.

Agents keep the conversation, so new agents are made for each conversation; its `Swarm` would build a graph too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from clients import openai_client
from scenario import A_NAME, A_TEXT, B_NAME, B_TEXT, MODEL, QUESTION, TOOLS, Message
from strands import Agent, ToolContext, tool
from strands.models.openai import OpenAIModel

PACKAGES = ("strands-agents", "openai")
IMPORT = "import strands, strands.models.openai"


@tool(context=True)
async def transfer_to_b(tool_context: ToolContext) -> str:
    """Hand over to the city guide."""
    tool_context.agent.cancel(after_current_tools=True)
    return '{"assistant": "b"}'


class Strands:
    """The tools and the model, made once."""

    def __init__(self, url: str, connections: int | None) -> None:
        self.client = openai_client(url, connections)
        self.whole = OpenAIModel(client=self.client, model_id=MODEL, stream=False)
        self.streamed = OpenAIModel(client=self.client, model_id=MODEL)
        self.tools = {name: tool(function) for name, function in TOOLS.items()}

    def prepare(self, past: Sequence[Message]) -> list[Any]:
        """Return its own message dicts."""
        return [{"role": message["role"], "content": [{"text": message["content"]}]} for message in past]

    def agent(self, name: str, model: OpenAIModel, messages: list[Any]) -> Agent:
        """Return an agent of one conversation."""
        b = [self.tools["get_time"], self.tools["get_news"]]
        return Agent(
            name=name,
            model=model,
            system_prompt=B_TEXT if name == B_NAME else A_TEXT,
            tools=b if name == B_NAME else [self.tools["get_weather"], transfer_to_b],
            messages=messages,
            callback_handler=None,
        )

    async def converse(self, past: list[Any]) -> str:
        """Run agent `a`, then agent `b` on its messages."""
        first = self.agent(A_NAME, self.whole, [*past])
        await first.invoke_async(QUESTION)
        second = self.agent(B_NAME, self.whole, first.messages)
        return str(await second.invoke_async()).strip()

    @property
    def views(self) -> Mapping[str, Callable[[], AsyncIterator[str]]]:
        """Return its stream of events."""
        return {"stream_async": self.stream}

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        async for event in self.agent(B_NAME, self.streamed, []).stream_async(QUESTION):
            if text := event.get("data"):
                yield text

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


async def open_session(url: str, connections: int | None = None) -> Strands:
    """Make the model."""
    return Strands(url, connections)
