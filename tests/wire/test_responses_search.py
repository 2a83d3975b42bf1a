"""OpenAI's tool search, executed by the client: which requests have it, and how histories of other APIs get and leave this form.

The scripted model checks each body against the types of the official package.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response
from aswarm.middleware import keep_prefix
from aswarm.testing import ScriptedAnswer, ScriptedModel, Step, call, check_history
from aswarm.tools import tool_search
from tests.support.openai_rules import OpenAIRules
from tests.support.run.prefixes import breaks
from tests.support.tools.deferred import found, read_clock, search, tracker

Json = dict[str, Any]
ASKED = [{"role": "user", "content": "Please."}]
MODEL = "gpt-5.6"
THINKS = ScriptedAnswer(calls=[search(call_id="s" * 70)], extra={"reasoning_content": "Which function?"})
STEPS: list[Step] = [
    THINKS,
    [call("create_issue", title="x"), search("nothing like it")],
    [call("read_clock")],
    "Done.",
]


async def at_openai(
    steps: list[Step], agent: Agent, history: list[Json], *, stream: bool = False, **options: Any
) -> tuple[Response, OpenAIRules]:
    model = OpenAIRules(steps)
    swarm = AsyncSwarm(model.client(), **options)
    async with swarm.stream(agent, history, deltas=stream) as events:
        async for _ in events:
            pass
    assert not model.refused
    check_history([*history, *events.response.messages], ordered=False)
    return events.response, model


def kinds(body: Json) -> list[str]:
    return [item.get("type", "message") for item in body["input"]]


def names(body: Json) -> list[str]:
    return [tool.get("name", tool["type"]) for tool in body["tools"]]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_search_brings_the_definitions_at_its_place(stream: bool) -> None:
    """The tools of the requests never change, the reasoning is sent back, and the calls keep their namespace."""
    response, model = await at_openai(STEPS, tracker(model=MODEL), ASKED, stream=stream)
    first, last = model.bodies[0], model.bodies[-1]
    assert names(first) == ["read_clock", "tool_search"]
    assert first["tools"][1]["execution"] == "client"
    assert not breaks(model.bodies)
    assert kinds(last) == [
        "message",
        *("reasoning", "tool_search_call", "tool_search_output"),
        *("function_call", "tool_search_call", "function_call_output", "tool_search_output"),
        *("function_call", "function_call_output"),
    ]
    outputs = [item for item in last["input"] if item.get("type") == "tool_search_output"]
    assert [[tool["name"] for tool in item["tools"]] for item in outputs] == [["create_issue", "delete_issue"], []]
    assert all(tool["defer_loading"] and tool["strict"] is False for tool in outputs[0]["tools"])
    assert [item.get("namespace") for item in last["input"] if item.get("type") == "function_call"] == [
        "create_issue",
        None,
    ]
    assert [each["function"]["name"] for each in response.messages[0]["tool_calls"]] == ["search_tools"]
    assert json.loads(response.messages[0]["tool_calls"][0]["function"]["arguments"]) == {"query": "create an issue"}
    shown = model.requests[-1].messages
    assert [message["role"] for message in shown[1:]] == [
        "user",
        *("assistant", "tool"),
        *("assistant", "tool", "tool"),
        "assistant",
        "tool",
    ]
    assert [json.loads(line)["name"] for line in shown[3]["content"].split("\n")] == ["create_issue", "delete_issue"]


async def test_a_choice_of_other_tools_leaves_the_search() -> None:
    """Only a choice that names the search needs it as a function."""
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "read_clock"}]}
    agent = tracker(model=MODEL, model_settings={"tool_choice": allowed})
    _, model = await at_openai(["Done."], agent, ASKED)
    assert names(model.bodies[0]) == ["read_clock", "tool_search"]


async def test_a_history_moves_between_the_apis() -> None:
    """A search of another API becomes OpenAI's, with the namespaces of its functions, and a search at OpenAI becomes a call."""
    chat = ScriptedModel([search(), [found("create_issue", {"title": "x"}), call("create_issue", title="y")], "Done."])
    response = await AsyncSwarm(chat.client()).run(tracker(), ASKED)
    history = [*ASKED, *response.messages, *ASKED]
    again, model = await at_openai([*STEPS], tracker(model=MODEL), history)
    (body, *_) = model.bodies
    assert kinds(body)[1:6] == [
        "tool_search_call",
        "tool_search_output",
        "function_call",
        "function_call",
        "function_call_output",
    ]
    assert [item.get("namespace") for item in body["input"][3:5]] == [None, "create_issue"]
    assert names(body) == ["read_clock", "tool_search"]
    assert not breaks(model.bodies)
    back = ScriptedModel(["Done."])
    await AsyncSwarm(back.client()).run(tracker(), [*history, *again.messages, *ASKED])
    sent = [each["function"]["name"] for message in back.requests[0].messages for each in message.get("tool_calls", ())]
    assert sent == [
        "search_tools",
        "call_tool",
        "create_issue",
        "search_tools",
        "create_issue",
        "search_tools",
        "read_clock",
    ]
    other, old = await at_openai(["Done."], tracker(model="gpt-5.4-nano"), [*history, *again.messages, *ASKED])
    assert other.text == "Done."
    assert not {"tool_search_call", "tool_search_output"} & set(kinds(old.bodies[0]))


@pytest.mark.parametrize(
    ("agent", "options"),
    [
        (tracker(model="gpt-4.1"), {}),
        (tracker(model="gpt-5.4-nano-2026-03-17"), {}),
        (tracker(tool_search("call"), model=MODEL), {}),
        (tracker(model=MODEL, tool_choice={"type": "function", "function": {"name": "search_tools"}}), {}),
        (
            tracker(
                model=MODEL,
                model_settings={
                    "tool_choice": {
                        "type": "allowed_tools",
                        "mode": "auto",
                        "tools": [{"type": "function", "name": "search_tools"}],
                    }
                },
            ),
            {},
        ),
        (tracker(model=MODEL), {"middleware": "keep_prefix"}),
    ],
    ids=["old model", "nano", "call", "forced", "allowed", "keep_prefix"],
)
async def test_requests_without_tool_search_keep_the_functions(agent: Agent, options: Json) -> None:
    """Models that refuse it, a choice that names the function, and agents that share their prefix."""
    middleware = [keep_prefix(agent)] if options else []
    steps: list[Step] = [[search()], [found("create_issue", {"title": "x"})], "Done."]
    _, model = await at_openai(steps, agent, ASKED, middleware=middleware)
    assert names(model.bodies[0]) == ["read_clock", "search_tools", "call_tool"]
    assert kinds(model.bodies[0]) == kinds(model.bodies[-1])[: len(kinds(model.bodies[0]))]
    assert "tool_search_output" not in kinds(model.bodies[-1]) or "tool_choice" in model.bodies[0]


async def test_a_search_of_the_settings_needs_deferred_functions() -> None:
    """Nothing could answer it, so the error comes before the request."""
    agent = Agent(
        model=MODEL, functions=[read_clock], model_settings={"tools": [{"type": "tool_search", "execution": "client"}]}
    )
    with pytest.raises(ConfigurationError, match="mark the functions with @tool"):
        await AsyncSwarm(OpenAIRules([]).client()).run(agent, ASKED)
