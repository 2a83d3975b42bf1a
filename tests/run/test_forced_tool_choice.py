"""A forced tool choice holds until the first tool result, and each call keeps the tool it was made for."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.testing import ScriptedModel, call, check_history

USER = {"role": "user", "content": "Hi"}
HM = {"role": "assistant", "content": "Hm."}
TOLD = {"role": "tool", "tool_call_id": "c", "content": "seen"}
FORCES = ["required", "any", {"type": "function", "function": {"name": "look"}}]


async def look() -> str:
    """Look."""
    return "seen"


async def other() -> str:
    """Another."""
    return "other"


def asked(*ids: str, **more: Any) -> dict[str, Any]:
    """Return an assistant message with calls of `look`."""
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids or "c"]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def forced(name: str = "A", **settings: Any) -> Agent:
    """Return an agent that must call a function."""
    return Agent(name=name, functions=[look], **(settings or {"tool_choice": "required"}))


async def choices(agent: Agent, history: Any, *steps: Any, **options: Any) -> list[Any]:
    """Return the tool_choice of each request of a run."""
    model = ScriptedModel([*steps, "Done."])
    response = await AsyncSwarm(model.client()).run(agent, history, **options)
    assert response.text == "Done."
    check_history(model.requests[-1].messages)
    return [request.body.get("tool_choice") for request in model.requests]


@pytest.mark.parametrize("choice", FORCES)
@pytest.mark.parametrize("in_settings", [False, True])
async def test_a_forced_choice_relaxes_after_the_first_tool_result(choice: Any, in_settings: bool) -> None:
    """A choice that forces a call holds until the agent has a tool result since the last user message, then it is "auto"."""
    settings = {"model_settings": {"tool_choice": choice}} if in_settings else {"tool_choice": choice}
    assert await choices(forced(**settings), [USER], call("look")) == [choice, "auto"]


@pytest.mark.parametrize(
    "choice", ["auto", "none", None, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}]
)
async def test_other_choices_hold(choice: Any) -> None:
    """A choice that forces nothing stays: a relaxed `allowed_tools` would offer tools that the user has withheld."""
    assert await choices(forced(tool_choice=choice), [USER], call("look")) == [choice, choice]


async def test_a_forced_choice_among_some_tools_relaxes_to_those() -> None:
    """OpenAI's `allowed_tools` in the mode "required" relaxes to the mode "auto" with the same tools."""
    tools = [{"type": "function", "function": {"name": "look"}}]
    required, auto = (
        {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}} for mode in ("required", "auto")
    )
    agent = Agent(functions=[look, other], tool_choice=required)
    assert await choices(agent, [USER], call("look")) == [required, auto]


async def test_a_forced_choice_is_the_agents_own() -> None:
    """The tool result of another agent relaxes nothing; an earlier result of the agent itself does, after a handoff back."""
    a, b = forced("A"), forced("B")
    a.functions.append(b)
    b.functions.append(a)
    steps = [call("transfer_to_b"), call("transfer_to_a")]
    assert await choices(a, [USER], *steps) == ["required", "required", "auto"]


async def test_equal_agents_are_two_agents() -> None:
    """The result of an agent relaxes nothing for an equal agent."""

    def leave() -> Agent:
        return second

    first, second = (Agent(functions=[leave], tool_choice="required") for _ in range(2))
    assert first == second
    assert await choices(first, [USER], call("leave")) == ["required", "required"]


ANSWERED = [USER, asked(), TOLD]
OF_B = [USER, asked(sender="B"), TOLD]


@pytest.mark.parametrize(
    ("history", "agent", "choice"),
    [
        ([*ANSWERED, USER], "A", "required"),
        ([*ANSWERED, USER, HM], "A", "required"),
        ([*ANSWERED, HM, {"role": "system", "content": "Hurry."}], "A", "auto"),
        ([*ANSWERED, HM, {"role": "system", "content": "Hurry."}, USER], "A", "required"),
        (OF_B, "A", "required"),
        (OF_B, "B", "auto"),
        ([USER, asked(), HM], "A", "required"),
        ([USER, asked(), {**TOLD, "tool_call_id": "another"}, HM], "A", "required"),
        ([USER, TOLD], "A", "required"),
        ([TOLD], "A", "required"),
        ([], "A", "required"),
    ],
)
async def test_only_a_result_of_the_agent_since_the_last_user_message_relaxes(
    history: list[Any], agent: str, choice: str
) -> None:
    """Only a user message forces again; the sender of the message with the call is the agent of its result."""
    assert await choices(forced(agent), history) == [choice]


@pytest.mark.parametrize("answered", [[], [TOLD]], ids=["none", "one"])
async def test_a_resumed_call_relaxes(answered: list[Any]) -> None:
    """A result of a resumed call is a result of this run, also beside an answer that the history has."""
    assert await choices(forced(), [USER, asked("c", "d"), *answered], resume=True) == ["auto"]


async def test_functions_may_change_during_a_run() -> None:
    """Functions that are added to an agent while it runs are offered in the next request; a call keeps its function."""

    def change() -> str:
        agent.functions[:] = [other, change]
        return "changed"

    agent = Agent(functions=[change, look])
    model = ScriptedModel([[call("change"), call("look")], call("look"), "Done."])
    response = await AsyncSwarm(model.client()).run(agent, "Go")
    assert [request.tool_names for request in model.requests[:2]] == [["change", "look"], ["other", "change"]]
    told = [each["content"] for each in response.messages if each["role"] == "tool"]
    assert told == ["changed", "seen", "Error: Tool look not found. Tools: other, change."]
