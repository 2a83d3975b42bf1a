"""What Swarm does, `aswarm` does: answers, tool calls, handoffs, context, streaming, and the examples of Swarm's README.

Facts from Swarm's README and its tests/test_core.py. Every run goes through a real `AsyncOpenAI` over a scripted model.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Response, Swarm
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from aswarm.util import function_to_json


def swarm_of(*steps: Any, cut: int | None = None) -> tuple[AsyncSwarm, ScriptedModel]:
    model = ScriptedModel(steps, cut=cut)
    return AsyncSwarm(client=model.client()), model


async def test_a_message_may_call_and_speak() -> None:
    """Text beside tool calls is kept in the same assistant message."""
    swarm, _ = swarm_of(ScriptedAnswer("Let me see.", calls=[call("look")]), "Found.")
    response = await swarm.run(Agent(functions=[look]), "Look!")
    assert response.messages[0]["content"] == "Let me see."
    assert response.text == "Found."


def look(what: str = "") -> str:
    return "nothing"


@pytest.mark.parametrize(("max_turns", "requests"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (math.inf, 3)])
async def test_max_turns(max_turns: float, requests: int) -> None:
    """`max_turns` counts completions; the tools of the last allowed one run; 0 sends nothing."""
    ran: list[int] = []

    def step() -> str:
        ran.append(1)
        return "ok"

    swarm, model = swarm_of(call("step"), call("step"), "Done")
    response = await swarm.run(Agent(functions=[step]), "Go", max_turns=max_turns)
    assert len(model.requests) == requests
    assert len(ran) == min(requests, 2)
    assert response.stop == ("answer" if requests == 3 else "max_turns")
    check_history(response.messages)


async def test_schema_of_greet() -> None:
    """Swarm's README: `function_to_json(greet)` is this dict, and is what is sent."""

    def greet(name, age: int, location: str = "New York"):  # type: ignore[no-untyped-def]
        """Greets the user. Make sure to get their name and age before calling.

        Args:
           name: Name of the user.
           age: Age of the user.
           location: Best place on earth.
        """
        return f"Hello {name}, glad you are {age} in {location}!"

    expected = {
        "type": "function",
        "function": {
            "name": "greet",
            "description": "Greets the user. Make sure to get their name and age before calling.\n\nArgs:\n   name: Name "
            "of the user.\n   age: Age of the user.\n   location: Best place on earth.",
            "parameters": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "location": {"type": "string"}},
                "required": ["name", "age"],
            },
        },
    }
    assert function_to_json(greet) == expected
    swarm, model = swarm_of(call("greet", name="Ann", age=40), "Done")
    response = await swarm.run(Agent(functions=[greet]), "Greet Ann")
    assert model.requests[0].body["tools"] == [expected]
    assert response.messages[1]["content"] == "Hello Ann, glad you are 40 in New York!"


# --- streams ---


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
    async for event in swarm.run_and_stream(Agent(functions=[look]), "Go"):
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


def inspect_order() -> str:
    return "late"


@pytest.mark.parametrize("keywords", [0, 2, 4, 5])
async def test_run_takes_swarms_arguments_in_swarms_order(keywords: int) -> None:
    """Each of them by position or by name, with Swarm's defaults among the values."""
    arguments = {
        "agent": Agent(functions=[inspect_order]),
        "messages": "Hi",
        "context_variables": {"a": 1},
        "model_override": "m",
        "stream": False,
        "debug": False,
        "max_turns": math.inf,
        "execute_tools": False,
    }
    names = list(arguments)[len(arguments) - keywords :]
    positional = [value for name, value in arguments.items() if name not in names]
    swarm, model = swarm_of([call("inspect_order")])
    response = await swarm.run(*positional, **{name: arguments[name] for name in names})
    assert (response.stop, response.context_variables, model.requests[0].body["model"]) == ("tool_calls", {"a": 1}, "m")


@pytest.mark.parametrize("swarm", [Swarm(ScriptedModel([])), AsyncSwarm(ScriptedModel([]))])
def test_mistakes_in_the_arguments_of_run_have_pythons_errors(swarm: Any) -> None:
    """Too many positional arguments, and an argument that is given twice."""
    with pytest.raises(TypeError, match=r"run\(\) takes from 3 to 9 positional arguments but 10 were given"):
        swarm.run(Agent(), "Hi", {}, None, False, False, 3, True, None)
    with pytest.raises(TypeError, match=r"run\(\) got multiple values for argument 'stream'"):
        swarm.run(Agent(), "Hi", {}, None, True, stream=False)
    with pytest.raises(TypeError, match=r"run_and_stream\(\) takes from 3 to 8 positional arguments but 9 were given"):
        swarm.run_and_stream(Agent(), "Hi", {}, None, False, 3, True, None)
    with pytest.raises(TypeError, match=r"run_and_stream\(\) got an unexpected keyword argument 'stream'"):
        swarm.run_and_stream(Agent(), "Hi", stream=True)
