"""A stored run with an undeclared Hold fails, and keeps the results of its other calls and its open call."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Hold, Reply, current_call, tool
from aswarm.conversations import Conversation, MemoryStore
from aswarm.runs import LocalRuns, NewRun, fold
from aswarm.testing import ScriptedModel, call, check_history

CALLS = [call("ask", call_id="a"), call("look", call_id="l")]


async def look() -> str:
    """Look, later than the other call asks."""
    await anyio.sleep(0.01)
    return "looked"


async def ask() -> str:
    """Ask the user."""
    if current_call().answer is None:
        raise Hold("Which?")
    return f"asked {current_call().answer}"


def agent(*, declared: bool) -> Agent:
    return Agent(name="A", functions=[tool(may_wait=True)(ask) if declared else ask, look])


def results(messages: list[Any]) -> list[Any]:
    return [each["content"] for each in messages if each["role"] == "tool"]


async def test_a_served_run_records_the_error_and_the_other_calls() -> None:
    """Its log has the end of the other call, takes back the start of the call that asked, and folds to the same response."""
    model = ScriptedModel([CALLS, "Done."])
    async with LocalRuns(AsyncSwarm(model.client()), agents=[agent(declared=False)]) as runs:
        run = await runs.start(NewRun("ann", "c", "Go"))
        entries = [entry async for entry in run.entries()]
        assert entries[-1].type == "RunFailed"
        assert [entry.fields["name"] for entry in entries if entry.type == "ToolCallFinished"] == ["look"]
        response = entries[-1].response
        assert results(fold(entries).response_messages) == results(response["messages"]) == ["looked"]
        assert ([each["id"] for each in response["waiting"]], response["unknown_calls"]) == (["a"], [])


async def test_a_conversation_continues_with_the_declared_function() -> None:
    """Its store has the result of the other call, and the open call."""
    store = MemoryStore()
    swarm = AsyncSwarm(ScriptedModel([CALLS, "Done."]).client())
    with pytest.raises(ConfigurationError, match="the function 'ask' of the agent 'A' raised Hold"):
        await Conversation(store, "c", swarm, agent=agent(declared=False)).run("Go")
    kept = await store.load("c")
    assert kept is not None
    check_history(kept.messages, allow_open=True)
    assert (results(kept.messages), kept.unknown_calls) == (["looked"], [])
    conversation = Conversation(store, "c", swarm, agent=agent(declared=True))
    asked = await conversation.resume()
    assert [(each.id, each.reason) for each in asked.open_calls] == [("a", "Which?")]
    answered = await conversation.resume({"a": Reply("this")})
    assert (answered.text, results(answered.messages)) == ("Done.", ["asked this"])
