"""A raw HTTP server on loopback that sends exactly the bytes of a script, and detects a client that disconnects.

For tests that need real sockets, real connections and real closing.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc
from anyio.streams.tls import TLSListener

from aswarm.testing import ScriptedAnswer
from aswarm.testing._scripted_model import chunks, completion, response, response_events


@dataclass
class Reply:
    """The bytes of one answer. `pause` seconds before each piece; then `end`: "close", "reset", or "stall" (send no more).

    An answer without an end has an iterator of pieces.

    `silent`: not even the head is sent; the request is read and nothing follows.
    """

    pieces: Sequence[bytes]
    pause: float = 0
    end: str = "close"
    status: str = "200 OK"
    content_type: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    silent: bool = False


def sse(answer: ScriptedAnswer, *, cut: int | None = None, pause: float = 0, end: str = "close") -> Reply:
    """Return a correct streamed answer. `pause`: by default the pause of the answer."""
    events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks(answer, cut)]
    return Reply([*events, b"data: [DONE]\n\n"], pause=pause or answer.pause, end=end)


def whole(answer: ScriptedAnswer) -> Reply:
    """Return a correct whole answer."""
    return Reply([json.dumps(completion(answer)).encode()], content_type="application/json")


def sse_response(answer: ScriptedAnswer, *, cut: int | None = None) -> Reply:
    """Return a correct streamed answer of the Responses API."""
    return Reply(
        [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in response_events(answer, cut)],
        pause=answer.pause,
    )


def whole_response(answer: ScriptedAnswer) -> Reply:
    """Return a correct whole answer of the Responses API."""
    return Reply([json.dumps(response(answer)).encode()], content_type="application/json")


def is_for_claude(body: dict[str, Any]) -> bool:
    """Return whether this is the body of a request of Anthropic's Messages API."""
    return "max_tokens" in body and all(
        isinstance(message["content"], list) for message in body.get("messages") or [{}]
    )


def data_of(reply: Reply) -> list[dict[str, Any]]:
    """Return the objects of an answer: one whole completion, or its chunks."""
    texts = [piece.decode().removeprefix("data: ") for piece in reply.pieces]
    return [json.loads(text) for text in texts if text.strip() != "[DONE]"]


def spoken(answer: ScriptedAnswer, body: dict[str, Any], *, cut: int | None = None) -> Reply:
    """Return a correct answer to a request of any API, whole or streamed."""
    if is_for_claude(body):
        from tests.support.providers.claude import spoken_by_claude

        return spoken_by_claude(answer, body, cut=cut)
    is_chat = "messages" in body
    if body.get("stream"):
        return sse(answer, cut=cut) if is_chat else sse_response(answer, cut=cut)
    return whole(answer) if is_chat else whole_response(answer)


@dataclass
class LoopbackServer:
    """A server. `heads`: request lines and headers of `requests`. `closed_at`: times (anyio's clock) at which a client disconnected early."""

    scheme: str = "http"
    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    open_now: int = 0
    closed_at: list[float] = field(default_factory=list)
    asked: anyio.Event = field(default_factory=anyio.Event)

    @property
    def base_url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"


@asynccontextmanager
async def serve(
    reply: Callable[[dict[str, Any]], Reply], tls: ssl.SSLContext | None = None
) -> AsyncIterator[LoopbackServer]:
    """Serve `reply(request body)` on a free port, one connection for each answer, until the block ends."""
    seen = LoopbackServer(scheme="https" if tls else "http")

    async def handle(stream: anyio.abc.ByteStream) -> None:
        with suppress(anyio.BrokenResourceError):  # over TLS: the client left without saying so
            await answer_one(stream)

    async def answer_one(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            try:
                head, body = await read_request(stream)
            except (anyio.EndOfStream, anyio.BrokenResourceError):  # the client left before its request was complete
                return
            seen.heads.append(head)
            seen.requests.append(body)
            seen.asked.set()
            seen.open_now += 1
            try:
                await _answer(stream, reply(body), seen)
            finally:
                seen.open_now -= 1

    listener: Any = await anyio.create_tcp_listener(local_host="127.0.0.1")
    seen.port = listener.extra(anyio.abc.SocketAttribute.local_port)
    listener = TLSListener(listener, tls) if tls else listener
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        yield seen
        group.cancel_scope.cancel()


async def read_request(stream: anyio.abc.ByteStream) -> tuple[str, dict[str, Any]]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += await stream.receive()
    parsed: dict[str, Any] = json.loads(body or b"{}")
    return head.decode("latin-1"), parsed


async def _answer(stream: anyio.abc.ByteStream, reply: Reply, seen: LoopbackServer) -> None:
    extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
    head = f"HTTP/1.1 {reply.status}\r\ncontent-type: {reply.content_type}\r\nconnection: close\r\n{extra}\r\n"
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            # The client sends nothing more; an end or a reset means that it has disconnected.
            try:
                await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                seen.closed_at.append(anyio.current_time())
                group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            await _say(stream, head.encode(), reply)
        except anyio.BrokenResourceError:
            await anyio.sleep(1)  # `watch` detects it too, and reports it
        group.cancel_scope.cancel()


async def _say(stream: anyio.abc.ByteStream, head: bytes, reply: Reply) -> None:
    if reply.silent:
        await anyio.sleep_forever()
    await stream.send(head)
    for piece in reply.pieces:
        await anyio.sleep(reply.pause)
        await stream.send(piece)
    if reply.end == "stall":
        await anyio.sleep_forever()
    if reply.end == "reset":
        _reset(stream)


def _reset(stream: anyio.abc.ByteStream) -> None:
    import socket
    import struct

    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
