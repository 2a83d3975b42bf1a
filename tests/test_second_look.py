"""What a second pair of eyes found: small promises that are easily broken."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, RunError, ToolFailure, function_to_json
from aswarm.testing import Answer, ScriptedModel, call, check_history


class Place(TypedDict, total=False):
    """Of the standard library, which pydantic takes from Python 3.12 on."""

    city: str
    inside: list[Place]


def test_a_typed_dict_of_the_standard_library_is_a_schema() -> None:
    """`typing.TypedDict` is described on every Python, alone and inside other hints."""

    def go(where: Place, via: list[Place] | None = None) -> str: ...

    parameters = function_to_json(go)["function"]["parameters"]
    assert parameters["properties"]["where"] == {"$ref": "#/$defs/Place"}
    assert parameters["$defs"]["Place"]["properties"]["city"] == {"type": "string"}


@pytest.mark.asyncio
async def test_an_async_tool_error_hook_is_awaited() -> None:
    """`tool_error` may be a coroutine function."""

    async def hide(failure: ToolFailure) -> str:
        return f"{failure.name} failed"

    def bad() -> None:
        raise ValueError("secret")

    model = ScriptedModel([call("bad"), "ok"])
    response = await AsyncSwarm(client=model.client(), tool_error=hide).run(Agent(functions=[bad]), "Hi")
    assert response.messages[1]["content"] == "bad failed"


@pytest.mark.asyncio
async def test_a_call_whose_failure_ends_the_run_has_an_outcome() -> None:
    """The hook that raises ends the run; the call that failed did so for sure, and what it may hide stays hidden."""

    def stop(_: ToolFailure) -> str:
        raise LookupError("no more")

    async def bad() -> None:
        raise ValueError("secret")

    model = ScriptedModel([call("bad")])
    with pytest.raises(RunError, match="no more") as caught:
        await AsyncSwarm(client=model.client(), tool_error=stop).run(Agent(functions=[bad]), "Hi")
    assert caught.value.response is not None
    assert caught.value.response.messages[1]["content"] == "Error: the call failed."


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "x"}], "tool_call_id"),
        ([{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]}], "id"),
        (["x"], "not a message"),
    ],
)
def test_the_check_of_a_history_names_what_is_no_message(messages: list[Any], fault: str) -> None:
    """What is no message at all is an AssertionError like every other fault."""
    with pytest.raises(AssertionError, match=fault):
        check_history(messages)


def test_two_answers_to_one_call_are_one_fault() -> None:
    """A repeated answer has no call of its own; the order is not blamed as well."""
    answer = {"role": "tool", "tool_call_id": "1", "content": "x"}
    with pytest.raises(AssertionError) as caught:
        check_history([{"role": "assistant", "tool_calls": [CALL]}, answer, dict(answer)])
    assert str(caught.value).splitlines() == ["not a valid history:", "tool message '1' has no call before it"]


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "text": "hi"}, {"role": "system"}])
@pytest.mark.asyncio
async def test_a_message_without_content_is_refused(message: dict[str, str]) -> None:
    """A user or system message that says nothing is a mistake, told before any request."""
    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match=r"messages\[0\] has no content"):
        await AsyncSwarm(client=model.client()).run(Agent(), [message])
    assert model.requests == []


@pytest.mark.asyncio
async def test_arguments_that_came_as_an_object_are_run_and_replayed_as_text() -> None:
    """A history from a server that sends arguments as an object resumes like any other."""

    def f(x: int) -> str:
        return f"got {x}"

    asked = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [asked]}]
    model = ScriptedModel(["ok"])
    response = await AsyncSwarm(client=model.client()).run(Agent(functions=[f]), history, resume=True)
    assert response.messages[0]["content"] == "got 1"
    assert model.requests[0].messages[2]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'


@pytest.mark.asyncio
async def test_a_call_that_never_ran_stays_open_when_its_failure_ends_the_run() -> None:
    """The hook ends the run over a function that does not exist; nothing was run, so nothing is recorded for it."""

    def stop(_: ToolFailure) -> str:
        raise LookupError("no more")

    model = ScriptedModel([call("nowhere")])
    with pytest.raises(RunError) as caught:
        await AsyncSwarm(client=model.client(), tool_error=stop).run(Agent(), "Hi")
    assert caught.value.response is not None
    assert [message["role"] for message in caught.value.response.messages] == ["assistant"]


@pytest.mark.asyncio
async def test_a_scripted_break_breaks_a_whole_answer_too() -> None:
    """`Answer(break_after=...)` is a lost connection for a plain run as well."""
    model = ScriptedModel([Answer("Hello", break_after=1)])
    with pytest.raises(CompletionError) as caught:
        await AsyncSwarm(client=model.client()).run(Agent(), "Hi")
    assert caught.value.retryable
