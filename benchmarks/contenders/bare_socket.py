"""The lower limit: one socket for each conversation, HTTP by hand, the body extended as bytes. Not a realistic program."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

from scenario import A_TEXT, B_TEXT, MODEL, QUESTION, TOOLS, Message, handoff_json, tool_json

PACKAGES = ()
IMPORT = "import asyncio"


def _head(text: str, tools: list[dict[str, Any]]) -> bytes:
    opening = json.dumps({"model": MODEL, "tools": tools, "messages": [{"role": "system", "content": text}]})
    return opening.removesuffix("]}").encode()


HEADS = {
    "a": _head(A_TEXT, [tool_json("get_weather"), handoff_json()]),
    "b": _head(B_TEXT, [tool_json("get_time"), tool_json("get_news")]),
}
QUESTION_BYTES = b"," + json.dumps({"role": "user", "content": QUESTION}).encode()


class Line(asyncio.Protocol):
    """One kept-alive connection: sends a request, receives a response with a content-length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        """Set the result when the body is complete."""
        self.buffer += data
        head, _, body = self.buffer.partition(b"\r\n\r\n")
        if len(body) >= int(head.rpartition(b"content-length: ")[2] or 0):
            self.buffer = b""
            self.answer.set_result(body)

    def post(self, path: bytes, body: bytes) -> asyncio.Future[bytes]:
        """Send a request. Returns a future with the body of the response."""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body))
        return self.answer


async def _call(call: dict[str, Any]) -> bytes:
    content = await TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
    return b"," + json.dumps({"role": "tool", "tool_call_id": call["id"], "content": content}).encode()


class BareSocket:
    """A list of connections."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = (parts.hostname, parts.port)
        self.path = f"{parts.path}/chat/completions".encode()
        self.idle: list[Line] = []

    def prepare(self, past: Sequence[Message]) -> bytes:
        """Return the history as bytes."""
        return b"".join(b"," + json.dumps(message).encode() for message in past)

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        """Yield a connection, for one conversation."""
        if self.idle:
            line = self.idle.pop()
        else:
            _, line = await asyncio.get_running_loop().create_connection(Line, *self.address)
        yield line
        self.idle.append(line)

    async def converse(self, past: bytes) -> str:
        """Loop until the model answers."""
        messages, agent = past + QUESTION_BYTES, "a"
        async with self.line() as line:
            while True:
                answer = await line.post(self.path, HEADS[agent] + messages + b"]}")
                message = json.loads(answer)["choices"][0]["message"]
                calls = message.get("tool_calls")
                if not calls:
                    return str(message["content"])
                messages += b"," + json.dumps(message).encode()
                if calls[0]["function"]["name"] == "transfer_to_b":
                    agent = "b"
                    handoff = {"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"assistant": "b"}'}
                    messages += b"," + json.dumps(handoff).encode()
                else:
                    messages += b"".join(await asyncio.gather(*map(_call, calls)))

    @property
    def views(self) -> Mapping[str, Callable[[], AsyncIterator[str]]]:
        """Return no streams."""
        return {}

    async def close(self) -> None:
        """Close all connections."""
        for line in self.idle:
            line.transport.close()


async def open_session(url: str, connections: int | None = None) -> BareSocket:
    """Return a session without connections."""
    return BareSocket(url)
