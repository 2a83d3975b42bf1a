"""`MiddlewareWithTools`: a middleware gives functions to the agents of each run."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, ConfigurationError, tool
from aswarm.middleware import Handlers, MiddlewareWithTools, keep_prefix
from aswarm.testing import ScriptedModel, call


class Answer(BaseModel):
    """A typed answer."""

    text: str


def same(handlers: Handlers) -> Handlers:
    """Change no handler."""
    return handlers


def note() -> str:
    """Note."""
    return "noted"


def look() -> str:
    """Look."""
    return "seen"


NOTES = MiddlewareWithTools(same, [note])


def offered(model: ScriptedModel) -> list[list[str]]:
    """The names of the tools of each request."""
    return [request.tool_names for request in model.requests]


async def test_the_functions_stand_behind_those_of_the_agent_and_stay_for_an_agent_without_functions() -> None:
    """A handoff leaves a result in the history, so the next agent has the functions too; a plain chat never has them."""
    writer = Agent(name="Writer")
    triage = Agent(name="Triage", functions=[look, writer])
    model = ScriptedModel([call("note"), call("transfer_to_writer"), call("note"), "Done.", "Hello!"])
    swarm = AsyncSwarm(model.client(), middleware=[NOTES])
    response = await swarm.run(triage, "Write.")
    assert [m["content"] for m in response.messages if m["role"] == "tool"] == [
        "noted",
        '{"assistant": "Writer"}',
        "noted",
    ]
    await swarm.run(writer, "Hi")
    first = ["look", "transfer_to_writer", "note"]
    assert offered(model) == [first, first, ["note"], ["note"], []]


async def test_a_kept_prefix_has_the_functions_for_every_agent() -> None:
    """`keep_prefix` sends the same tools before and after a handoff."""
    writer = Agent(name="Writer")
    triage = Agent(name="Triage", functions=[look, writer])
    model = ScriptedModel([call("transfer_to_writer"), "Done."])
    await AsyncSwarm(model.client(), middleware=[NOTES, keep_prefix(triage)]).run(triage, "Write.")
    assert offered(model) == [["look", "transfer_to_writer", "note"]] * 2


async def test_a_typed_answer_after_a_handoff_agrees_with_the_functions() -> None:
    """The agent has a function of the middleware, so its answer is a call, in the request and in its correction."""
    writer = Agent(name="Writer", output=Answer)
    triage = Agent(name="Triage", functions=[writer])
    model = ScriptedModel([call("transfer_to_writer"), "wrong", call("final_answer", text="right")])
    response = await AsyncSwarm(model.client(), middleware=[NOTES]).run(triage, "Write.")
    assert response.output == Answer(text="right")
    assert offered(model)[1:] == [["note", "final_answer"], ["final_answer"]]  # the last try is forced


async def test_a_call_of_such_a_function_waits_and_is_resumed_elsewhere() -> None:
    """Approvals, decisions and open calls of the history find the function, as for a function of the agent."""
    asks = MiddlewareWithTools(same, [tool(approve=True)(note)])
    agent = Agent(functions=[look])
    question = {"role": "user", "content": "Note it."}
    first = await AsyncSwarm(ScriptedModel([call("note", call_id="n")]).client(), middleware=[asks]).run(
        agent, [question]
    )
    assert [each.reason for each in first.waiting] == ["needs approval"]
    second = AsyncSwarm(ScriptedModel(["Done."]).client(), middleware=[asks])
    response = await second.run(agent, [question, *first.messages], resume={"n": True})
    assert response.messages[0]["content"] == "noted"


async def test_equal_names_are_refused() -> None:
    """A name means one function: of two middlewares at once, of an agent when it runs."""

    def other() -> str:
        """Another."""
        return "other"

    with pytest.raises(ConfigurationError, match="two different functions named 'note'"):
        AsyncSwarm(
            ScriptedModel([]).client(), middleware=[NOTES, MiddlewareWithTools(same, [tool(name="note")(other)])]
        )
    with pytest.raises(ConfigurationError, match="function"):
        MiddlewareWithTools(same, ["note"])
    swarm = AsyncSwarm(ScriptedModel(["Never."]).client(), middleware=[NOTES, NOTES])  # the same functions count once
    with pytest.raises(ConfigurationError, match="two different functions named 'note'"):
        await swarm.run(Agent(functions=[tool(name="note")(other)]), "Hi")
