"""langgraph-swarm: its own handoff tool, agents by langchain's `create_agent`, compiled once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from clients import openai_client
from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from langgraph_swarm import create_handoff_tool, create_swarm
from scenario import (
    A_NAME,
    A_TEXT,
    API_KEY,
    B_NAME,
    B_TEXT,
    HANDOFF_TEXT,
    MODEL,
    QUESTION,
    Message,
    get_news,
    get_time,
    get_weather,
)

PACKAGES = ("langgraph-swarm", "langgraph", "langchain", "langchain-openai", "openai")
IMPORT = "import langgraph_swarm, langchain.agents, langchain_openai"


class LanggraphSwarm:
    """`ainvoke` of the compiled graph, without a checkpointer."""

    def __init__(self, url: str, connections: int | None) -> None:
        self.client = openai_client(url, connections)
        model = ChatOpenAI(
            model=MODEL,
            api_key=lambda: API_KEY,
            base_url=url,
            root_async_client=self.client,
            async_client=self.client.chat.completions,
            stream_usage=True,
        )
        handoff = create_handoff_tool(agent_name=B_NAME, description=HANDOFF_TEXT)
        a = create_agent(model, tools=[get_weather, handoff], system_prompt=A_TEXT, name=A_NAME)
        self.b = create_agent(model, tools=[get_time, get_news], system_prompt=B_TEXT, name=B_NAME)
        self.swarm = create_swarm([a, self.b], default_active_agent=A_NAME).compile()

    def prepare(self, past: Sequence[Message]) -> list[Message]:
        """Return the dicts unchanged."""
        return list(past)

    async def converse(self, past: list[Message]) -> str:
        """Make one run of the graph."""
        state: Any = {"messages": [*past, {"role": "user", "content": QUESTION}]}
        result = await self.swarm.ainvoke(state)
        return str(result["messages"][-1].content)

    @property
    def views(self) -> Mapping[str, Callable[[], AsyncIterator[str]]]:
        """Return its stream of messages."""
        return {"astream": self.stream}

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        state: Any = {"messages": [{"role": "user", "content": QUESTION}]}
        async for message, _ in self.b.astream(state, stream_mode="messages"):
            if isinstance(message, AIMessageChunk) and message.content:
                yield str(message.content)

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


async def open_session(url: str, connections: int | None = None) -> LanggraphSwarm:
    """Compile the graph."""
    return LanggraphSwarm(url, connections)
