"""The bodies of the wire cases over a socket: the direct source makes the same of them as openai's client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, CompletionError
from aswarm.testing import ScriptedAnswer
from tests.support.providers.loopback import LoopbackServer, Reply, serve, spoken
from tests.support.providers.transports import Transport, client_at
from tests.support.sampling import every
from tests.support.wire.wire_bodies import CALLS, ERRORS, HELLO, NO_ANSWERS
from tests.support.wire.wire_cases import LAST, Json, end, functions, sse


def finished(chunks: list[Json]) -> list[Json]:
    """Return the chunks with a finish reason."""
    is_finished = any(chunk["choices"][0]["finish_reason"] for chunk in chunks)
    return chunks if is_finished else [*chunks, *end("tool_calls")]


BODIES: dict[str, Sequence[bytes]] = {
    **{case: sse(*chunks, done="no DONE" not in case) for case, chunks in HELLO.items()},
    **{case: sse(*finished(chunks)) for case, (chunks, _) in CALLS.items()},
    **ERRORS,
    **{case: pieces for case, (pieces, _) in NO_ANSWERS.items()},
}


def numbered(messages: list[Any]) -> str:
    """Return the messages as JSON with numbers as the ids of calls, because a call without an id gets a random one."""
    shown = json.dumps(messages)
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    for number, call in enumerate(calls):
        shown = shown.replace(json.dumps(call["id"]), json.dumps(f"id {number}"))
    return shown


async def outcome(server: LoopbackServer, transport: Transport, *, stream: bool) -> dict[str, Any]:
    """Return the events of a run, and its messages or its error, without the parts that differ in any two runs."""
    server.requests.clear()
    events: list[str] = []
    async with client_at(server.base_url, transport) as client:
        agent = Agent(name="A", functions=functions([]))
        run = AsyncSwarm(client).stream(agent, "Hi", deltas=stream)
        error: tuple[Any, ...] = ()
        try:
            async with run:
                events += [type(event).__name__ async for event in run]
        except CompletionError as caught:
            error = type(caught), str(caught), caught.partial, caught.status_code, caught.retryable
    return {
        "events": events,
        "messages": numbered(run.response.messages),
        "error": error,
        "requests": len(server.requests),
    }


@pytest.mark.parametrize(("case", "stream", "anyio_backend"), every(4, BODIES, [True, False], ["asyncio", "trio"]))
async def test_each_body_is_the_same_on_both(case: str, stream: bool) -> None:
    """Messages, requests, events, and the error with its text."""

    def reply(body: dict[str, Any]) -> Reply:
        return Reply(BODIES[case]) if len(server.requests) == 1 else spoken(ScriptedAnswer(LAST), body)

    async with serve(reply) as server:
        first = await outcome(server, "httpx", stream=stream)
        assert await outcome(server, "direct", stream=stream) == first
    assert first["messages"] != "[]" or first["error"]
