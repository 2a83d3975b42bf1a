"""openai-agents: its own handoff, the Chat Completions model, no tracing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from clients import openai_client
from openai.types.responses import ResponseTextDeltaEvent
from scenario import A_NAME, A_TEXT, B_NAME, B_TEXT, MODEL, QUESTION, Message, get_news, get_time, get_weather

CONFIG = RunConfig(tracing_disabled=True)


class OpenaiAgents:
    """`Runner.run`."""

    def __init__(self, url: str, connections: int | None) -> None:
        self.client = openai_client(url, connections)
        model = OpenAIChatCompletionsModel(model=MODEL, openai_client=self.client)
        tools = [function_tool(tool) for tool in (get_weather, get_time, get_news)]
        self.b = Agent[Any](name=B_NAME, instructions=B_TEXT, model=model, tools=[*tools[1:]])
        self.a = Agent[Any](name=A_NAME, instructions=A_TEXT, model=model, tools=[tools[0]], handoffs=[self.b])

    def prepare(self, past: Sequence[Message]) -> list[Message]:
        """Return the dicts unchanged."""
        return list(past)

    async def converse(self, past: list[Any]) -> str:
        """Make one run."""
        result = await Runner.run(self.a, [*past, {"role": "user", "content": QUESTION}], run_config=CONFIG)
        return str(result.final_output)

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        async for event in Runner.run_streamed(self.b, QUESTION, run_config=CONFIG).stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                yield event.data.delta

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


async def open_session(url: str, connections: int | None = None) -> OpenaiAgents:
    """Make the agents."""
    return OpenaiAgents(url, connections)
