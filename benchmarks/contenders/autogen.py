"""autogen-agentchat: two agents, `run` after `run`, with its own handoff message.

Agents keep the conversation, so new agents are made for each conversation; a `Swarm` team would need a runtime too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.messages import HandoffMessage, ModelClientStreamingChunkEvent
from autogen_core.model_context import UnboundedChatCompletionContext
from autogen_core.models import AssistantMessage, LLMMessage, ModelFamily, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from clients import openai_client
from scenario import A_NAME, A_TEXT, API_KEY, B_NAME, B_TEXT, HANDOFF_TEXT, MODEL, QUESTION, TOOLS, Message

PACKAGES = ("autogen-agentchat", "autogen-ext", "openai")
IMPORT = "import autogen_agentchat.agents, autogen_ext.models.openai"
HANDOFF = Handoff(target=B_NAME, name="transfer_to_b", description=HANDOFF_TEXT)
ABILITIES: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "family": ModelFamily.UNKNOWN,
    "structured_output": False,
}


class Autogen:
    """The tools and the client, made once."""

    def __init__(self, url: str, connections: int | None) -> None:
        self.client = openai_client(url, connections)
        self.model = OpenAIChatCompletionClient(model=MODEL, api_key=API_KEY, base_url=url, model_info=ABILITIES)
        self.model._client = self.client  # noqa: SLF001 - it accepts no client, and all contenders have the same one
        self.tools = {name: FunctionTool(tool, description=tool.__doc__ or "") for name, tool in TOOLS.items()}

    def prepare(self, past: Sequence[Message]) -> list[LLMMessage]:
        """Return its own message objects."""
        return [
            UserMessage(content=message["content"], source="user")
            if message["role"] == "user"
            else AssistantMessage(content=message["content"], source=A_NAME)
            for message in past
        ]

    def agent_b(self, past: list[LLMMessage], *, stream: bool = False) -> AssistantAgent:
        """Return agent `b` of one conversation."""
        return AssistantAgent(
            B_NAME,
            self.model,
            system_message=B_TEXT,
            tools=[self.tools["get_time"], self.tools["get_news"]],
            model_context=UnboundedChatCompletionContext(past),
            model_client_stream=stream,
            max_tool_iterations=10,
        )

    async def converse(self, past: list[LLMMessage]) -> str:
        """Run agent `a`, then agent `b` on its messages."""
        context = UnboundedChatCompletionContext(past)
        first = AssistantAgent(
            A_NAME,
            self.model,
            system_message=A_TEXT,
            tools=[self.tools["get_weather"]],
            handoffs=[HANDOFF],
            model_context=context,
            max_tool_iterations=10,
        )
        handed = (await first.run(task=QUESTION)).messages[-1]
        if not isinstance(handed, HandoffMessage):
            return str(handed)
        # The messages of agent `a` go with it; the handoff message has only the last turn.
        second = await self.agent_b(await context.get_messages()).run()
        return str(second.messages[-1].content)  # type: ignore[union-attr]

    @property
    def views(self) -> Mapping[str, Callable[[], AsyncIterator[str]]]:
        """Return its stream of events."""
        return {"run_stream": self.stream}

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        async for event in self.agent_b([], stream=True).run_stream(task=QUESTION):
            if isinstance(event, ModelClientStreamingChunkEvent):
                yield event.content

    async def close(self) -> None:
        """Close the client."""
        await self.model.close()


async def open_session(url: str, connections: int | None = None) -> Autogen:
    """Make the client."""
    return Autogen(url, connections)
