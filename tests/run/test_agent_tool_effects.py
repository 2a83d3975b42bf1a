"""An agent tool inside which a function has run: its outcome is known or unknown, and no resumed run repeats it."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    Budget,
    ConfigurationError,
    Reply,
    Response,
    agent_tool,
    external_tool,
    tool,
)
from aswarm.guards import Block, Say, guard_tool
from aswarm.testing import Request, ScriptedModel, call, check_history
from tests.support.run.inner_agents import model_of
from tests.support.run.waiting_shop import stored

UNKNOWN = "cancelled; its outcome is unknown"


class Shop:
    """An outer agent with an agent tool `payer`; inside, `charge` has an effect and `refund` needs an approval."""

    def __init__(self, *functions: Any, inner: tuple[Any, ...] = ()) -> None:
        self.effects: list[str] = []

        def charge() -> str:
            self.effects.append("charge")
            return "charged"

        @tool(approve=True)
        def refund() -> str:
            self.effects.append("refund")
            return "refunded"

        payer = Agent(name="Payer", instructions="payer", model="known", functions=[charge, refund, *inner])
        self.agent = Agent(
            name="Editor", instructions="outer", model="known", functions=[agent_tool(payer), *functions]
        )

    async def run(self, history: Any = "Go", resume: Any = False, budget: Any = None, **scripts: list[Any]) -> Response:
        swarm = AsyncSwarm(model_of(**scripts).client())
        return await swarm.run(self.agent, history, resume=resume, budget=budget)

    async def fails(self, **scripts: list[Any]) -> Response:
        """Run to a ConfigurationError. The outer call is unknown, and a resumed run of its history repeats nothing."""
        with pytest.raises(ConfigurationError) as caught:
            await self.run(budget=Budget(cost=1, prices={"known": (1, 1)}), **scripts)
        response = caught.value.response
        assert response is not None
        assert [each.name for each in response.unknown_calls] == ["payer"]
        assert answers(response) == [UNKNOWN]
        before = list(self.effects)
        again = await self.run(stored(response), resume=True, outer=["Done."])
        assert (again.text, self.effects) == ("Done.", before)
        return response


def answers(response: Response) -> list[str]:
    return [each["content"] for each in response.messages if each["role"] == "tool" and "waiting" not in each]


OUTER = call("payer", call_id="p", request="Pay")


def spoil(context_variables: MutableMapping[str, Any]) -> str:
    """Make the context no JSON, so that a run that waits cannot continue."""
    context_variables["socket"] = object()
    return "spoiled"


def leave_for_a_bad_agent() -> Agent:
    def bad(_argument: object, /) -> str:
        return ""

    return Agent(name="Broken", functions=[bad])


def leave_for_no_price() -> Agent:
    return Agent(name="Other", model="unknown")


@pytest.mark.parametrize("function", [spoil, leave_for_a_bad_agent, leave_for_no_price])
async def test_a_mistake_after_an_effect(function: Any) -> None:
    """An inner run that cannot continue has had its effect."""
    shop = Shop(inner=(function,))
    await shop.fails(outer=[[OUTER]], payer=[[call("charge"), call(function.__name__)], [call("refund")]])
    assert shop.effects == ["charge"]


async def test_a_mistake_before_any_effect_leaves_the_call_open() -> None:
    """The call can be resumed once the mistake is corrected."""
    inner = Agent(name="Inner", model="unknown")
    outer = Agent(name="Outer", model="known", functions=[agent_tool(inner)])
    with pytest.raises(ConfigurationError) as caught:
        await AsyncSwarm(ScriptedModel([call("inner", request="x")]).client()).run(
            outer, "Go", budget=Budget(cost=1, prices={"known": (1, 1)})
        )
    response = caught.value.response
    assert response is not None
    assert (response.unknown_calls, len(response.open_calls)) == ([], 1)


def leave() -> Agent:
    return Agent(name="Clerk", instructions="clerk")


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
async def test_a_neighbour_hands_off_while_the_inner_run_waits(order: list[int]) -> None:
    """The handoff waits with an earlier call; after the handoff, the call with the effect is unknown."""
    shop = Shop(leave)
    calls = [OUTER, call("leave", call_id="l")]
    response = await shop.run(
        outer=[[calls[at] for at in order]], payer=[[call("charge")], [call("refund")]], clerk=["Bye."]
    )
    if response.stop == "waiting":  # the handoff waits with the call before it
        assert order == [0, 1]
        assert [each.id for each in response.open_calls if each.reason] == ["p"]
        return
    assert UNKNOWN in answers(response)
    assert [each.id for each in response.unknown_calls] == ["p"]
    assert "not run: interrupted" not in answers(response)
    check_history([{"role": "user", "content": "Go"}, *response.messages])


async def test_a_later_call_of_the_same_id_and_name() -> None:
    """A later call with the same id runs after the call that waits, so that their answers are not exchanged."""
    shop = Shop()
    twice = [OUTER, call("payer", call_id="p", request="Look")]

    def script(request: Request) -> Any:
        first, last = request.messages[0]["content"], request.messages[-1]["content"]
        if first == "outer":
            return twice if last == "Go" else "Done."
        inside = {"Pay": [call("charge")], "Look": "Nothing.", "charged": [call("refund")], "refunded": "Paid."}
        return inside[last]

    swarm = AsyncSwarm(ScriptedModel(script).client())
    first = await swarm.run(shop.agent, "Go")
    assert (first.stop, answers(first)) == ("waiting", [])
    response = await swarm.run(shop.agent, stored(first), resume={0: True, 1: True})
    assert (response.stop, answers(response)) == ("answer", ["Paid.", "Nothing."])
    assert (response.unknown_calls, shop.effects) == ([], ["charge", "refund"])


async def waiting_history(shop: Shop) -> list[Any]:
    response = await shop.run(outer=[[OUTER]], payer=[[call("charge")], [call("refund", call_id="r")]])
    assert (response.stop, response.unknown_calls, shop.effects) == ("waiting", [], ["charge"])
    return stored(response)


AFTER = "stopped: denied by the user, after functions had run inside"


@pytest.mark.parametrize(
    ("decision", "start", "end"),
    [(False, AFTER, ""), ({"deny": "late"}, AFTER, ": late"), ("paid already", "paid already", "")],
    ids=["False", "reason", "text"],
)
async def test_an_answer_of_the_user_after_an_effect(decision: object, start: str, end: str) -> None:
    """The model reads that functions have run, or the text of the user, and the call is unknown."""
    shop = Shop()
    response = await shop.run(await waiting_history(shop), {"p": decision}, outer=["Done."])
    (answer,) = answers(response)
    assert answer.startswith(start)
    assert answer.endswith(end or answer)
    assert ([each.id for each in response.unknown_calls], shop.effects) == (["p"], ["charge"])
    unpaid = Shop()
    first = await unpaid.run(outer=[[OUTER]], payer=[[call("refund")]])
    response = await unpaid.run(stored(first), {"p": False}, outer=["Done."])
    assert (answers(response), response.unknown_calls) == (["not run: denied by the user"], [])


@pytest.mark.parametrize("result", ["charged", Reply({"charged": 5})], ids=["a text", "JSON"])
async def test_an_effect_of_another_program(result: Any) -> None:
    """A call of an external tool with a result has run."""
    shop = Shop(
        inner=(external_tool(name="card", description="Charges.", parameters={"type": "object", "properties": {}}),)
    )
    first = await shop.run(outer=[[OUTER]], payer=[[call("card", call_id="c")]])
    again = await shop.run(stored(first), {"p": Reply({"c": result})}, payer=[[call("refund")]])
    history = [*stored(first), *json.loads(json.dumps(again.messages))]
    response = await shop.run(history, {"p": False}, outer=["Done."])
    assert [each.id for each in response.unknown_calls] == ["p"]


async def test_a_new_message_after_a_wait() -> None:
    """A program drops the question and sends a new message: the model reads that the outcome is unknown."""
    shop = Shop()
    history = await waiting_history(shop)
    model = model_of(outer=["Done."])
    await AsyncSwarm(model.client()).run(shop.agent, [*history, {"role": "user", "content": "Hello?"}])
    assert [each["content"] for each in model.requests[0].messages if each["role"] == "tool"] == [UNKNOWN]


STOPPED = "stopped after functions had run inside, so its outcome is unknown"


@pytest.mark.parametrize("verdict", [Block("late"), Say("late")], ids=["Block", "Say"])
async def test_a_guard_refuses_a_call_that_goes_on(verdict: Any) -> None:
    shop = Shop()
    history = await waiting_history(shop)
    guard = guard_tool(lambda _: verdict)
    swarm = AsyncSwarm(ScriptedModel(["Done."]).client(), middleware=[guard])
    response = await swarm.run(shop.agent, history, resume={"p": True})
    assert answers(response) == [f"{STOPPED}: late" if isinstance(verdict, Block) else "late"]
    assert ([each.id for each in response.unknown_calls], shop.effects) == (["p"], ["charge"])


async def test_a_function_that_is_gone() -> None:
    """A call of a function that the program no longer has is unknown after an effect."""
    shop = Shop()
    history = await waiting_history(shop)
    response = await AsyncSwarm(ScriptedModel(["Done."]).client()).run(
        Agent(name="Editor"), history, resume=Approve.all()
    )
    assert answers(response)[0].startswith(f"{STOPPED}: Error: Tool payer not found")
    assert ([each.id for each in response.unknown_calls], shop.effects) == (["p"], ["charge"])


async def test_a_new_message_after_a_second_wait() -> None:
    """The entry of the second wait counts, which has the effect."""
    shop = Shop()
    first = await shop.run(outer=[[OUTER]], payer=[[call("refund", call_id="r")]])
    scripts = {"payer": [[call("charge")], [call("refund", call_id="s")]]}
    again = await shop.run(stored(first), {"p": Reply({"r": False})}, **scripts)
    assert (again.stop, shop.effects) == ("waiting", ["charge"])
    history = [*stored(first), *json.loads(json.dumps(again.messages)), {"role": "user", "content": "Hello?"}]
    for function in (None, lambda blocks, _: blocks):
        model, shop.agent.history = model_of(outer=["Done."]), function
        await AsyncSwarm(model.client()).run(shop.agent, history)
        assert [each["content"] for each in model.requests[0].messages if each["role"] == "tool"] == [UNKNOWN]
