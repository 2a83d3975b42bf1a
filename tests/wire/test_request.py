"""The request: the parts of an agent, its settings and the run that reach the API."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from aswarm import Agent
from aswarm._wire.request import RequestSettings, build_request, is_forced, relaxed
from aswarm.util import function_to_json


def look_up(key: str) -> str:
    """Look it up."""
    return key


TOOL = function_to_json(look_up)
USER = {"role": "user", "content": "Hi"}


def body_of(
    agent: Agent | None = None,
    tools: tuple[dict[str, Any], ...] = (),
    *,
    instructions: Any = "Be kind.",
    tool_choice: Any = None,
    stream: bool = False,
    model: str | None = None,
    include_usage: bool = True,
) -> dict[str, Any]:
    """The body of a request."""
    how = RequestSettings(stream, model, include_usage)
    return build_request(agent or Agent(), instructions, [USER], tools, tool_choice, how).body


def test_no_instructions_make_no_system_message() -> None:
    """Instructions of None leave the system message out; empty ones do not."""
    assert body_of(instructions=None)["messages"] == [USER]
    assert body_of(instructions="")["messages"] == [{"role": "system", "content": ""}, USER]


def test_tools_come_with_parallel_tool_calls() -> None:
    """With tools, parallel_tool_calls is sent as the agent has it, and tool_choice only where there is one."""
    body = body_of(Agent(parallel_tool_calls=False), (TOOL,))
    assert body["tools"] == [TOOL]
    assert body["parallel_tool_calls"] is False
    assert "tool_choice" not in body
    assert body_of(Agent(), (TOOL,), tool_choice="required")["tool_choice"] == "required"


def test_model_override_wins() -> None:
    """The run's model goes before the agent's and before the settings'."""
    agent = Agent(model="a", model_settings={"model": "b"})
    assert body_of(Agent(model="a"))["model"] == "a"
    assert body_of(agent)["model"] == "b"
    assert body_of(agent, model="c")["model"] == "c"


def test_model_settings_pass_through() -> None:
    """Settings that the API or the SDK knows reach the request unchanged, except values that the run decides."""
    settings = {"temperature": 0, "extra_headers": {"x": "1"}, "messages": [], "stream": True}
    body = body_of(Agent(model_settings=settings))
    assert (body["temperature"], body["extra_headers"]) == (0, {"x": "1"})
    assert body["messages"][-1] == USER
    assert body["stream"] is False


def test_tools_of_the_settings_are_added() -> None:
    """A provider's own tools, given in the settings, stand behind the functions."""
    web = {"type": "web_search"}
    assert body_of(Agent(model_settings={"tools": [web]}), (TOOL,))["tools"] == [TOOL, web]
    assert body_of(Agent(model_settings={"tools": [web]}))["tools"] == [web]


@pytest.mark.parametrize("key", ["temperature", "parallel_tool_calls", "tool_choice", "tools"])
def test_a_setting_of_none_is_not_sent(key: str) -> None:
    """Null fields are stripped: a setting of None leaves the field out (o-series models refuse parallel_tool_calls)."""
    assert key not in body_of(Agent(model_settings={key: None}), () if key == "tools" else (TOOL,))


def test_stream_options_of_the_settings() -> None:
    """The settings' stream_options hold for streams, and are left out otherwise: OpenAI refuses them there."""
    agent = Agent(model_settings={"stream_options": {"include_usage": False}})
    assert body_of(agent, stream=True)["stream_options"] == {"include_usage": False}
    assert "stream_options" not in body_of(agent, stream=False)


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        "any",
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "name": "f"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
        {"type": "allowed_tools", "mode": "required", "tools": []},
        {"type": "web_search"},
    ],
    ids=str,
)
def test_a_choice_that_forces(choice: object) -> None:
    """ "required", a server's own word for it and a named function make the model call something, in the form of each API."""
    assert is_forced(choice)


@pytest.mark.parametrize(
    "choice",
    [
        None,
        "auto",
        "none",
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
    ],
    ids=str,
)
def test_a_choice_that_does_not_force(choice: object) -> None:
    """Nothing, "auto", "none" and OpenAI's allowed_tools in the mode "auto" leave the model free."""
    assert not is_forced(choice)


@pytest.mark.parametrize(
    "place", [lambda fields: {"allowed_tools": fields}, lambda fields: fields], ids=["chat", "responses"]
)
def test_a_relaxed_choice_allows_the_same_tools(place: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Only its mode changes, in the form in which it was given, and the given one stays."""
    tools = [{"type": "function", "name": "f"}]
    forced, free = ({"type": "allowed_tools", **place({"mode": mode, "tools": tools})} for mode in ("required", "auto"))
    before = copy.deepcopy(forced)
    assert relaxed(forced) == free
    assert relaxed(free) is free
    assert forced == before
