"""The calls of one gather wait, hand off and run like the same calls in one message, together or in order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from aswarm import (
    Agent,
    AsyncSwarm,
    Budget,
    ConfigurationError,
    Hold,
    Reply,
    Resource,
    Response,
    Result,
    ToolCallFinished,
    ToolError,
    agent_tool,
    current_call,
    external_tool,
    tool,
)
from aswarm.code import code_tool
from aswarm.events import ToolProgress
from aswarm.testing import Request, ScriptedModel, call
from tests.support.code.coded import USER, agent_of, result_in, run_code, swarm_of
from tests.support.sampling import every

KINDS = ("plain", "look", "pay", "fails", "hand", "mark", "write", "read", "ask", "locate", "asker", "transfer_to_b")


class Room:
    """A function of each kind. Each notes its calls."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def plain(self) -> int:
        self.notes.append("plain")
        return 1

    async def look(self) -> int:
        self.notes.append("look")
        return 2

    async def pay(self) -> str:
        self.notes.append("pay")
        return "paid"

    async def fails(self) -> int:
        self.notes.append("fails")
        raise ToolError("no")

    async def hand(self) -> Agent:
        self.notes.append("hand")
        return Agent(name="C")

    async def mark(self) -> Result:
        self.notes.append("mark")
        return Result(value="m", context_variables={"mark": 1})

    async def write(self, context_variables: dict[str, Any]) -> int:
        self.notes.append("write")
        context_variables["n"] = context_variables.get("n", 0) + 1
        return int(context_variables["n"])

    async def read(self, context_variables: Mapping[str, Any]) -> list[str]:
        self.notes.append("read")
        return sorted(context_variables)

    @tool(may_wait=True)
    async def ask(self) -> str:
        if not current_call().is_approved:
            raise Hold("why?")
        self.notes.append("ask")
        return str(current_call().answer)

    async def charge(self) -> str:
        self.notes.append("charge")
        return "charged"

    @property
    def functions(self) -> list[Any]:
        """The functions, as each process makes them."""
        pay = tool(approve=True)(self.pay)
        nothing = {"type": "object", "properties": {}}
        return [
            self.plain, self.look, pay, self.fails, self.hand, self.mark, self.write, self.read, self.ask,
            external_tool(name="locate", description="Where the user is.", parameters=nothing),
            agent_tool(Agent(name="Asker", instructions="asker", functions=[self.charge, pay])),
            Agent(name="B"),
        ]  # fmt: skip


def script_of(kinds: tuple[str, ...], *, in_code: bool) -> Any:
    """A model that makes these calls, in one message or in one gather."""
    arguments = {"asker": {"request": "x"}}

    def answer(request: Request) -> Any:
        results = [each for each in request.messages if each["role"] == "tool"]
        if request.messages[0]["content"] == "asker":
            return [call("charge", call_id="c"), call("pay", call_id="p"), "asked"][min(2, len(results))]
        if results:
            return "Done."
        if not in_code:
            return [call(kind, call_id=f"o.{n}", **arguments.get(kind, {})) for n, kind in enumerate(kinds)]
        made = ", ".join(f"{kind}({'request=' + repr('x') if kind in arguments else ''})" for kind in kinds)
        return call("run_code", call_id="o", code=f"await asyncio.gather({made})")

    return answer


def decision_on(name: str) -> Any:
    """Return the decision of the user on a call of this kind."""
    return {"locate": "Oslo", "ask": Reply("because"), "asker": Reply({"p": True})}.get(name, True)


async def outcome(kinds: tuple[str, ...], *, in_code: bool, together: bool) -> tuple[list[Any], dict[str, str]]:
    """Run to the end, with all decisions. Return the steps, and the results by call id."""
    room, history, results = Room(), [USER], dict[str, str]()
    agent: Agent | None = Agent(name="A", functions=[code_tool(*room.functions)] if in_code else room.functions)
    swarm = AsyncSwarm(ScriptedModel(script_of(kinds, in_code=in_code)).client(), concurrent_tools=together)
    steps, resume, context = list[Any](), None, dict[str, Any]()
    while agent is not None:
        async with swarm.stream(agent, history, context, resume=False if resume is None else resume) as run:
            events = [event async for event in run]
        inner = [event.value if isinstance(event, ToolProgress) else event for event in events]
        finished = [each for each in inner if isinstance(each, ToolCallFinished) and each.id.startswith("o.")]
        results |= {each.id: each.content for each in finished if "ended without it" not in each.content}
        steps.append(step_of(run.response, room))
        waiting = steps[-1]["waiting"]
        decisions = {each_id: decision_on(name) for each_id, name, reason in waiting if reason}
        resume = {"o": Reply(decisions)} if in_code else decisions
        history = json.loads(json.dumps([*history, *run.response.messages]))
        context = run.response.context_variables
        agent = run.response.agent if waiting else None
    return steps, results


def step_of(response: Response, room: Room) -> dict[str, Any]:
    """Return the facts of one run."""
    waiting = [(each.id, each.name, each.reason) for each in response.open_calls]
    if response.open_calls and response.open_calls[0].name == "run_code":
        waiting = [(each["id"], each["name"], each["reason"]) for each in response.open_calls[0].data["waiting"]]
    return {
        "stop": response.stop,
        "agent": response.agent.name,
        "ran": sorted(room.notes),
        "waiting": waiting,
        "context": dict(response.context_variables),
        "unknown": [each.name for each in response.unknown_calls],
    }


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("first", "second"), every(4, KINDS, KINDS))
async def test_a_gather_does_the_same_as_one_message(first: str, second: str) -> None:
    """Each step is the same; together or in order, the end is the same."""
    ends = list[Any]()
    for together in (True, False):
        steps, results = await outcome((first, second), in_code=True, together=together)
        assert (steps, results) == await outcome((first, second), in_code=False, together=together)
        ends.append((steps[0]["stop"], steps[-1], results))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "kinds", [("transfer_to_b", "pay"), ("pay", "transfer_to_b"), ("look", "transfer_to_b", "pay")]
)
@pytest.mark.parametrize("together", [True, False])
async def test_an_approval_waits_beside_a_handoff(kinds: tuple[str, ...], together: bool) -> None:
    """The handoff happens after the decision, and the approved call has run."""
    steps, _ = await outcome(kinds, in_code=True, together=together)
    assert [each["stop"] for each in steps] == ["waiting", "answer"]
    assert [each["agent"] for each in steps] == ["A", "B"]
    assert "pay" in steps[1]["ran"]


async def test_a_decision_that_is_not_reached_keeps_its_question() -> None:
    """The second run waits for an earlier call; the third asks for the approval as before."""
    steps, _ = await outcome(("asker", "asker", "pay"), in_code=True, together=False)
    assert [each["waiting"] for each in steps[:2]] == [
        [("o.0", "asker", "Asker: pay needs approval"), ("o.1", "asker", None), ("o.2", "pay", "needs approval")],
        [("o.1", "asker", "Asker: pay needs approval"), ("o.2", "pay", "needs approval")],
    ]
    assert steps[-1]["ran"] == ["charge", "charge", "pay", "pay", "pay"]


async def test_a_budget_refuses_repeated_calls_inside_code() -> None:
    """Equal calls with equal results count in each round; other arguments and results still run."""
    notes: list[int] = []

    async def look(number: int) -> int:
        notes.append(number)
        return 1 if number < 9 else len(notes)

    code = """
out = []
for number in (1, 1, 1, 1):
    try:
        out.append(await look(number))
    except RuntimeError as error:
        out.append(str(error)[:34])
out
"""
    response = await swarm_of(code).run(agent_of(look), "Go", budget=Budget(repeats=2))
    refused = "not run: this call was made 2 time"
    assert json.loads(result_in(response)) == [1, 1, refused, refused]
    assert notes == [1, 1]
    response = await swarm_of("[await look(9) for _ in range(5)]").run(agent_of(look), "Go", budget=Budget(repeats=2))
    assert json.loads(result_in(response)) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("code", "stop"), [("await transfer_to_{}()", "budget"), ("await look()\nawait transfer_to_{}()", "max_turns")]
)
async def test_handoffs_inside_code_that_do_nothing_in_between_are_stopped(code: str, stop: str) -> None:
    """A call before the handoff, in the same code, counts as work."""

    async def look() -> int:
        return 1

    first, second = Agent(name="A", instructions="b"), Agent(name="B", instructions="a")
    first.functions = [code_tool(second, look)]
    second.functions = [code_tool(first, look)]
    model = ScriptedModel(lambda asked: call("run_code", code=code.format(asked.messages[0]["content"])))
    response = await AsyncSwarm(model.client()).run(first, "Go", budget=Budget(handoffs=1), max_turns=8)
    assert response.stop == stop
    texts = [each["content"] for each in response.messages if each["role"] == "tool"]
    assert any("nothing done in between" in text for text in texts) == (stop == "budget")


class Database:
    """A resource."""


class Cart:
    """Another resource."""


class Order(BaseModel):
    """A typed context."""

    number: int


async def save(db: Resource[Database]) -> None:
    """Save."""


async def test_functions_of_code_are_checked_before_the_first_request() -> None:
    """Missing or wrong resources and a wrong context are errors, also of `approve`."""

    async def show(context_variables: Order) -> None:
        """Show."""

    def needs(arguments: dict[str, Any], context: Any, cart: Resource[Cart]) -> bool:
        return False

    async def pay() -> None:
        """Pay."""

    model = ScriptedModel([])
    swarm = AsyncSwarm(model.client())
    for function, options, text in (
        (save, {}, "save in run_code.*db"),
        (save, {"resources": {"db": Cart()}}, "save in run_code.*Database"),
        (show, {"context_variables": {"number": "many"}}, "show in run_code"),
        (tool(approve=needs)(pay), {}, "approve of pay in run_code.*cart"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            await swarm.run(agent_of(function), "Go", **options)
    assert model.requests == []


async def test_code_gets_the_resources_of_the_run() -> None:
    """A function inside code gets its resource."""
    swarm = {"resources": {"db": Database()}}
    assert result_in(await run_code("await save()", save, swarm=swarm)).startswith("(the code printed nothing")
