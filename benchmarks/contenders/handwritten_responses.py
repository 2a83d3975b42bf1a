"""The reference over the Responses API: a good hand-written loop on `responses.create`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from clients import openai_client
from openai import AsyncOpenAI
from scenario import A_TEXT, B_TEXT, MODEL, QUESTION, TOOLS, Message, handoff_json, tool_json


def _flat(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "strict": False, **tool["function"]}


AGENTS: dict[str, dict[str, Any]] = {
    "a": {"text": A_TEXT, "tools": [_flat(tool_json("get_weather")), _flat(handoff_json())]},
    "b": {"text": B_TEXT, "tools": [_flat(tool_json("get_time")), _flat(tool_json("get_news"))]},
}
# As in aswarm's requests: nothing is stored, and reasoning comes back with the next request.
STATELESS: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}


def _output(call: Any, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}


async def _call(call: Any) -> dict[str, Any]:
    return _output(call, await TOOLS[call.name](**json.loads(call.arguments)))


class Handwritten:
    """`create()`, `asyncio.gather` for the tools of a turn, items appended to a list."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self.client = client

    def prepare(self, past: Sequence[Message]) -> list[Message]:
        """Return the dicts unchanged."""
        return list(past)

    async def converse(self, past: list[Message]) -> str:
        """Loop until the model answers."""
        items: list[Any] = [*past, {"role": "user", "content": QUESTION}]
        agent = AGENTS["a"]
        while True:
            response = await self.client.responses.create(
                model=MODEL, instructions=agent["text"], input=items, tools=agent["tools"], **STATELESS
            )
            items += response.output
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return response.output_text
            if calls[0].name == "transfer_to_b":
                agent = AGENTS["b"]
                items.append(_output(calls[0], '{"assistant": "b"}'))
            else:
                items.extend(await asyncio.gather(*map(_call, calls)))

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        items: list[Any] = [{"role": "user", "content": QUESTION}]
        stream = await self.client.responses.create(
            model=MODEL, instructions=B_TEXT, input=items, tools=AGENTS["b"]["tools"], stream=True, **STATELESS
        )
        async for event in stream:
            if event.type == "response.output_text.delta":
                yield event.delta

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


async def open_session(url: str, connections: int | None = None) -> Handwritten:
    """Make the client."""
    return Handwritten(openai_client(url, connections))
