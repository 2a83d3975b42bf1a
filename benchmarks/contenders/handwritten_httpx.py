"""The hand-written loop on httpx, without the SDK: the gain of dropping openai."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from scenario import A_TEXT, API_KEY, B_TEXT, MODEL, QUESTION, TOOLS, Message, handoff_json, tool_json

try:  # openai 3 uses it
    httpx: Any = importlib.import_module("httpx2")
except ModuleNotFoundError:
    httpx = importlib.import_module("httpx")

PACKAGES = ("httpx2", "httpx")
IMPORT = "import httpx"
TOOLS_OF = {
    A_TEXT: [tool_json("get_weather"), handoff_json()],
    B_TEXT: [tool_json("get_time"), tool_json("get_news")],
}


async def _call(call: dict[str, Any]) -> dict[str, Any]:
    content = await TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
    return {"role": "tool", "tool_call_id": call["id"], "content": content}


def _body(text: str, messages: Sequence[Message], *, stream: bool = False) -> dict[str, Any]:
    system = {"role": "system", "content": text}
    return {"model": MODEL, "messages": [system, *messages], "tools": TOOLS_OF[text], "stream": stream}


class HandwrittenHttpx:
    """`client.post(json=...)`, dicts in and out."""

    def __init__(self, url: str, connections: int | None) -> None:
        # The SDK's defaults, so that the pools are equal.
        limits = httpx.Limits(max_connections=connections or 1000, max_keepalive_connections=connections or 100)
        headers = {"authorization": f"Bearer {API_KEY}"}
        self.client = httpx.AsyncClient(headers=headers, limits=limits, timeout=600)
        self.url = f"{url}/chat/completions"

    def prepare(self, past: Sequence[Message]) -> list[Message]:
        """Return the dicts, as on the wire."""
        return list(past)

    async def converse(self, past: list[Message]) -> str:
        """Loop until the model answers."""
        messages: list[Message] = [*past, {"role": "user", "content": QUESTION}]
        text = A_TEXT
        while True:
            response = await self.client.post(self.url, json=_body(text, messages))
            response.raise_for_status()
            message = response.json()["choices"][0]["message"]
            messages.append(message)
            calls = message.get("tool_calls")
            if not calls:
                return str(message["content"])
            if calls[0]["function"]["name"] == "transfer_to_b":
                text = B_TEXT
                messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"assistant": "b"}'})
            else:
                messages.extend(await asyncio.gather(*map(_call, calls)))

    @property
    def views(self) -> Mapping[str, Callable[[], AsyncIterator[str]]]:
        """Return the lines of the event stream."""
        return {"aiter_lines": self.stream}

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        body = _body(B_TEXT, [{"role": "user", "content": QUESTION}], stream=True)
        async with self.client.stream("POST", self.url, json=body) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if chunk["choices"] and (text := chunk["choices"][0]["delta"].get("content")):
                    yield text

    async def close(self) -> None:
        """Close the client."""
        await self.client.aclose()


async def open_session(url: str, connections: int | None = None) -> HandwrittenHttpx:
    """Make the client."""
    return HandwrittenHttpx(url, connections)
