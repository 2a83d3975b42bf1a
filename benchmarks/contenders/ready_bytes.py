"""The limits below aswarm: requests that are ready as bytes, through the SDK's `post`, aiohttp, and one socket for each conversation.

Not realistic programs: the history is kept as bytes, and no answer is checked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from scenario import A_TEXT, API_KEY, B_TEXT, MODEL, QUESTION, TOOLS, Message, handoff_json, tool_json


def _head(text: str, tools: list[dict[str, Any]]) -> bytes:
    opening = json.dumps({"model": MODEL, "tools": tools, "messages": [{"role": "system", "content": text}]})
    return opening.removesuffix("]}").encode()


HEADS = {
    "a": _head(A_TEXT, [tool_json("get_weather"), handoff_json()]),
    "b": _head(B_TEXT, [tool_json("get_time"), tool_json("get_news")]),
}
QUESTION_BYTES = b"," + json.dumps({"role": "user", "content": QUESTION}).encode()
STREAMED = HEADS["b"] + QUESTION_BYTES + b'],"stream":true}'


class Line(Protocol):
    """The connection of a conversation."""

    async def post(self, body: bytes) -> bytes:
        """Return the body of the answer."""
        ...

    def events(self, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a streamed answer, cut anywhere."""
        ...


class Lines(Protocol):
    """A client."""

    def take(self) -> Line:
        """Return a connection."""
        ...

    def release(self, line: Line) -> None:
        """Take a connection back."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


async def _call(call: dict[str, Any]) -> bytes:
    content = await TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
    return b"," + json.dumps({"role": "tool", "tool_call_id": call["id"], "content": content}).encode()


class ReadyBytes:
    """The loop, on one of the clients below."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def prepare(self, past: Sequence[Message]) -> bytes:
        """Return the history as bytes."""
        return b"".join(b"," + json.dumps(message).encode() for message in past)

    async def converse(self, past: bytes) -> str:
        """Loop until the model answers."""
        line = self.lines.take()
        answer = await _loop(line, past + QUESTION_BYTES)
        self.lines.release(line)
        return answer

    async def stream(self) -> AsyncIterator[str]:
        """Yield the deltas of one answer."""
        line, rest = self.lines.take(), b""
        async with aclosing(line.events(STREAMED)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                for each in lines:
                    if each.startswith(b"data: {") and (text := _text_in(each)):
                        yield text
        self.lines.release(line)

    async def close(self) -> None:
        """Close all connections."""
        await self.lines.close()


async def _loop(line: Line, messages: bytes) -> str:
    agent = "a"
    while True:
        message = json.loads(await line.post(HEADS[agent] + messages + b"]}"))["choices"][0]["message"]
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


def _text_in(line: bytes) -> str | None:
    choices = json.loads(line[6:])["choices"]
    return choices[0]["delta"].get("content") if choices else None


# --- the SDK's `post` -------------------------------------------------------------------------------------------------


class Post:
    """`AsyncOpenAI.post`: its options, headers, authentication and retries."""

    def __init__(self, client: Any) -> None:
        from clients import http_package  # noqa: PLC0415 - it imports openai, and the other clients do not

        self.client = client
        self.options: dict[str, Any] = {
            "cast_to": http_package().Response,
            "options": {"security": {"bearer_auth": True}},
        }

    def take(self) -> Post:
        """Return this client, which has a pool."""
        return self

    def release(self, line: Line) -> None:
        """Do nothing."""

    async def post(self, body: bytes) -> bytes:
        """Return the body of the answer."""
        response = await self.client.post("/chat/completions", content=body, **self.options)
        return bytes(response.content)

    async def events(self, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a streamed answer."""
        from openai import AsyncStream  # noqa: PLC0415 - as above

        options = {**self.options, "stream": True, "stream_cls": AsyncStream}
        response = await self.client.post("/chat/completions", content=body, **options)
        async for piece in response.aiter_bytes():
            yield piece
        await response.aclose()

    async def close(self) -> None:
        """Close the client."""
        await self.client.close()


# --- aiohttp ----------------------------------------------------------------------------------------------------------


class Aiohttp:
    """A session of aiohttp, without a limit of connections."""

    def __init__(self, url: str) -> None:
        import aiohttp  # noqa: PLC0415 - only for this client

        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers={"authorization": f"Bearer {API_KEY}"}
        )
        self.url = f"{url}/chat/completions"

    def take(self) -> Aiohttp:
        """Return this client, which has a pool."""
        return self

    def release(self, line: Line) -> None:
        """Do nothing."""

    async def post(self, body: bytes) -> bytes:
        """Return the body of the answer."""
        async with self.session.post(self.url, data=body) as response:
            return await response.read()

    async def events(self, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a streamed answer."""
        async with self.session.post(self.url, data=body) as response:
            async for piece in response.content.iter_any():
                yield piece

    async def close(self) -> None:
        """Close the session."""
        await self.session.close()


# --- sockets ----------------------------------------------------------------------------------------------------------


class SocketLine(asyncio.Protocol):
    """One kept-alive connection: HTTP by hand, for the answers of the fake server only."""

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.buffer = b""
        self.arrived: asyncio.Future[None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Keep the data, and wake the reader."""
        self.buffer += data
        if self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)

    async def send(self, body: bytes) -> None:
        """Send a request, over a new connection the first time."""
        if self.transport is None:
            host, _, port = self.path.split(b"/")[2].decode().partition(":")
            await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
        transport = cast("asyncio.Transport", self.transport)
        path = urlsplit(self.path).path
        transport.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body))

    async def more(self) -> None:
        """Wait for data."""
        self.arrived = asyncio.get_running_loop().create_future()
        await self.arrived

    async def post(self, body: bytes) -> bytes:
        """Return the body of the answer, which has a content-length."""
        await self.send(body)
        while True:
            await self.more()
            head, end, answer = self.buffer.partition(b"\r\n\r\n")
            if end and len(answer) >= int(head.rpartition(b"content-length: ")[2]):
                self.buffer = b""
                return answer

    async def events(self, body: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a chunked answer, with the sizes of the chunks, which no event is on a line with."""
        await self.send(body)
        ended = False
        while not ended:
            await self.more()
            piece, self.buffer = self.buffer, b""
            ended = piece.endswith(b"\r\n0\r\n\r\n")
            yield piece

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()


class Sockets:
    """A list of connections."""

    def __init__(self, url: str) -> None:
        self.path = f"{url}/chat/completions".encode()
        self.idle: list[SocketLine] = []

    def take(self) -> SocketLine:
        """Return a connection, for one conversation."""
        return self.idle.pop() if self.idle else SocketLine(self.path)

    def release(self, line: Line) -> None:
        """Keep the connection for the next conversation."""
        self.idle.append(cast("SocketLine", line))

    async def close(self) -> None:
        """Close all connections."""
        for line in self.idle:
            line.close()


async def post(url: str, connections: int | None = None) -> ReadyBytes:
    """Make the SDK's client on its default transport."""
    from clients import openai_client  # noqa: PLC0415 - as above

    return ReadyBytes(Post(openai_client(url, connections)))


async def post_aiohttp(url: str, connections: int | None = None) -> ReadyBytes:
    """Make the SDK's client on aiohttp."""
    from clients import openai_client_on_aiohttp  # noqa: PLC0415 - as above

    return ReadyBytes(Post(openai_client_on_aiohttp(url, connections)))


async def aiohttp(url: str, connections: int | None = None) -> ReadyBytes:
    """Make a session of aiohttp."""
    return ReadyBytes(Aiohttp(url))


async def sockets(url: str, connections: int | None = None) -> ReadyBytes:
    """Make an empty list of connections."""
    return ReadyBytes(Sockets(url))
