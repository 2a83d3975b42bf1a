"""Calls inside code that wait for a decision: the code waits with them, and continues in another process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aswarm import (
    Agent,
    Answer,
    Approve,
    AsyncSwarm,
    ConfigurationError,
    Deny,
    Hold,
    agent_tool,
    current_call,
    external_tool,
    tool,
)
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.code.coded import USER, agent_of, result_in, resumed, run_code, waiting_inside

pytestmark = pytest.mark.anyio


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


async def test_the_calls_that_need_no_decision_run_at_once(desk: Desk) -> None:
    """The waiting calls are in the data of the outer call, each with its question."""
    response = await desk.start(PAIR)
    assert desk.notes == ["look 2"]
    inside = waiting_inside(response)
    assert [(each["id"], each["name"], each["reason"]) for each in inside] == [
        ("outer.0", "pay", "needs approval"),
        ("outer.2", "pay", "needs approval"),
    ]
    assert response.waiting[0].reason == "pay needs approval; pay needs approval"
    assert inside[0]["arguments"] == '{"number": 1}'
    assert inside[0]["agent"] == "Coder"


async def test_an_approval_continues_the_code_where_it_waited(desk: Desk) -> None:
    """Calls that have finished do not run again."""
    response = await resumed(desk.agent(), await desk.start(f"x = await look(1)\ny = {PAIR}\n[x, y]"), True)
    assert result_in(response) == '[10, ["paid 1", 20, "paid 3"]]'
    assert (desk.notes[:2], sorted(desk.notes[2:])) == (["look 1", "look 2"], ["pay 1", "pay 3"])
    assert response.text == "Done."


async def test_a_result_that_reads_like_a_refusal_is_a_result_after_the_wait(desk: Desk) -> None:
    async def state(number: int) -> str:
        """Get the state."""
        return f"stopped at {number}"

    pay = tool(approve=True)(desk.pay)
    response = await run_code("[await state(1), await pay(2)]", state, pay)
    assert result_in(await resumed(agent_of(state, pay), response, True)) == '["stopped at 1", "paid 2"]'


async def test_one_decision_after_the_other(desk: Desk) -> None:
    """An approved call runs at once; the code continues after the last decision of the gather."""
    agent, first = desk.agent(), await desk.start(PAIR)
    second = await resumed(agent, first, Answer({"outer.0": True}))
    assert (second.stop, desk.notes) == ("waiting", ["look 2", "pay 1"])
    assert [each["id"] for each in waiting_inside(second)] == ["outer.2"]
    third = await resumed(agent, second, Answer({"outer.2": True}), *first.messages)
    assert result_in(third) == '["paid 1", 20, "paid 3"]'
    assert desk.notes == ["look 2", "pay 1", "pay 3"]


async def test_a_denial_resumes_the_gather_at_once(desk: Desk) -> None:
    """An approved call that has not started is closed by its name; a finished call keeps its result."""
    response = await resumed(
        desk.agent(), await desk.start(PAIR), Answer({"outer.0": Deny("too much"), "outer.2": True})
    )
    assert "PermissionError: not run: denied by the user: too much" in result_in(response)
    assert result_in(response).endswith("[not run, because the code ended without them: pay (outer.2)]")
    assert desk.notes == ["look 2"]


async def test_a_denial_resumes_the_gather_even_if_a_sibling_has_no_decision(desk: Desk) -> None:
    """The code handles the denial, and ends without the other call."""
    code = f"try:\n    {PAIR}\nexcept PermissionError as error:\n    text = str(error)\n[text, await look(9)]"
    response = await resumed(desk.agent(), await desk.start(code), Answer({"outer.2": False}))
    assert result_in(response).startswith('["not run: denied by the user", 90]\n[not run')
    assert desk.notes == ["look 2", "look 9"]


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
    second = await resumed(agent, first, Answer({"outer.1": False, "outer.0": True}))
    assert (second.stop, desk.notes) == ("waiting", ["pay 0"])
    third = await resumed(agent, second, Answer({"outer.2": False}), *first.messages)
    assert result_in(third) == '["paid 0", "denied 1", "denied 2"]'
    assert desk.notes == ["pay 0"]


async def test_questions_and_external_tools_wait_too(desk: Desk) -> None:
    """A function runs again with the answer; the result of an external tool is the decision."""
    code = 'await asyncio.gather(ask("why?"), locate())'
    response = await desk.start(code)
    assert [each["reason"] for each in waiting_inside(response)] == ["why?", "runs outside of this program"]
    decisions = Answer({"outer.0": Answer("because"), "outer.1": "Oslo"})
    assert result_in(await resumed(desk.agent(), response, decisions)) == '["answered because", "Oslo"]'


async def test_changed_arguments_reach_the_function(desk: Desk) -> None:
    response = await resumed(
        desk.agent(), await desk.start("await pay(1)"), Answer({"outer.0": Approve({"number": 7})})
    )
    assert result_in(response).endswith("paid 7")
    assert desk.notes == ["pay 7"]


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


async def test_an_agent_inside_code_waits_with_its_own_calls(desk: Desk) -> None:
    """The decision goes through the code and the run of the agent."""

    def script(request: Any) -> Any:
        is_inner = request.messages[0]["content"] == "inner"
        if any(each["role"] == "tool" for each in request.messages):
            return "paid by the agent" if is_inner else "Done."
        return (
            call("pay", call_id="p", number=5)
            if is_inner
            else call("run_code", call_id="outer", code='await payer(request="x")')
        )

    payer = agent_tool(Agent(name="Payer", instructions="inner", functions=[tool(approve=True)(desk.pay)]))
    agent = Agent(name="Coder", instructions="outer", functions=agent_of(payer).functions)
    swarm = AsyncSwarm(ScriptedModel(script).client())
    response = await swarm.run(agent, "Go")
    (inside,) = waiting_inside(response)
    assert inside["data"]["waiting"][0]["id"] == "p"
    stored = json.loads(json.dumps([USER, *response.messages]))
    last = await swarm.run(agent, stored, resume={"outer": Answer({"outer.0": Answer({"p": True})})})
    assert result_in(last) == "paid by the agent"
    assert desk.notes == ["pay 5"]


async def test_a_history_cannot_approve_a_call(desk: Desk) -> None:
    """A changed entry does not run the call: only `resume=` decides."""
    response = await desk.start(PAIR)
    entry = response.messages[0]["waiting"][0]
    for each in entry["data"]["messages"][0]["waiting"]:
        each.update(approval=False, reason="approved", answer=True)
    again = await resumed(desk.agent(), response, Answer({}))
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
        await resumed(desk.agent(), response, Answer({"outer.9": True}))
    with pytest.raises(ConfigurationError, match="has no decisions; pass a dict of decisions"):
        await resumed(desk.agent(), response, Answer("yes"))
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
