"""Runs with an agent as a tool that waits: the record has what another process needs, once, and readers get less."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, Answer, Approve, AsyncSwarm, agent_tool, tool
from aswarm._record.facts import Facts
from aswarm.conversations import MemoryStore
from aswarm.runs import AnswersRefused, LocalRuns, NewRun, Run, fold
from aswarm.testing import ScriptedModel, call
from tests.support.runs.kept_runs import entries_of, types_of

pytestmark = pytest.mark.anyio


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
    """At each depth. So is a decision on a call that is not open inside."""
    steps: list[Any] = [[call("below", call_id="b", request="x")]] * depth
    model = ScriptedModel([*steps, [call("refund", call_id="r", order=1)], "Refunded.", *["Done."] * depth])
    async with LocalRuns(AsyncSwarm(model.client()), agents=nested(depth)) as runs:
        asked = Run(runs, await runs.start(NewRun("ann", "c", [{"role": "user", "content": "Go"}])))
        await asked.last_entry()

        def decided(inside: Any) -> Any:
            for _ in range(depth):
                inside = {"b": Answer(inside)}
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
            assert refused.value.status_code == (422 if code == "invalid_request" else 409)
        assert len(await runs.list(user="ann")) == 1
        answered = await asked.answer(decided({"r": fitting}))
        assert (await answered.result()).text == "Done."


@pytest.mark.parametrize("depth", [1, 3])
async def test_a_log_that_is_cut_after_the_wait_gives_the_whole_history(depth: int) -> None:
    """The entry of the call that waits has the inner run as the history has it; it has no second copy in the log."""
    steps: list[Any] = [[call("below", call_id="b", request="x")]] * depth
    model = ScriptedModel([*steps, [call("refund", call_id="r", order=1)]])
    async with (
        MemoryStore() as store,
        AsyncSwarm(model.client()) as swarm,
        LocalRuns(swarm, store=store, agents=[nested(depth)]) as runs,
    ):
        new = NewRun("ann", "c", [{"role": "user", "content": "Go"}])
        entries = await entries_of(Run(runs, await runs.start(new)))
        stored = await store.load("ann/c")
    assert stored is not None
    at = types_of(entries).index("CallWaiting")
    assert fold(entries[: at + 1]).messages == stored.messages
    assert fold(entries).messages == stored.messages
    assert "MessagesRecorded" not in types_of(entries)
    shown = entries[at].to_dict()
    assert shown["data"] == stored.waiting[0].data
    assert not any(key.startswith("_") for key in shown)
    assert [*Facts(entries).waiting.values()] == [entries[at].fields]
