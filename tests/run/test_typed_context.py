"""Context variables with a type, and resources: the values that functions get, the merged changes, and mistakes."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, model_validator

from aswarm import Agent, AsyncSwarm, ConfigurationError, Resource, Response, Result, Swarm, agent_tool, tool
from aswarm.guards import Block, CheckedCall, guard_tool, judge
from aswarm.testing import ScriptedModel, call, check_history
from aswarm.tools import Progress
from tests.support.run.typed_desk import Database, Order, Seen, Shop, ShopModel, balance, collect, spend
from tests.support.run.ways_to_run import FACES, answers, cancel_when, consume

ADA = {"customer": "Ada", "points": 7}


def swarm_of(*steps: Any, **options: Any) -> tuple[AsyncSwarm, ScriptedModel]:
    model = ScriptedModel(steps)
    return AsyncSwarm(model.client(), **options), model


async def run(*steps: Any, functions: list[Any], context: Any = None, **options: Any) -> Response:
    swarm, _ = swarm_of(*steps, "Done.")
    return await swarm.run(Agent(functions=functions), "Go", ADA if context is None else context, **options)


# --- functions ---


async def test_a_wrong_change_fails_the_call_and_no_later_one() -> None:
    async def spoil(context_variables: Shop) -> str:
        context_variables.cart.append("ink")
        context_variables.points = "secret"  # type: ignore[assignment]
        return "spoiled"

    response = await run([call("spoil"), call("balance")], functions=[spoil, balance])
    assert answers(response)["balance"] == "Ada has 7"
    assert "Error: TypeError: the function changed context variables" in answers(response)["spoil"]
    assert "secret" not in answers(response)["spoil"]
    assert response.context_variables == ADA


async def test_an_exception_hides_a_wrong_change() -> None:
    async def spoil(context_variables: Shop) -> str:
        context_variables.points = "many"  # type: ignore[assignment]
        raise KeyError("first")

    response = await run(call("spoil"), functions=[spoil])
    assert answers(response)["spoil"] == "Error: KeyError: 'first'"
    assert response.context_variables == ADA


async def test_a_context_that_another_function_spoiled_fails_the_call_only() -> None:
    """The function does not run, and the error has no value of the context."""

    async def spoil(context_variables: dict[str, Any]) -> str:
        context_variables["points"] = "secret"
        return "spoiled"

    ran: list[str] = []

    async def look(context_variables: Shop) -> str:
        ran.append("look")
        return ""

    response = await run(call("spoil"), call("look"), functions=[spoil, look])
    text = "the context variables do not fit Shop: points: Input should be a valid integer, unable to parse string as an integer"
    assert answers(response)["look"] == f"Error: ConfigurationError: {text}"
    assert (ran, response.stop, response.unknown_calls) == ([], "answer", [])


async def test_a_write_after_the_return_changes_nothing() -> None:
    kept: list[Shop] = []

    async def keep(context_variables: Shop) -> str:
        kept.append(context_variables)
        return "kept"

    async def later(context_variables: Seen) -> str:
        kept[0].points = 99
        kept[0].cart.append("late")
        return str(context_variables.points)

    response = await run(call("keep"), call("later"), functions=[keep, later])
    assert response.context_variables == ADA


async def test_a_generator_function_is_merged_at_its_end() -> None:
    async def slow(context_variables: Shop) -> AsyncGenerator[Any, None]:
        context_variables.points = 1
        yield Progress("half")
        context_variables.cart.append("ink")
        yield "done"

    response = await run(call("slow"), functions=[slow])
    assert response.context_variables == {"customer": "Ada", "points": 1, "cart": ["ink"]}


async def test_an_abandoned_thread_changes_nothing() -> None:
    ended = threading.Event()

    def slow(context_variables: Shop) -> str:
        context_variables.points = 1
        time.sleep(0.1)
        context_variables.cart.append("late")
        ended.set()
        return ""

    response = await run(call("slow"), functions=[tool(timeout=0.01)(slow)])
    assert response.context_variables == ADA
    await anyio.to_thread.run_sync(ended.wait, 5)
    assert response.context_variables == ADA
    assert len(response.unknown_calls) == 1


@pytest.mark.parametrize("face", FACES)
async def test_a_cancelled_call_keeps_its_changes(face: str) -> None:
    """A cancelled call has an unknown outcome, and its changes so far are merged, as with a dict."""
    started = anyio.Event()

    async def slow(context_variables: Shop) -> str:
        context_variables.points = 1
        started.set()
        await anyio.sleep_forever()
        return ""

    swarm, _ = swarm_of(call("slow"))
    response = await cancel_when(started.is_set, swarm, Agent(functions=[slow]), face, context_variables=ADA)
    assert response.context_variables == {**ADA, "points": 1}


class Refusing(BaseModel):
    points: int = 0

    @model_validator(mode="after")
    def _refuse(self) -> Refusing:
        if self.points == 13:
            raise RuntimeError("unlucky")
        return self


async def test_a_validator_that_raises_replaces_no_cancellation() -> None:
    started = anyio.Event()

    async def slow(context_variables: Refusing) -> str:
        context_variables.points = 13
        started.set()
        await anyio.sleep_forever()
        return ""

    async def unlucky(context_variables: Refusing) -> str:
        context_variables.points = 13
        return ""

    await cancel_when(started.is_set, swarm_of(call("slow"))[0], Agent(functions=[slow]), "run")
    response = await run(call("unlucky"), functions=[unlucky])
    assert answers(response)["unlucky"] == "Error: RuntimeError: unlucky"
    assert response.context_variables == ADA


# --- instructions, approvals, guards ---


async def test_instructions_get_a_view_and_resources() -> None:
    def greet(shop: Shop, db: Resource[Database]) -> str:
        shop.points = 0
        return f"You talk to {shop.customer}. {db.rows[0]}"

    async def greet_slowly(db: Resource[Database], *, context_variables: Seen) -> str:
        return f"You talk to {context_variables.customer}. {db.rows[0]}"

    for instructions in (greet, greet_slowly):
        swarm, model = swarm_of("Hi.", resources={"db": Database("Be kind.")})
        response = await swarm.run(Agent(instructions=instructions), "Hi", ADA)
        assert model.requests[0].messages[0]["content"] == "You talk to Ada. Be kind."
        assert response.context_variables == ADA


async def test_an_approval_decides_by_a_view() -> None:
    def is_large(arguments: dict[str, Any], shop: Seen, db: Resource[Database]) -> str | bool:
        return f"only {shop.points}" if arguments["number"] > shop.points else False

    agent = Agent(functions=[tool(approve=is_large)(collect)])
    swarm, _ = swarm_of(
        [call("collect", number=1, call_id="a"), call("collect", number=9, call_id="b")], "Done.",
        resources={"db": Database()},
    )  # fmt: skip
    asked = await swarm.run(agent, "Go", ADA)
    assert [(each.id, each.reason) for each in asked.open_calls] == [("b", "only 8")]
    assert asked.context_variables["points"] == 8
    history = [{"role": "user", "content": "Go"}, *asked.messages]
    response = await swarm.run(agent, history, asked.context_variables, resume={"b": True})
    assert response.context_variables["points"] == 17


async def test_a_guard_gets_a_view_and_resources() -> None:
    seen: list[Any] = []

    async def limit(checked: CheckedCall, context_variables: Seen, db: Resource[Database]) -> Block | None:
        seen.append((context_variables, checked.run.context_as(ShopModel).points, db.rows))
        return Block("too few points") if context_variables.points < 10 else None

    swarm, _ = swarm_of(
        call("collect", number=1), "Done.", middleware=[guard_tool(limit)], resources={"db": Database("x")}
    )
    response = await swarm.run(Agent(functions=[collect]), "Go", ADA)
    assert seen == [(Seen("Ada", 7), 7, ["x"])]
    assert answers(response)["collect"] == "not run: too few points"


# --- resources ---


async def test_the_resources_of_a_run_have_priority() -> None:
    async def look(db: Resource[Database], other: Resource[Database]) -> str:
        return f"{db.rows} {other.rows}"

    swarm, _ = swarm_of(call("look"), "Done.", resources={"db": Database("a"), "other": Database("b")})
    response = await swarm.run(Agent(functions=[look]), "Go", resources={"db": Database("c")})
    assert answers(response)["look"] == "['c'] ['b']"
    assert response.context_variables == {}


async def test_a_default_is_used_without_a_resource() -> None:
    async def look(db: Resource[Database | None] = None) -> str:
        return str(db)

    assert answers(await run(call("look"), functions=[look]))["look"] == "None"


async def test_runs_inside_a_run_have_its_resources() -> None:
    """The runs of an agent tool and of a judge have the resources of their outer run."""

    def instructions(db: Resource[Database]) -> str:
        return db.rows[0]

    inner = Agent(name="Inner", functions=[spend])
    swarm, model = swarm_of(
        call("inner", request="Spend."), '{"reason": "", "block": false}', call("spend"), '{"reason": "", "block": false}',
        "Spent.", "Done.",
        middleware=[guard_tool(judge(Agent(name="Judge", instructions=instructions)))],
    )  # fmt: skip
    made = agent_tool(inner, context="share")
    response = await swarm.run(Agent(functions=[made]), "Go", ADA, resources={"db": Database("ink")})
    assert response.context_variables == {"customer": "Ada", "points": 6, "cart": ["ink"]}
    assert [each.messages[0]["content"] for each in model.requests].count("ink") == 2


async def test_a_resource_must_be_passed_again_to_resume() -> None:
    """No history has a resource, so a resumed run without it is an error, and nothing runs."""

    @tool(approve=True)
    async def pay(db: Resource[Database]) -> str:
        return f"paid by {db.rows[0]}"

    agent, (swarm, _) = Agent(functions=[pay]), swarm_of(call("pay", call_id="a"), "Done.")
    asked = await swarm.run(agent, "Go", resources={"db": Database("Ada")})
    history = [{"role": "user", "content": "Go"}, *asked.messages]
    with pytest.raises(ConfigurationError, match="the resource 'db' is missing"):
        await swarm.run(agent, history, resume={"a": True})
    response = await swarm.run(agent, history, resume={"a": True}, resources={"db": Database("Eve")})
    assert answers(response)["pay"] == "paid by Eve"


@pytest.mark.parametrize("value", [Database(), [("db", 1)], {1: 2}, "db"])
async def test_resources_that_are_no_dict_of_names(value: Any) -> None:
    swarm, model = swarm_of()
    with pytest.raises(ConfigurationError, match="resources must be a dict by the names of parameters"):
        await swarm.run(Agent(), "Go", resources=value)
    with pytest.raises(ConfigurationError, match="resources must be a dict"):
        AsyncSwarm(resources=value)
    assert not model.requests


# --- mistakes ---


@pytest.mark.parametrize("face", FACES)
async def test_a_mistake_fails_before_any_call(face: str) -> None:
    """The error names the agent, the functions and the fields."""

    def instructions(context_variables: Shop) -> str:
        raise AssertionError

    swarm, model = swarm_of("never")
    agent = Agent(name="Desk", functions=[spend, collect, balance], instructions=instructions)
    with pytest.raises(ConfigurationError) as caught:
        await consume(swarm, agent, face, [], context_variables={"points": 3})
    assert str(caught.value) == (
        "agent 'Desk' cannot run: spend, its instructions: the context variables do not fit Shop: customer: Field required; "
        "spend: the resource 'db' is missing; pass resources={'db': ...} to the run or to the swarm; "
        "collect: the context variables do not fit ShopModel: customer: Field required; "
        "balance: the context variables do not fit Seen: customer: Field required"
    )
    assert not model.requests


async def test_a_handoff_validates_before_it_switches() -> None:
    """A handoff to an agent that cannot run is an error: the source stays active, and the history is valid."""

    async def refund(context_variables: Order) -> str:
        raise AssertionError

    refunds = Agent(name="Refunds", functions=[refund])
    triage = Agent(name="Triage", functions=[refunds])
    swarm, model = swarm_of(call("transfer_to_refunds"), "never")
    with pytest.raises(ConfigurationError) as caught:
        await swarm.run(triage, "Go", {"order": "seven"})
    reason = (
        "the handoff to 'Refunds' failed: agent 'Refunds' cannot run: refund: the context variables do not fit Order: order: "
        "Input should be a valid integer, unable to parse string as an integer"
    )
    assert str(caught.value) == reason
    response = caught.value.response
    assert response is not None
    assert (response.agent, response.stop, len(model.requests)) == (triage, "error", 1)
    assert response.messages[-1]["content"] == """{"assistant": "Refunds"} (the handoff to 'Refunds' failed)"""
    check_history([{"role": "user", "content": "Go"}, *response.messages])
    again, _ = swarm_of("Sorry.")
    history = [{"role": "user", "content": "Go"}, *response.messages, {"role": "user", "content": "Well?"}]
    assert (await again.run(triage, history)).text == "Sorry."


async def test_a_handoff_sees_the_changes_of_its_turn() -> None:
    async def look_up(order: int) -> Result:
        return Result(value="found", context_variables={"order": order})

    async def refund(context_variables: Order) -> str:
        return f"refunded {context_variables['order']}"

    refunds = Agent(name="Refunds", functions=[refund])
    triage = Agent(name="Triage", functions=[look_up, refunds])
    swarm, _ = swarm_of([call("look_up", order=7), call("transfer_to_refunds")], call("refund"), "Done.")
    response = await swarm.run(triage, "Go")
    assert (answers(response)["refund"], response.agent) == ("refunded 7", refunds)


# --- Swarm ---


def test_swarm_has_views_and_resources_too() -> None:
    """`Swarm` has views and resources, also in the steps for loops that users write."""
    model = ScriptedModel([call("spend"), call("collect", number=2), "Done."])
    swarm = Swarm(model.client(), resources={"db": Database("ink")})
    response = swarm.run(Agent(functions=[spend, collect]), "Go", ADA)
    assert response.context_variables == {"customer": "Ada", "points": 8, "cart": ["ink"]}
    context = dict(ADA)
    message = {"id": "a", "type": "function", "function": {"name": "spend", "arguments": "{}"}}
    swarm.handle_tool_calls([message], [spend], context, debug=False)
    assert context == {"customer": "Ada", "points": 6, "cart": ["ink"]}
