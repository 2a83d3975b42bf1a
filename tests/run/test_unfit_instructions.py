"""A function of instructions with other parameters: an error of the program, which leaves a valid history."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, agent_tool
from aswarm.conversations import MemoryStore
from aswarm.testing import ScriptedModel, call, check_history


def of_context_and_agent(context: dict[str, Any], agent: Agent) -> str:
    raise AssertionError


async def test_a_stored_conversation_continues_after_a_handoff_to_unfit_instructions() -> None:
    """The handoff is recorded, and the next program, with other instructions, answers as the new agent."""
    refunds = Agent(name="Refunds", instructions=of_context_and_agent)
    triage = Agent(name="Triage", functions=[refunds])
    async with (
        AsyncSwarm(ScriptedModel([call("transfer_to_refunds"), "Which order?"])) as swarm,
        MemoryStore() as store,
    ):
        chat = store.conversation("ann/1", swarm, agent=triage)
        with pytest.raises(ConfigurationError, match="the instructions of 'Refunds' cannot be called"):
            await chat.run("Money back!")
        stored = await chat.load()
        check_history(stored.messages)
        assert (stored.agent, stored.stop) == ("Refunds", "error")
        refunds.instructions = "Refund orders."
        assert (await chat.resume()).text == "Which order?"


async def test_unfit_instructions_of_an_agent_as_a_tool_end_the_outer_run() -> None:
    """The outer model cannot mend a program, so it does not read the error."""
    reader = Agent(name="Reader", instructions=of_context_and_agent)
    model = ScriptedModel([call("reader", request="the reviews")])
    async with AsyncSwarm(model) as swarm:
        with pytest.raises(ConfigurationError, match="missing a required argument: 'agent'") as caught:
            await swarm.run(Agent(functions=[agent_tool(reader)]), "Hi")
    assert caught.value.response is not None
    assert [message["role"] for message in caught.value.response.messages] == ["assistant"]
    assert len(model.requests) == 1
