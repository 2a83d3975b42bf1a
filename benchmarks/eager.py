"""Prints the seconds of a turn with and without eager tools: `python eager.py`. The server is on loopback, in this process.

In the first turn, a completion of 2 s has four calls, and the first call takes 3 s. In the second turn, a completion of 2 s has eight
calls of 1 s, and a limiter allows two calls at the same time.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import anyio
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm, tool

WRITING = 2.0  # seconds that a completion takes
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    """Return a server-sent event."""
    return (
        b"data: %b\n\n"
        % json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}).encode()
    )


def server(calls: list[float]) -> Any:
    """Return the handler of connections. In the first answer, there is a call for each item of `calls`, at equal intervals."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        body = json.loads(await reader.readexactly(length))
        writer.write(HEAD)
        if body["messages"][-1]["role"] == "tool":
            writer.write(chunk({"content": "Done"}, "stop"))
        else:
            for index, seconds in enumerate(calls):
                named = {"name": "wait", "arguments": json.dumps({"seconds": seconds})}
                writer.write(chunk({"tool_calls": [{"index": index, "id": f"c{index}", "function": named}]}))
                await writer.drain()
                await asyncio.sleep(WRITING / len(calls))
            writer.write(chunk({}, "tool_calls"))
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    return answer


async def measure(calls: list[float], tokens: float, eager: bool) -> float:
    """Return the seconds of a run."""

    @tool(repeatable=True, limiter=anyio.CapacityLimiter(tokens))
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    listening = await asyncio.start_server(server(calls), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        begun = time.perf_counter()
        async for _ in AsyncSwarm(client, eager_tools=eager).run(Agent(functions=[wait]), "Go", stream=True):
            pass
        return time.perf_counter() - begun


async def main() -> None:
    """Measure both turns, and print the seconds."""
    await measure([0], 1, eager=False)  # makes imports and connections, which must not be measured
    turns = {
        "four calls, the first of 3 s": ([3.0, 0.5, 0.5, 0.5], 100),
        "eight calls of 1 s, two at once": ([1.0] * 8, 2),
    }
    for name, (calls, tokens) in turns.items():
        for eager in (False, True):
            print(f"{name}, eager_tools={eager}: {await measure(calls, tokens, eager):.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
