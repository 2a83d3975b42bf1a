"""The reference: a good hand-written loop on `AsyncOpenAI`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from clients import openai_client, openai_client_on_aiohttp
from openai import AsyncOpenAI
from scenario import A_TEXT, B_TEXT, MODEL, QUESTION, TOOLS, Message, handoff_json, tool_json

AGENTS: dict[str, dict[str, Any]] = {
    "a": {"text": A_TEXT, "tools": [tool_json("get_weather"), handoff_json()]},
    "b": {"text": B_TEXT, "tools": [tool_json("get_time"), tool_json("get_news")]},
}


async def _call(call: Any) -> dict[str, Any]:
    content = await TOOLS[call.function.name](**json.loads(call.function.arguments))
    return {"role": "tool", "tool_call_id": call.id, "content": content}


class Handwritten:
    """`create()`, `asyncio.gather` for the tools of a turn, messages appended to a list."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self.client = client

    def prepare(self, past: Sequence[Message]) -> list[Message]:
        """Return the dicts unchanged."""
        return list(past)

    async def converse(self, past: list[Message]) -> str:
        """Loop until the model answers."""
        messages: list[Any] = [*past, {"role": "user", "content": QUESTION}]
        agent = AGENTS["a"]
        while True:
            completion = await self.client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "system", "content": agent["text"]}, *messages],
                tools=agent["tools"],
            )
            message = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            if message.tool_calls[0].function.name == "transfer_to_b":  # type: ignore[union-attr]
                agent = AGENTS["b"]
                answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": '{"assistant": "b"}'}
                messages.append(answer)
            else:
                messages.extend(await asyncio.gather(*map(_call, message.tool_calls)))

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        messages: list[Any] = [{"role": "system", "content": B_TEXT}, {"role": "user", "content": QUESTION}]
        stream = await self.client.chat.completions.create(
            model=MODEL, messages=messages, tools=AGENTS["b"]["tools"], stream=True
        )
        async for chunk in stream:
            if chunk.choices and (text := chunk.choices[0].delta.content):
                yield text

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


async def open_session(url: str, connections: int | None = None) -> Handwritten:
    """Make the client."""
    return Handwritten(openai_client(url, connections))


async def aiohttp(url: str, connections: int | None = None) -> Handwritten:
    """Make the client on the SDK's aiohttp transport, for many requests at once."""
    return Handwritten(openai_client_on_aiohttp(url, connections))
