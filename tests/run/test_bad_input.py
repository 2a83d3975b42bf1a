"""Bad input is a `ConfigurationError` that names the remedy, before any request, from every way to run."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm, ConfigurationError, Swarm, tool
from aswarm.conversations import MemoryStore
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.run.ways_to_run import FACES, consume


async def refused(agent: Any, messages: Any = "Go", **options: Any) -> str:
    """Return the text of the error, which is the same for every way to run, without a request."""
    texts: set[str] = set()
    for face in (*FACES, "run_and_stream"):
        model = ScriptedModel([])
        with pytest.raises(ConfigurationError) as caught:
            await consume(AsyncSwarm(client=model.client()), agent, face, [], messages=messages, **options)
        assert model.requests == [], face
        texts.add(str(caught.value))
    (text,) = texts
    return text


@pytest.mark.parametrize("answered", [0, 1])
async def test_only_some_calls_open(answered: int) -> None:
    """If the caller has answered some calls itself, only the other calls run."""
    ran: list[int] = []

    def f(number: int) -> str:
        ran.append(number)
        return "ok"

    calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": f'{{"number": {n}}}'}} for n in range(2)]
    history = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", **made} for made in calls]},
        {"role": "tool", "tool_call_id": f"c{answered}", "content": "refused by the caller"},
    ]
    text = await refused(Agent(functions=[f]), history)
    assert f"c{1 - answered}" in text and f"c{answered}" not in text
    model = ScriptedModel(["Done"])
    await AsyncSwarm(client=model.client()).run(Agent(functions=[f]), history, resume=True)
    assert ran == [1 - answered]
    check_history(model.requests[0].messages)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (None, ["messages", "NoneType"]),
        (["Hi"], ["messages[0]", "'Hi'"]),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], ["messages[0].tool_calls[0]", "id"]),
    ],
    ids=repr,
)
async def test_messages_that_are_not_messages(messages: object, says: list[str]) -> None:
    """The error names the message and the fault; `tests/values/test_messages.py` has all faults."""
    text = await refused(Agent(), messages)
    assert all(word in text for word in says), text


def double() -> str:
    return "one"


class Other:
    """Has a function of the same name."""

    def double(self) -> str:
        return "two"


def positional(number: int, /) -> str:
    return str(number)


def variable(*numbers: int) -> str:
    return str(numbers)


def headline() -> str:
    return "no"


headline.__name__ = "head line"


@pytest.mark.parametrize(
    ("functions", "says"),
    [
        ([double, Other().double], ["double", "name"]),
        ([Agent(name="B"), Agent(name="b")], ["transfer_to_b"]),
        ([positional], ["positional", "number"]),
        ([variable], ["variable", "numbers"]),
        ([headline], ["head line"]),
        ([lambda: "x"], ["<lambda>"]),
        (["double"], ["double", "callable"]),
        ([None], ["None", "callable"]),
        ([tool(strict=True)(Agent)], ["strict"]),
    ],
)
async def test_functions_that_cannot_be_offered(functions: list[Any], says: list[str]) -> None:
    """The error names the function, and the parameter if the parameter is wrong."""
    text = await refused(Agent(functions=functions))
    assert all(word in text for word in says), text


async def test_a_function_twice_counts_once() -> None:
    """The same function twice, or the same bound method looked up twice, is one tool and no error."""
    other, model = Other(), ScriptedModel(["Hi"] * 2)
    swarm = AsyncSwarm(client=model.client())
    await swarm.run(Agent(functions=[double, double]), "Go")
    await swarm.run(Agent(functions=[other.double, other.double]), "Go")
    assert [request.tool_names for request in model.requests] == [["double"], ["double"]]


@pytest.mark.parametrize("max_turns", [-1, 0.5, 3.0, math.nan, -math.inf, True, "3"])
async def test_max_turns_that_counts_nothing(max_turns: Any) -> None:
    text = await refused(Agent(), max_turns=max_turns)
    assert "max_turns must be a whole number" in text and "for no limit" in text


@pytest.mark.parametrize("agent", [None, "Agent", Agent, {"name": "A"}])
async def test_a_value_that_is_no_agent(agent: object) -> None:
    """The error names the type of the value."""
    text = await refused(agent)
    assert "Agent" in text and type(agent).__name__ in text


@pytest.mark.parametrize("context", [[], "x", 7, [("a", 1)]])
async def test_context_variables_that_are_no_dict(context: Any) -> None:
    text = await refused(Agent(), context_variables=context)
    assert "context_variables" in text and type(context).__name__ in text


async def test_no_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A swarm without a client and without OPENAI_API_KEY can be made, and the error of its run names both."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    for face in FACES:
        with pytest.raises(ConfigurationError) as caught:
            await consume(AsyncSwarm(), Agent(), face, [])
        assert "OPENAI_API_KEY" in str(caught.value) and "client=" in str(caught.value)


@pytest.mark.parametrize("client", ["client", 7, object(), AsyncOpenAI], ids=lambda value: type(value).__name__)
def test_a_client_that_is_no_client(client: object) -> None:
    with pytest.raises(ConfigurationError, match=type(client).__name__):
        AsyncSwarm(client=client)


async def test_a_bad_function_of_the_next_agent() -> None:
    """The handoff fails: nothing is sent for that agent, and the error has the history so far."""
    bad = Agent(name="Bad", functions=[variable])
    for face in FACES:
        model = ScriptedModel([call("transfer_to_bad"), "never"])
        with pytest.raises(ConfigurationError, match="variable") as caught:
            await consume(AsyncSwarm(client=model.client()), Agent(name="First", functions=[bad]), face, [])
        assert len(model.requests) == 1
        assert caught.value.response is not None and caught.value.response.agent.name == "First"
        check_history(caught.value.response.messages)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"timeout": math.nan}])
def test_a_timeout_that_is_none(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        tool(**options)  # type: ignore[call-overload]


def test_no_threads() -> None:
    with pytest.raises(ConfigurationError, match="max_threads"):
        AsyncSwarm(max_threads=0)


@pytest.mark.parametrize("word", ["runid", "around"])
async def test_an_unknown_keyword_is_refused_by_the_name_of_the_method(word: str) -> None:
    """Each method raises TypeError in Python's words, before any request; a field of the options is no keyword."""
    model = ScriptedModel([])
    swarm = AsyncSwarm(client=model.client())
    chat = MemoryStore().conversation("a", swarm, agent=Agent())
    blocking = Swarm(model.client())
    given: dict[str, Any] = {word: None}
    for kind in (swarm, blocking):
        for name in ("run", "run_and_stream", "stream"):
            with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument '{word}'$"):
                getattr(kind, name)(Agent(), "Hi", **given)
    with pytest.raises(TypeError, match=rf"^batch\(\) got an unexpected keyword argument '{word}'$"):
        swarm.batch(Agent(), [], **given)
    for name in ("run", "resume"):
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument '{word}'$"):
            await getattr(chat, name)("Hi", **given)
    for name in ("stream", "resume_stream"):
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument '{word}'$"):
            getattr(chat, name)("Hi", **given)
    assert model.requests == []


async def test_a_conversation_takes_decisions_only_by_its_method_resume() -> None:
    chat = MemoryStore().conversation("a", AsyncSwarm(client=ScriptedModel([]).client()), agent=Agent())
    given: dict[str, Any] = {"resume": True}
    with pytest.raises(TypeError, match=r"^run\(\) got an unexpected keyword argument 'resume'$"):
        await chat.run("Hi", **given)


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("context", "context_variables=..."),
        ("deps", "context_variables=..."),
        ("message_history", "messages=[...]"),
        ("max_steps", "max_turns=..."),
        ("model", "model_override=..."),
        ("output_type", "output=..."),
        ("session", "aswarm.conversations"),
        ("tools", "Agent(functions=[...])"),
        ("usage_limits", "budget=Budget(...)"),
    ],
)
async def test_a_keyword_of_another_library_is_refused_with_ours(word: str, remedy: str) -> None:
    """The TypeError of each method that starts a run names the keyword of aswarm."""
    swarm = AsyncSwarm(client=ScriptedModel([]).client())
    chat = MemoryStore().conversation("a", swarm, agent=Agent())
    given: dict[str, Any] = {word: None}
    for start in (swarm.run, swarm.stream, Swarm(ScriptedModel([]).client()).run):
        with pytest.raises(TypeError, match=f"keyword argument '{word}'; .*{re.escape(remedy)}"):
            start(Agent(), "Hi", **given)
    with pytest.raises(TypeError, match=f"keyword argument '{word}'; .*{re.escape(remedy)}"):
        await chat.run("Hi", **given)
