"""What Swarm does, `aswarm` does: answers, tool calls, handoffs, context, streaming, and the examples of Swarm's README.

Facts from Swarm's README and its tests/test_core.py. Every run goes through a real `AsyncOpenAI` over a scripted model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Result, function_to_json
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history

pytestmark = pytest.mark.anyio


def swarm_of(*steps: Any, cut: int | None = None) -> tuple[AsyncSwarm, ScriptedModel]:
    model = ScriptedModel(steps, cut=cut)
    return AsyncSwarm(client=model.client()), model


async def test_simple_answer() -> None:
    """One answer is one request and one assistant message with all four keys."""
    swarm, model = swarm_of("Hello!")
    response = await swarm.run(Agent(), [{"role": "user", "content": "Hi"}])
    assert response.messages == [{"role": "assistant", "content": "Hello!", "sender": "Agent", "tool_calls": None}]
    assert (response.text, response.stop, response.agent, response.context_variables) == (
        "Hello!",
        "answer",
        Agent(),
        {},
    )
    assert model.requests[0].body == {
        "model": "gpt-6-luna",
        "messages": [{"role": "system", "content": "You are a helpful agent."}, {"role": "user", "content": "Hi"}],
        "stream": False,
    }


async def test_a_str_is_one_user_message() -> None:
    """`messages` may be a str, short for one user message."""
    swarm, model = swarm_of("Hello!")
    await swarm.run(Agent(), "Hi")
    assert model.requests[0].messages[-1] == {"role": "user", "content": "Hi"}


async def test_tool_call() -> None:
    """A called function gets the model's arguments, and its result goes back as a tool message of exactly four keys."""
    seen: list[str] = []

    def get_weather(location: str) -> str:
        seen.append(location)
        return "It's sunny today."

    swarm, model = swarm_of(call("get_weather", location="San Francisco", call_id="c1"), "Sunny.")
    response = await swarm.run(Agent(name="Weather", functions=[get_weather]), "Weather?")
    assert seen == ["San Francisco"]
    assert response.messages[1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "tool_name": "get_weather",
        "content": "It's sunny today.",
    }
    assert [message["role"] for message in response.messages] == ["assistant", "tool", "assistant"]
    assert model.requests[1].messages[-1] == {"role": "tool", "tool_call_id": "c1", "content": "It's sunny today."}


async def test_several_tool_calls() -> None:
    """The calls of one message run in order and each is answered, in order."""
    seen: list[int] = []

    def note(number: int) -> int:
        seen.append(number)
        return number * 10

    swarm, _ = swarm_of([call("note", number=1), call("note", number=2), call("note", number=3)], "Done")
    response = await swarm.run(Agent(functions=[note]), "Go")
    assert seen == [1, 2, 3]
    assert [message["content"] for message in response.messages[1:4]] == ["10", "20", "30"]
    check_history(response.messages)


async def test_handoff() -> None:
    """A function that returns an agent makes it active: it gets the same history under its own instructions."""
    second = Agent(name="Second", instructions="Only speak in haikus.")

    def transfer_to_second() -> Agent:
        return second

    swarm, model = swarm_of(call("transfer_to_second"), "Hope glimmers brightly")
    response = await swarm.run(Agent(name="First", functions=[transfer_to_second]), "Second, please.")
    assert response.agent is second
    assert response.messages[1]["content"] == '{"assistant": "Second"}'
    assert [message.get("sender") for message in response.messages] == ["First", None, "Second"]
    assert model.requests[1].messages[0] == {"role": "system", "content": "Only speak in haikus."}
    assert model.requests[1].messages[1] == {"role": "user", "content": "Second, please."}
    assert "tools" not in model.requests[1].body


async def test_a_message_may_call_and_speak() -> None:
    """Text beside tool calls is kept in the same assistant message."""
    swarm, _ = swarm_of(ScriptedAnswer("Let me see.", calls=[call("look")]), "Found.")
    response = await swarm.run(Agent(functions=[_named("look")]), "Look!")
    assert response.messages[0]["content"] == "Let me see."
    assert response.text == "Found."


def _named(name: str) -> Callable[[], str]:
    def function() -> str:
        return "nothing"

    function.__name__ = name
    return function


async def test_result_with_value_agent_and_context() -> None:
    """Swarm's README, `talk_to_sales`: value, agent and context variables in one `Result`."""
    sales_agent = Agent(name="Sales Agent")

    def talk_to_sales() -> Result:
        return Result(value="Done", agent=sales_agent, context_variables={"department": "sales"})

    swarm, _ = swarm_of(call("talk_to_sales"), "Hello, sales here.")
    given = {"user_name": "John"}
    response = await swarm.run(Agent(functions=[talk_to_sales]), "Transfer me to sales", context_variables=given)
    assert response.agent is not None and response.agent.name == "Sales Agent"
    assert response.context_variables == {"department": "sales", "user_name": "John"}
    assert response.messages[1]["content"] == "Done"
    assert given == {"user_name": "John"}


async def test_execute_tools_false() -> None:
    """With `execute_tools=False` the run returns with the calls open, and nothing is called."""
    called: list[str] = []

    def get_weather(location: str) -> str:
        called.append(location)
        return "sunny"

    swarm, model = swarm_of(call("get_weather", location="San Francisco"), "never sent")
    agent = Agent(functions=[get_weather])
    response = await swarm.run(agent, "Weather?", execute_tools=False)
    (open_call,) = response.messages[-1]["tool_calls"]
    assert json.loads(open_call["function"]["arguments"]) == {"location": "San Francisco"}
    assert (called, response.stop, len(model.requests)) == ([], "tool_calls", 1)

    history = [{"role": "user", "content": "Weather?"}, *response.messages]
    resumed = await swarm.run(agent, history, resume=True)
    assert called == ["San Francisco"]
    assert resumed.text == "never sent"
    check_history([*history, *resumed.messages])


async def test_model_override() -> None:
    """`model_override` is the model of every request of the run, whatever agent speaks."""
    second = Agent(name="Second", model="small")
    swarm, model = swarm_of(call("transfer_to_second"), "Hi")
    await swarm.run(Agent(model="large", functions=[second]), "Hi", model_override="huge")
    assert [request.body["model"] for request in model.requests] == ["huge", "huge"]


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


async def test_continuing_a_conversation() -> None:
    """Swarm's loop of a REPL: the messages of a response are appended, the user's next follows, the agent is kept."""
    second = Agent(name="Second")
    swarm, model = swarm_of(call("transfer_to_second"), "Second here.", "Still here.")
    messages: list[Any] = [{"role": "user", "content": "Second, please"}]
    response = await swarm.run(Agent(functions=[second]), messages)
    messages += [*response.messages, {"role": "user", "content": "Still there?"}]
    assert response.agent is not None
    response = await swarm.run(response.agent, messages, response.context_variables)
    assert response.text == "Still here."
    assert [message["role"] for message in model.requests[2].messages] == [
        *("system", "user", "assistant", "tool", "assistant", "user")
    ]
    check_history(model.requests[2].messages)
