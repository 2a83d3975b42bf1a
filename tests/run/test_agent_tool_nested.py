"""Agents as tools inside each other, of which the innermost waits: what is stored, and what people see of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm import Agent, Answer, AsyncSwarm, CallWaiting, ConfigurationError, agent_tool, tool, waiting
from aswarm.testing import ScriptedModel, call, check_history

pytestmark = pytest.mark.anyio
USER = {"role": "user", "content": "Go"}


class Nest:
    """Agents as tools in `depth` levels. In the innermost run, `refund` needs approvals."""

    def __init__(self, depth: int, refunds: int = 1) -> None:
        self.ran: list[int] = []
        self.history: list[Any] = [USER]
        self.depth = depth
        self.steps: list[Any] = [[call("below", call_id="b", request="x")]] * depth
        self.steps.append([call("refund", call_id=f"r{n}", order=n) for n in range(refunds)])

        @tool(approve=True)
        async def refund(order: int) -> str:
            self.ran.append(order)
            return f"refunded {order}"

        self.agent = Agent(name="Level 0", functions=[refund])
        for level in range(depth):
            self.agent = Agent(name=f"Level {level + 1}", functions=[agent_tool(self.agent, name="below")])

    async def run(self, resume: Any = False) -> Any:
        """Run or continue, and keep the history as a storage gives it back."""
        steps = ["Done."] * (self.depth + 1) if resume else self.steps
        response = await AsyncSwarm(ScriptedModel(steps).client()).run(self.agent, self.history, resume=resume)
        self.history = json.loads(json.dumps([*self.history, *response.messages]))
        return response

    @property
    def size(self) -> int:
        """The characters of the stored history."""
        return len(json.dumps(self.history))


def inside(data: Any, depth: int) -> Any:
    """The data of the innermost call that waits because of a run inside it."""
    for _ in range(depth - 1):
        data = data["waiting"][0]["data"]
    return data


async def test_each_level_adds_as_much_as_the_one_before() -> None:
    """What a level stores does not depend on the levels inside it. Thirty levels run, and are decided."""
    sizes: dict[int, int] = {}
    for depth in (1, 5, 10, 30):
        nest = Nest(depth)
        response = await nest.run()
        assert response.stop == "waiting"
        sizes[depth] = nest.size
        assert sizes[depth] < 2000 * (depth + 1), sizes
        assert len(response.model_dump_json()) < 2 * 2000 * (depth + 1)
        check_history(nest.history, allow_open=True)
    done = await nest.run(resume={"b": True})
    assert (done.text, nest.ran) == ("Done.", [0])
    check_history(nest.history)


async def test_decisions_reach_the_innermost_call() -> None:
    """An answer in an answer, for each level; the call is denied."""
    nest = Nest(12)
    await nest.run()
    decision: Any = {"r0": False}
    for _ in range(12):
        decision = {"b": Answer(decision)}
    assert ((await nest.run(resume=decision)).text, nest.ran) == ("Done.", [])


async def test_a_user_sees_the_calls_at_each_level() -> None:
    """The response, the event and the stored history show the same: agents and open calls, nothing else of the runs inside."""
    nest = Nest(3)
    async with AsyncSwarm(ScriptedModel(nest.steps).client()).stream(nest.agent, "Go") as run:
        events = [event async for event in run]
    nest.history = json.loads(json.dumps([USER, *run.response.messages]))
    (shown,) = run.response.waiting
    assert shown.data == waiting(nest.history)[0].data
    assert [event.data for event in events if isinstance(event, CallWaiting)] == [shown.data]
    data = inside(shown.data, 3)
    assert data == {
        "agent": "Level 0",
        "started_inside": False,
        "waiting": [
            {
                "index": 0,
                "id": "r0",
                "name": "refund",
                "arguments": '{"order": 0}',
                "agent": "Level 0",
                "reason": "needs approval",
                "data": None,
                "answer": None,
            }
        ],
    }
    assert "messages" not in json.dumps(shown.data)
    assert "messages" not in json.dumps([event.to_dict() for event in events[:-1]])


async def test_what_is_shown_is_what_runs() -> None:
    """A history that was changed in its storage shows the changed call, because there is no second copy."""
    nest = Nest(2)
    await nest.run()
    text = json.dumps(nest.history)
    assert text.count(json.dumps('{"order": 0}')) == 1
    nest.history = json.loads(text.replace(json.dumps('{"order": 0}'), json.dumps('{"order": 7}')))
    shown = inside(waiting(nest.history)[0].data, 2)["waiting"][0]
    assert shown["arguments"] == '{"order": 7}'
    await nest.run(resume={"b": True})
    assert nest.ran == [7]


@pytest.mark.parametrize("messages", [7, [{"role": "x"}], [{"role": "tool"}], [{"role": "assistant", "tool_calls": 3}]])
async def test_stored_messages_that_are_none(messages: Any) -> None:
    """The call can be shown, stays open without a decision, and cannot be approved."""
    nest = Nest(1)
    await nest.run()
    mark = nest.history[-1]["waiting"][0]
    mark["data"] = {"agent": "Level 0", "messages": messages, "context_variables": {}, "removed": []}
    (shown,) = waiting(nest.history)
    assert shown.data["waiting"] == []
    left = await AsyncSwarm(ScriptedModel([]).client()).run(nest.agent, nest.history, resume={})
    assert (left.stop, left.waiting) == ("waiting", [shown])
    with pytest.raises(ConfigurationError, match="messages"):
        await nest.run(resume={"b": True})
    assert nest.ran == []


async def test_too_many_levels_are_refused_in_words() -> None:
    """What no JSON encoder takes is not stored as something else."""
    with pytest.raises(ConfigurationError, match="nested too deeply to be stored; use fewer levels"):
        await Nest(60).run()


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_calls_inside_that_are_decided_one_by_one(depth: int) -> None:
    """Each decision stores the inner runs once, without what decided calls have waited for; a user sees the open calls alone."""
    nest = Nest(depth, refunds=8)
    response = await nest.run()
    for order in range(8):
        shown = inside(response.waiting[0].data, depth)
        assert [each["id"] for each in shown["waiting"]] == [f"r{n}" for n in range(order, 8)]
        before, decision = nest.size, Answer({f"r{order}": True})
        for _ in range(depth - 1):
            decision = Answer({"b": decision})
        response = await nest.run(resume={"b": decision})
        assert nest.size - before < 3000 + 1000 * depth
    assert (response.text, nest.ran) == ("Done.", [*range(8)])
    check_history(nest.history)
