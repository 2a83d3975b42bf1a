"""Runs with an agent as a tool whose call waits for a decision."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, Approve, AsyncSwarm, Reply, agent_tool, tool
from aswarm.runs import AnswersRefused, LocalRuns, NewRun
from aswarm.testing import ScriptedModel, call


@tool(approve=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def nested(depth: int) -> Agent:
    """An agent with agents as tools inside each other."""
    agent = Agent(name="Level 0", functions=[refund])
    for level in range(depth):
        agent = Agent(name=f"Level {level + 1}", functions=[agent_tool(agent, name="below")])
    return agent


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("fitting", [Approve(expected={"order": 1}), {"approve": True}, False, "refunded by hand"])
async def test_a_decision_inside_about_other_arguments_is_refused_before_anything_starts(
    depth: int, fitting: Any
) -> None:
    """A decision on a call that is not open inside, and a value that is no decision, are refused too."""
    steps: list[Any] = [[call("below", call_id="b", request="x")]] * depth
    model = ScriptedModel([*steps, [call("refund", call_id="r", order=1)], "Refunded.", *["Done."] * depth])
    async with LocalRuns(AsyncSwarm(model.client()), agents=nested(depth)) as runs:
        asked = await runs.start(NewRun("ann", "c", "Go"))
        await asked.last_entry()

        def decided(inside: Any) -> Any:
            for _ in range(depth):
                inside = {"b": Reply(inside)}
            return inside

        for wrong, text, code in (
            (
                {"r": Approve(expected={"order": 2})},
                "made for the arguments .*2.*, but the call has .*1",
                "arguments_changed",
            ),
            ({"s": True}, "no call with the id or index 's' waits", "call_not_open"),
            ({"r": {"approv": True}}, "a decision is True, False", "invalid_request"),
            ({"r": True, 0: True}, "decides twice", "invalid_request"),
            ({"r": Approve("x")}, "arguments must be an object", "invalid_request"),  # type: ignore[arg-type]
            ("yes", "the calls inside the call must be an object", "invalid_request"),
        ):
            with pytest.raises(AnswersRefused, match=text) as refused:
                await asked.answer(decided(wrong))
            assert refused.value.code == code
        assert len(await runs.list(user="ann")) == 1
        answered = await asked.answer(decided({"r": fitting}))
        assert (await answered.result()).text == "Done."
