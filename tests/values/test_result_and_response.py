"""Result and Response: Swarm's values, with Swarm's defaults, and without Swarm's traps."""

from __future__ import annotations

import json
import math
from datetime import date
from typing import Any

import pytest
from pydantic import ValidationError

from aswarm import Agent, OpenCall, Response, Result, Usage

# --- Result -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Result, Response])
@pytest.mark.parametrize("key", [1, None, ("a", "b")])
def test_a_context_may_have_any_keys(kind: type[Any], key: Any) -> None:
    """As in Swarm, whose field is a plain `dict`: a run must not fail at its very end over a key."""
    assert kind(context_variables={key: "x"}).context_variables == {key: "x"}


@pytest.mark.parametrize("context", [None, 5, "text", [("a", 1)]])
def test_a_context_that_is_no_dict_is_refused(context: Any) -> None:
    """The error of pydantic names the field."""
    with pytest.raises(ValidationError, match="context_variables"):
        Result(context_variables=context)


def test_an_agent_that_is_none_is_refused() -> None:
    """A name is not an agent."""
    with pytest.raises(ValidationError, match="agent"):
        Result(agent="Sales")  # type: ignore[arg-type]


# --- Response ---------------------------------------------------------------------------------------------------------


def test_an_empty_response_is_swarms() -> None:
    """No messages, no agent, no context; and no usage, and the plainest stop."""
    response = Response()
    assert (response.messages, response.agent, response.context_variables) == ([], None, {})
    assert (response.usage, response.stop, response.text) == (Usage(), "answer", "")


@pytest.mark.parametrize("stop", ["answer", "max_turns", "tool_calls", "cancelled", "error"])
def test_why_a_run_stopped_is_one_of_five(stop: Any) -> None:
    """And nothing else."""
    assert Response(stop=stop).stop == stop
    with pytest.raises(ValidationError):
        Response(stop=stop.upper())


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "assistant", "content": "Hi"}], "Hi"),
        ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}], "b"),
        ([{"role": "assistant", "content": "a"}, {"role": "tool", "tool_call_id": "c", "content": "t"}], "a"),
        ([{"role": "assistant", "content": "a"}, {"role": "assistant", "content": None}], ""),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "ab"),
        ([{"role": "assistant"}], ""),
        ([{"role": "user", "content": "Hi"}], ""),
    ],
)
def test_text_is_that_of_the_last_assistant_message(messages: list[dict[str, Any]], text: str) -> None:
    """Short for looking it up; always a str."""
    assert Response(messages=messages).text == text


@pytest.mark.parametrize("given", [{"agent": None}, {}])
def test_a_response_made_by_hand_may_have_no_agent(given: dict[str, Any]) -> None:
    """Code that comes from Swarm makes one in `handle_tool_calls`: `Response(messages=[], agent=None, ...)`."""
    response = Response(messages=[], context_variables={}, **given)
    assert response.agent is None
    assert Response.model_validate(response.model_dump()) == response
    with pytest.raises(ValidationError, match="agent"):
        Response(agent="Sales")  # type: ignore[arg-type]


def test_a_response_as_json() -> None:
    """The agent is its name; values that JSON does not know are text. `model_dump()` keeps the objects."""

    def look() -> str:
        return "seen"

    agent, client = Agent(name="Sales", functions=[look]), object()
    usage = Usage(1, 2, 3, 1, {"cost": 0.5})
    context = {"client": client, "share": math.inf, "day": date(2026, 1, 2), 7: {"x"}}
    response = Response(
        messages=[{"role": "user", "content": "Hi"}], agent=agent, context_variables=context, usage=usage
    )
    stored = json.loads(response.model_dump_json())
    assert stored == json.loads(json.dumps(response.model_dump(mode="json"), allow_nan=False))
    assert stored == {
        "messages": [{"role": "user", "content": "Hi"}],
        "agent": "Sales",
        "context_variables": {"client": str(client), "share": "inf", "day": "2026-01-02", "7": ["x"]},
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 2,
            "total_tokens": 3,
            "requests": 1,
            "details": {"cost": 0.5},
        },
        "stop": "answer",
        "unknown_calls": [],
        "open_calls": [],
        "spent": None,
    }
    assert response.model_dump()["agent"]["functions"] == [look]
    assert response.model_dump()["context_variables"]["client"] is client
    assert json.loads(Response().model_dump_json())["agent"] is None


def test_the_schema_of_what_is_written() -> None:
    """Web frameworks show it as documentation. An agent is its name; a container that contains itself is text."""
    written = Response.model_json_schema(mode="serialization")["properties"]
    assert list(written) == [
        "messages",
        "agent",
        "context_variables",
        "usage",
        "stop",
        "unknown_calls",
        "open_calls",
        "spent",
    ]
    types = {name: [kind["type"] for kind in written[name]["anyOf"]] for name in list(written)[:3]}
    assert types == {
        "messages": ["array", "string"],
        "agent": ["string", "null"],
        "context_variables": ["object", "string"],
    }
    assert (written["unknown_calls"]["type"], written["stop"]["type"]) == ("array", "string")


def test_odd_containers_as_json() -> None:
    """One that contains itself, and one that is nested too deeply, are text."""
    circle: dict[str, Any] = {}
    circle["self"] = circle
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    stored = json.loads(Response(context_variables=circle).model_dump_json())
    assert stored["context_variables"] == "{'self': {'self': {...}}}"
    stored = json.loads(Response(context_variables={"deep": deep}).model_dump_json())
    assert stored["context_variables"] == "a dict that is nested too deeply"


def test_a_response_crosses_as_json_but_for_its_agent() -> None:
    """A web service stores messages, usage, stop."""
    usage = Usage(1, 2, 3, 1, {"cost": 0.5})
    response = Response(messages=[{"role": "assistant", "content": "Hi"}], usage=usage, stop="max_turns")
    stored = response.model_dump_json(exclude={"agent"})
    assert Response.model_validate_json(stored) == response


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("final_output", "response.text"),
        ("data", "response.output"),
        ("new_messages", "response.messages"),
        ("last_agent", "response.agent"),
    ],
)
def test_an_attribute_of_another_library_is_missing_with_the_name_of_ours(word: str, ours: str) -> None:
    """It is missing for `hasattr` and `getattr` too; any other name has pydantic's error."""
    response = Response(agent=Agent())
    with pytest.raises(AttributeError, match=f"Response has no attribute '{word}'; .*`{ours}`"):
        getattr(response, word)
    assert getattr(response, word, None) is None
    with pytest.raises(AttributeError, match="'Response' object has no attribute 'nothing'"):
        getattr(response, "nothing")  # noqa: B009 - type checkers know that it is missing


def test_the_data_of_a_response_names_its_open_calls_as_logs_do() -> None:
    """In events, logs and HTTP, the key of the open calls is `waiting`."""
    data = Response(open_calls=[OpenCall(0, "c", "pay", "{}", "Bank")], run_id="r").to_dict()
    assert ([call["id"] for call in data["waiting"]], data["run_id"], data["text"]) == (["c"], "r", "")
    assert "open_calls" not in data


def test_the_calls_that_wait_are_the_open_calls_with_a_reason() -> None:
    """A call that only comes after a waiting call is open, and waits for nobody."""
    calls = [OpenCall(0, "a", "pay", "{}", "Bank", reason="sure?"), OpenCall(1, "b", "note", "{}", "Bank")]
    assert [call.id for call in Response(open_calls=calls).waiting] == ["a"]
