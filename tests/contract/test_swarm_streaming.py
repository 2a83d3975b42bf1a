"""`run(stream=True)` as Swarm streams: its events, in its order, with its keys; and Swarm's signature of `run`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Response
from aswarm.testing import ScriptedAnswer, ScriptedModel, call

pytestmark = pytest.mark.anyio


def swarm_of(*steps: Any, cut: int | None = None) -> tuple[AsyncSwarm, ScriptedModel]:
    model = ScriptedModel(steps, cut=cut)
    return AsyncSwarm(client=model.client()), model


def _named(name: str) -> Callable[[], str]:
    def function() -> str:
        return "nothing"

    function.__name__ = name
    return function


async def test_streaming_event_order() -> None:
    """Per turn: start, deltas, end before the tools run; last the response, once."""
    order: list[str] = []

    def look() -> str:
        order.append("tool")
        return "ok"

    swarm, _ = swarm_of(ScriptedAnswer("Wait", calls=[call("look")]), "All is well", cut=2)
    stream = swarm.run(Agent(name="A", functions=[look]), "Go", stream=True)
    events = []
    async for event in stream:
        order.append(event.get("delim") or ("response" if "response" in event else "delta"))
        events.append(event)
    squeezed = [kind for kind, before in zip(order, [None, *order], strict=False) if kind != before]
    assert squeezed == ["start", "delta", "end", "tool", "start", "delta", "end", "response"]
    assert isinstance(events[-1]["response"], Response)
    assert events[-1]["response"] is stream.response
    firsts = [event for event in events if event.get("sender")]
    assert [(event["role"], event["sender"]) for event in firsts] == [("assistant", "A"), ("assistant", "A")]
    assert "".join(event["content"] for event in events if event.get("content")) == "WaitAll is well"


async def test_streamed_dicts_have_every_key_and_stay_as_they_were() -> None:
    """Each delta has role, content and tool_calls; each fragment index, id, type and function; none changes later."""
    swarm, _ = swarm_of(call("look", what="everything"), "Well", cut=3)
    events: list[dict[str, Any]] = []
    copies: list[str] = []
    async for event in swarm.run_and_stream(Agent(functions=[_named("look")]), "Go"):
        events.append(event)
        copies.append(repr(event) if "response" not in event else "")
    assert copies == [repr(event) if "response" not in event else "" for event in events]
    deltas = [event for event in events if not {"delim", "response"} & set(event)]
    assert all({"role", "content", "tool_calls"} <= set(delta) for delta in deltas)
    fragments = [fragment for delta in deltas for fragment in delta["tool_calls"] or ()]
    assert all(set(fragment) == {"index", "id", "type", "function"} for fragment in fragments)
    assert all(set(fragment["function"]) == {"name", "arguments"} for fragment in fragments)
    assert "".join(fragment["function"]["arguments"] or "" for fragment in fragments) == '{"what": "everything"}'
    assert [fragment["id"] is None for fragment in fragments] == [False, *[True] * (len(fragments) - 1)]


async def test_the_stream_is_its_own_awaitable() -> None:
    """`async for` works on `run(stream=True)` and on `await run(stream=True)`, and it is an async generator."""
    swarm, _ = swarm_of("one", "two")
    stream = swarm.run(Agent(), "Hi", stream=True)
    assert await stream is stream
    assert [event["response"].text async for event in stream if "response" in event] == ["one"]
    texts = [e["response"].text async for e in await swarm.run(Agent(), "Hi", stream=True) if "response" in e]
    assert texts == ["two"]
    assert hasattr(stream, "asend") and hasattr(stream, "athrow") and hasattr(stream, "aclose")


async def test_run_takes_swarms_arguments_in_swarms_order() -> None:
    """The first eight parameters and their defaults are Swarm's."""
    expected = {
        "agent": inspect.Parameter.empty,
        "messages": inspect.Parameter.empty,
        "context_variables": None,
        "model_override": None,
        "stream": False,
        "debug": False,
        "max_turns": math.inf,
        "execute_tools": True,
    }
    parameters = list(inspect.signature(AsyncSwarm.run).parameters.values())[1:9]
    assert {parameter.name: parameter.default for parameter in parameters} == expected
