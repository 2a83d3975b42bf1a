"""The bytes of a server, and three ways to run against it, which must agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, Response, TextDelta
from aswarm.testing import ScriptedModel, Step, check_history

Json = dict[str, Any]
WAYS = ("run", "run(stream=True)", "stream()")
LAST = "It is done."


# --- the bytes of a server --------------------------------------------------------------------------------------------


def chunk(delta: object = None, finish: str | None = None, **more: Any) -> Json:
    """Return one chunk with one choice."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def fragment(name: str | None = None, arguments: Any = None, **more: Any) -> Json:
    """Return a tool-call fragment, without the parts that are None."""
    given = {"name": name, "arguments": arguments}
    return {**more, "function": {key: value for key, value in given.items() if value is not None}}


def text(*pieces: str) -> list[Json]:
    """Return a text in chunks, the role first."""
    return [chunk({"role": "assistant", "content": piece}) for piece in pieces]


def asks(*fragments: Json) -> list[Json]:
    """Return fragments, one in each chunk."""
    return [chunk({"tool_calls": [part]}) for part in fragments]


def end(reason: str = "stop") -> list[Json]:
    """Return the last chunk."""
    return [chunk({}, reason)]


def sse(*chunks: Json, done: bool = True) -> list[bytes]:
    """Return chunks as an event stream."""
    sent = [f"data: {json.dumps(item)}\n\n".encode() for item in chunks]
    return [*sent, b"data: [DONE]\n\n"] if done else sent


# --- three ways to run ------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """The result of one run: its response or its error, the calls, the requests, and the output."""

    response: Response
    error: CompletionError | None = None
    called: list[str] = field(default_factory=list)
    model: ScriptedModel = field(default_factory=lambda: ScriptedModel([]))
    partial: str = ""
    shown: list[Json] = field(default_factory=list)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Return name and arguments of the calls of the first message."""
        made = self.response.messages[0]["tool_calls"] or ()
        return [(item["function"]["name"], item["function"]["arguments"]) for item in made]

    @property
    def told(self) -> list[str]:
        """Return the contents of the tool messages."""
        return [message["content"] for message in self.response.messages if message["role"] == "tool"]


def functions(called: list[str]) -> list[Callable[..., Any]]:
    """Return the tools of these tests, which note their calls."""

    async def get_weather(city: str = "Nowhere") -> str:
        called.append(f"get_weather {city}")
        return f"sunny in {city}"

    async def get_time(city: str = "Nowhere") -> str:
        called.append(f"get_time {city}")
        return f"noon in {city}"

    return [get_weather, get_time]


async def watch(
    way: str, steps: Sequence[Step], messages: Any = "Hi", agent: Agent | None = None, **options: Any
) -> Seen:
    """Run in this way against a model that answers with these steps."""
    model, called = ScriptedModel(list(steps)), list[str]()
    agent = agent or Agent(name="A", functions=functions(called))
    swarm = AsyncSwarm(client=model.client(), **options)
    seen = Seen(Response(), called=called, model=model)
    try:
        if way == "run":
            seen.response = await swarm.run(agent, messages)
        elif way == "stream()":
            async with swarm.stream(agent, messages) as run:
                async for event in run:
                    seen.shown += [{"content": event.text}] if isinstance(event, TextDelta) else []
            seen.response = run.response
        else:
            async for item in swarm.run(agent, messages, stream=True):
                seen.shown += [item] if "content" in item else []
                seen.response = item.get("response", seen.response)
    except CompletionError as error:
        # Without a response, the history below is not valid.
        seen.error, seen.response, seen.partial = error, error.response or Response(messages=[{}]), error.partial
    check_history(seen.response.messages)
    assert model.open_streams == 0
    return seen


ways = pytest.mark.parametrize("way", WAYS)

PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'

HALF = sse(*text("Hel", "lo"), done=False)
