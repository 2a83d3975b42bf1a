"""Calls inside code that wait for a decision: the code waits with them, and continues in another process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm import Agent, Approve, ConfigurationError, Deny, Hold, Reply, current_call, external_tool, tool
from aswarm.testing import check_history
from tests.support.code.coded import USER, agent_of, result_in, resumed, run_code, swarm_of, waiting_inside


class Desk:
    """Functions that note their calls; `refund` needs an approval, `ask` asks a question."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    async def look(self, number: int) -> int:
        """Look something up."""
        self.notes.append(f"look {number}")
        return number * 10

    async def pay(self, number: int) -> str:
        """Pay."""
        self.notes.append(f"pay {number}")
        return f"paid {number}"

    @tool(may_wait=True)
    async def ask(self, question: str) -> str:
        """Ask the user."""
        if not current_call().is_approved:
            self.notes.append(f"asks {question}")
            raise Hold(question)
        return f"answered {current_call().answer}"

    def functions(self) -> list[Any]:
        """The functions, as each process makes them."""
        nothing = {"type": "object", "properties": {}}
        locate = external_tool(name="locate", description="Where the user is.", parameters=nothing)
        return [self.look, tool(approve=True)(self.pay), self.ask, locate]

    def agent(self) -> Agent:
        """The agent, as each process makes it."""
        return agent_of(*self.functions())

    async def start(self, code: str) -> Any:
        """Run the code until it waits."""
        response = await run_code(code, *self.functions())
        assert response.stop == "waiting"
        check_history([USER, *response.messages], allow_open=True)
        return response


@pytest.fixture
def desk() -> Desk:
    return Desk()


PAIR = "await asyncio.gather(pay(1), look(2), pay(3))"


async def test_one_decision_after_the_other(desk: Desk) -> None:
    """An approved call runs at once; the code continues after the last decision of the gather."""
    agent, first = desk.agent(), await desk.start(PAIR)
    second = await resumed(agent, first, Reply({"outer.0": True}))
    assert (second.stop, desk.notes) == ("waiting", ["look 2", "pay 1"])
    assert [each["id"] for each in waiting_inside(second)] == ["outer.2"]
    third = await resumed(agent, second, Reply({"outer.2": True}), *first.messages)
    assert result_in(third) == '["paid 1", 20, "paid 3"]'
    assert desk.notes == ["look 2", "pay 1", "pay 3"]


async def test_code_waits_until_its_calls_are_decided_or_all_are_approved(desk: Desk) -> None:
    """True and an empty dict leave the code as it is; `Approve.all()` runs the calls that are still open, and only these."""
    agent, first = desk.agent(), await desk.start(PAIR)
    second = await resumed(agent, first, Reply({"outer.0": True}))
    stored = json.loads(json.dumps([USER, *first.messages, *second.messages]))
    for resume in (True, {}, {"outer": Reply({})}):
        response = await swarm_of("").run(agent, stored, resume=resume)
        assert (response.stop, response.open_calls, desk.notes) == ("waiting", second.open_calls, ["look 2", "pay 1"])
    response = await swarm_of("").run(agent, stored, resume=Approve.all())
    assert (result_in(response), desk.notes) == ('["paid 1", 20, "paid 3"]', ["look 2", "pay 1", "pay 3"])


async def test_a_denial_resumes_the_gather_at_once(desk: Desk) -> None:
    """An approved call that has not started is closed by its name; a finished call keeps its result."""
    response = await resumed(
        desk.agent(), await desk.start(PAIR), Reply({"outer.0": Deny("too much"), "outer.2": True})
    )
    assert "PermissionError: not run: denied by the user: too much" in result_in(response)
    assert result_in(response).endswith("[not run, because the code ended without them: pay (outer.2)]")
    assert desk.notes == ["look 2"]


async def test_code_that_needs_the_sibling_of_a_denied_call_runs_it(desk: Desk) -> None:
    """If each task handles its own denial, the gather still waits for the other call."""
    code = """
async def one(number):
    try:
        return await pay(number)
    except PermissionError:
        return f"denied {number}"

await asyncio.gather(*[one(number) for number in range(3)])
"""
    agent = desk.agent()
    first = await desk.start(code)
    second = await resumed(agent, first, Reply({"outer.1": False, "outer.0": True}))
    assert (second.stop, desk.notes) == ("waiting", ["pay 0"])
    third = await resumed(agent, second, Reply({"outer.2": False}), *first.messages)
    assert result_in(third) == '["paid 0", "denied 1", "denied 2"]'
    assert desk.notes == ["pay 0"]


async def test_code_that_waits_several_times(desk: Desk) -> None:
    """Each replay has the same results, random numbers and clock."""
    code = """
import random, time
numbers = []
for number in range(3):
    numbers.append(random.random())
    await look(int(numbers[-1] * 1000))
    await pay(number)
[len(set(numbers)), time.time()]
"""
    agent, response, history = desk.agent(), await desk.start(code), []
    for number in range(3):
        assert desk.notes.count(f"pay {number}") == 0
        history += response.messages
        response = await resumed(agent, response, True, *history[: -len(response.messages)])
        assert desk.notes.count(f"pay {number}") == 1
    assert len([note for note in desk.notes if note.startswith("look")]) == 3
    assert json.loads(result_in(response))[0] == 3


async def test_a_denial_of_the_outer_call_ends_the_code(desk: Desk) -> None:
    """Functions have run inside, so its outcome is unknown."""
    response = await resumed(desk.agent(), await desk.start(PAIR), False)
    assert result_in(response).startswith("stopped: denied by the user, after functions had run inside")
    assert [each.name for each in response.unknown_calls] == ["run_code"]


async def test_a_history_cannot_approve_a_call(desk: Desk) -> None:
    """A changed entry does not run the call: only `resume=` decides."""
    response = await desk.start(PAIR)
    entry = response.messages[0]["waiting"][0]
    for each in entry["data"]["messages"][0]["waiting"]:
        each.update(approval=False, reason="approved", answer=True)
    again = await resumed(desk.agent(), response, Reply({}))
    assert again.stop == "waiting"
    assert desk.notes == ["look 2"]


def other_arguments(data: Any) -> None:
    data["messages"][0]["tool_calls"][0]["function"]["arguments"] = '{"number": 2}'


def other_order(data: Any) -> None:
    data["code"]["delivered"] = [[3]]


def another_call(data: Any) -> None:
    extra = {"id": "outer.4", "type": "function", "function": {"name": "look", "arguments": '{"number": 9}'}}
    data["messages"][0]["tool_calls"].append(extra)
    answer = {"role": "tool", "tool_call_id": "outer.4", "tool_name": "look", "content": "90"}
    data["messages"].append(answer)


@pytest.mark.parametrize("change", [other_arguments, other_order, another_call])
async def test_other_code_than_its_record_ends_with_an_unknown_outcome(change: Any, desk: Desk) -> None:
    """No call runs if a name, arguments or the order of results differ; a missing call is found at the end of the code."""
    response = await desk.start(f"x = await look(1)\n{PAIR}")
    change(response.messages[0]["waiting"][0]["data"])
    last = await resumed(desk.agent(), response, True)
    assert result_in(last) == "stopped: the code has made other calls than its record has, so its outcome is unknown"
    assert [each.name for each in last.unknown_calls] == ["run_code"]
    assert change is another_call or desk.notes == ["look 1", "look 2"]


async def test_code_that_has_started_cannot_be_changed(desk: Desk) -> None:
    response = await desk.start(PAIR)
    with pytest.raises(ConfigurationError, match="its code has started, so it cannot be changed"):
        await resumed(desk.agent(), response, Approve({"code": "await pay(100)"}))
    with pytest.raises(ConfigurationError, match="no open call has this id"):
        await resumed(desk.agent(), response, Reply({"outer.9": True}))
    with pytest.raises(ConfigurationError, match="has no decisions; pass a dict of decisions"):
        await resumed(desk.agent(), response, Reply("yes"))
    assert desk.notes == ["look 2"]


@pytest.mark.parametrize(
    "change",
    [
        {"code": 5},
        {"code": {"surroundings": {}, "delivered": [], "failed": []}},
        {
            "code": {
                "surroundings": {"clock": "x", "timezone": "UTC", "seed": ""},
                "delivered": [["a"]],
                "failed": ["x"],
            }
        },
        {"messages": []},
        {"messages": [{"role": "user", "content": "x"}]},
    ],
)
async def test_changed_data_are_refused_before_anything_runs(change: dict[str, Any], desk: Desk) -> None:
    response = await desk.start(PAIR)
    response.messages[0]["waiting"][0]["data"] |= change
    with pytest.raises(ConfigurationError, match="outer"):
        await resumed(desk.agent(), response, True)
    assert desk.notes == ["look 2"]


async def test_a_decision_inside_code_that_would_be_lost_is_refused() -> None:
    """Two plain functions run one after the other, also in a round of code, so the decision on the second needs the first."""
    ran: list[int] = []

    @tool(approve=True)
    def refund(order: int) -> str:
        """Refund."""
        ran.append(order)
        return f"refunded {order}"

    agent = agent_of(refund)
    first = await run_code("await asyncio.gather(refund(1), refund(2))", refund)
    with pytest.raises(ConfigurationError, match=r"'outer\.1', but not on the earlier call 'outer\.0'"):
        await resumed(agent, first, Reply({"outer.1": True}))
    assert ran == []
    second = await resumed(agent, first, Reply({"outer.0": True}))
    assert ([each["id"] for each in waiting_inside(second)], ran) == (["outer.1"], [1])
