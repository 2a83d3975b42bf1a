"""A fast fake server of Chat Completions and of the Responses API. It has its own process, so that only the client is measured.

The server keeps no conversation: the instructions and the calls in a request decide the turn. The name of the handoff comes from
the tools of the request. Options are in the path, before `/v1`:

    http://127.0.0.1:PORT/latency=0.2/v1      seconds before the answer
    .../chunks=1000/...                       text deltas of a streamed answer (default 10)
    .../pause=0.001/...                       seconds between events (default 0: all in one write)
    .../framing=block/...                     one HTTP chunk for all events of a write (default: one for each event)
    .../script=answer/...                     answer without calls
    .../script=call/...                       one call of `get_weather`, then the answer
    .../park=1/...                            hold each answer until `POST /release`

`GET /stats` returns the counts since the last `POST /reset`. `python server.py` starts the server, and prints its port.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, cast

from responses_api import events_of, response_of
from scenario import A_TEXT, ANSWER, B_TEXT, CITY

_HANDOFFS = (b'"transfer', b'"handoff')
_RESPONSES = b"/responses"
_AGENT_B = B_TEXT.encode()
_AGENT_A = A_TEXT.encode()
_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
# Handoff tools with required arguments.
_HANDOFF_ARGUMENTS = {"handoff_to_agent": '{"agent_name": "b", "message": "The guest asks about Oslo."}'}


@dataclass(frozen=True, slots=True)
class Options:
    """The options in the path of a request."""

    latency: float = 0.0
    chunks: int = 10
    pause: float = 0.0
    framing: str = "event"
    script: str = "conversation"
    park: bool = False


@dataclass(slots=True)
class Stats:
    """The counts of the server. `turns`: requests by turn. `forgotten`: requests of agent `b` without the messages of agent `a`."""

    connections: int = 0
    streams: int = 0
    forgotten: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    turns: list[int] = field(default_factory=lambda: [0, 0, 0, 0])


@cache
def options_of(path: bytes) -> Options:
    """Return the options in a request's path."""
    kinds = {"latency": float, "chunks": int, "pause": float, "framing": str, "script": str, "park": bool}
    pairs = (part.partition("=") for part in path.decode().split("/"))
    given: dict[str, Any] = {name: kinds[name](value) for name, equals, value in pairs if equals}
    return Options(**given)


# --- the answers ------------------------------------------------------------------------------------------------------


def calls_of(turn: int, handoff: str) -> list[dict[str, Any]]:
    """Return the tool calls of a turn."""
    city = json.dumps({"city": CITY})
    named = [
        [("get_weather", city)],
        [(handoff, _HANDOFF_ARGUMENTS.get(handoff, "{}"))],
        [("get_time", city), ("get_news", city)],
        [],
    ][turn]
    return [
        {"id": f"call_{turn}_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(named)
    ]


def _envelope(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-fake", "object": kind, "created": 1, "model": "fake"}


def completion_of(calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a whole completion of Chat Completions."""
    message: dict[str, Any] = {"role": "assistant", "content": None if calls else ANSWER, "refusal": None}
    if calls:
        message["tool_calls"] = calls
    finish = "tool_calls" if calls else "stop"
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**_envelope("chat.completion"), "choices": [choice], "usage": _USAGE}


@cache
def whole(turn: int, handoff: str, *, over_responses: bool) -> bytes:
    """Return the HTTP response with the whole answer of a turn."""
    calls = calls_of(turn, handoff)
    body = json.dumps(response_of(calls, ANSWER) if over_responses else completion_of(calls)).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _deltas(turn: int, handoff: str, chunks: int) -> Iterator[dict[str, Any]]:
    calls = calls_of(turn, handoff)
    yield {"role": "assistant", "content": None if calls else "", "refusal": None}
    for index, call in enumerate(calls):
        function = call["function"]
        yield {"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}
    for piece in () if calls else pieces_of_text(chunks):
        yield {"content": piece}


def pieces_of_text(count: int) -> list[str]:
    """Return `count` words, each with a space at its end."""
    words = ANSWER.split(" ")
    return [words[position % len(words)] + " " for position in range(count)]


def events(turn: int, handoff: str, chunks: int, *, usage: bool) -> list[bytes]:
    """Return the events of a streamed completion of Chat Completions."""
    finish = "tool_calls" if calls_of(turn, handoff) else "stop"
    choices: list[list[dict[str, Any]]] = [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]
        for delta in _deltas(turn, handoff, chunks)
    ]
    choices.append([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish}])
    envelope = {**_envelope("chat.completion.chunk"), "system_fingerprint": None}
    objects: list[dict[str, Any]] = [{**envelope, "choices": choice} for choice in choices]
    if usage:
        objects.append({**envelope, "choices": [], "usage": _USAGE})
    return [b"data: %b\n\n" % json.dumps(item).encode() for item in objects] + [b"data: [DONE]\n\n"]


def response_events(turn: int, handoff: str, chunks: int) -> list[bytes]:
    """Return the events of a streamed answer of the Responses API."""
    pieces = pieces_of_text(chunks)
    response = response_of(calls_of(turn, handoff), "".join(pieces))
    return [
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events_of(response, pieces)
    ]


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@cache
def streamed(turn: int, handoff: str, options: Options, *, usage: bool, over_responses: bool) -> list[bytes]:
    """Return the pieces of a streamed answer, its head and its events. The options decide what one write contains."""
    if over_responses:
        pieces = response_events(turn, handoff, options.chunks)
    else:
        pieces = events(turn, handoff, options.chunks, usage=usage)
    if options.framing == "block" and not options.pause:
        pieces = [b"".join(pieces)]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    framed = [head + _http_chunk(pieces[0]), *map(_http_chunk, pieces[1:])]
    framed[-1] += b"0\r\n\r\n"
    return framed if options.pause else [b"".join(framed)]


# --- the connection ---------------------------------------------------------------------------------------------------


class Server:
    """The state shared by all connections."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.released = asyncio.Event()

    def control(self, path: bytes) -> bytes:
        """Answer a request that is not for a completion."""
        if path == b"/reset":
            self.stats = Stats(in_flight=self.stats.in_flight)
            self.released.clear()
        elif path == b"/release":
            self.released.set()
        body = json.dumps(asdict(self.stats)).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class Connection(asyncio.Protocol):
    """A connection of HTTP/1.1. It stays open, and gets one request after another."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = bytearray()
        self.expected = 0  # the end of the request in the buffer; 0 while its head is incomplete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)
        self.server.stats.connections += 1

    def data_received(self, data: bytes) -> None:
        """Answer all complete requests in the buffer."""
        self.buffer += data
        while self.buffer and (self.expected or self.read_head()) and len(self.buffer) >= self.expected:
            request = bytes(self.buffer[: self.expected])
            del self.buffer[: self.expected]
            self.expected = 0
            self.answer(request)

    def read_head(self) -> bool:
        """Set `expected` for the next request. Returns False if its head is incomplete."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        _, _, length = bytes(self.buffer[:end]).lower().partition(b"content-length:")
        self.expected = end + 4 + int(length.split(b"\r\n", 1)[0] or 0)
        return True

    def answer(self, request: bytes) -> None:
        """Answer one request."""
        path = request.split(b" ", 2)[1]
        if not path.endswith((b"/chat/completions", _RESPONSES)):
            self.transport.write(self.server.control(path))
            return
        options = options_of(path)
        turn = _SCRIPTS[options.script](request)
        stats = self.server.stats
        stats.turns[turn] += 1
        stats.forgotten += turn > 1 and b'"call_0_0"' not in request
        stats.in_flight += 1
        stats.most_in_flight = max(stats.most_in_flight, stats.in_flight)
        self.say(self.writes_for(request, turn, options), options)

    def writes_for(self, request: bytes, turn: int, options: Options) -> list[bytes]:
        """Return the pieces to write for a request."""
        handoff = _handoff_in(request) if turn == 1 else ""
        over_responses = request.split(b" ", 2)[1].endswith(_RESPONSES)
        if b'"stream":true' not in request and b'"stream": true' not in request:
            return [whole(turn, handoff, over_responses=over_responses)]
        self.server.stats.streams += 1
        usage = b'"include_usage"' in request
        return streamed(turn, handoff, options, usage=usage, over_responses=over_responses)

    def say(self, writes: list[bytes], options: Options) -> None:
        """Write the pieces, at the times that the options set."""
        if options.park and not self.server.released.is_set():
            waiting = asyncio.ensure_future(self.server.released.wait())
            waiting.add_done_callback(lambda _: self.write(writes, 0, options.pause))
        elif options.latency:
            asyncio.get_running_loop().call_later(options.latency, self.write, writes, 0, options.pause)
        else:
            self.write(writes, 0, options.pause)

    def write(self, writes: list[bytes], position: int, pause: float) -> None:
        """Write one piece, and schedule the next piece."""
        if self.transport.is_closing():
            position = len(writes) - 1
        else:
            self.transport.write(writes[position])
        if position + 1 < len(writes):
            asyncio.get_running_loop().call_later(pause, self.write, writes, position + 1, pause)
        else:
            self.server.stats.in_flight -= 1


def turn_of(request: bytes) -> int:
    """Return the turn of a request, from 0. Raises ValueError for unknown instructions."""
    if _AGENT_B in request:
        return 3 if b'"call_2_1"' in request else 2
    if _AGENT_A in request:
        return 1 if b'"call_0_0"' in request else 0
    raise ValueError("the request has the instructions of neither agent")


_SCRIPTS: dict[str, Callable[[bytes], int]] = {
    "conversation": turn_of,
    "call": lambda request: 3 if b'"call_0_0"' in request else 0,
    "answer": lambda _: 3,
}


def _handoff_in(request: bytes) -> str:
    for prefix in _HANDOFFS:
        if (start := request.find(prefix)) >= 0:
            return request[start + 1 : request.index(b'"', start + 1)].decode()
    return "transfer_to_b"


async def main() -> None:
    """Serve on a free port of loopback until stdin ends."""
    loop, server = asyncio.get_running_loop(), Server()
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=4096)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
