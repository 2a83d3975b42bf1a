"""`guard_tool`: before a function runs, and before the model reads a result."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    CallWaiting,
    ConfigurationError,
    Hold,
    Image,
    Response,
    Result,
    current_call,
    tool,
    waiting,
)
from aswarm.guards import Block, Blocked, CheckedCall, CheckedResult, Halt, Replace, Say, guard_tool
from aswarm.middleware import Handlers, Middleware
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.guards.guarded import WAYS, Scene, steps

pytestmark = pytest.mark.anyio


class Till:
    """A function that pays, and one that hands off; `paid` is what it paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.other = Agent(name="Other")

    async def pay(self, amount: int) -> str:
        """Pay."""
        self.paid.append(amount)
        return f"paid {amount}"

    async def fetch(self) -> Result:
        """Hand over, and change the context."""
        return Result(value="secret", agent=self.other, context_variables={"seen": True})

    @property
    def agent(self) -> Agent:
        return Agent(functions=[self.pay, self.fetch])

    async def run(self, *calls: Any, messages: Any = "Hi", **guards: Any) -> Response:
        """The response of a run with these calls, under a guard with these checks."""
        model = ScriptedModel([list(calls), "Done"] if calls else ["Done"])
        swarm = AsyncSwarm(model.client(), middleware=[guard_tool(**guards)])
        return await swarm.run(self.agent, messages, **{"resume": True} if not calls else {})


def told(response: Response | None, history: Sequence[Any] = ()) -> list[Any]:
    """What the model is told of the calls, in a valid history."""
    assert response is not None
    check_history([*history, *response.messages], allow_open=True)
    return [message["content"] for message in response.messages if message["role"] == "tool"]


PAY = call("pay", call_id="c1", amount="30")


@pytest.mark.parametrize(
    ("verdict", "expected", "paid"),
    [
        (None, "paid 30", [30]),
        (Block("too much"), "not run: too much", []),
        (Block(), "not run", []),
        (Say("paid by voucher"), "paid by voucher", []),
        (Replace({"amount": 20}), "paid 20", [20]),
    ],
)
async def test_a_verdict_before_a_call(verdict: Any, expected: str, paid: list[int]) -> None:
    """The function runs only if it is let pass; the history keeps the arguments that the model sent."""
    till = Till()
    response = await till.run(PAY, before=lambda checked: verdict)
    assert (told(response), till.paid, response.text) == ([expected], paid, "Done")
    assert json.loads(response.messages[0]["tool_calls"][0]["function"]["arguments"]) == {"amount": "30"}


async def test_a_check_sees_the_arguments_that_the_function_gets() -> None:
    """Validated and converted: a check of a number is not passed by a text. So are the agent, the context and the call."""
    till, seen = Till(), list[CheckedCall]()
    await till.run(PAY, before=seen.append)
    [checked] = seen
    assert (checked.name, checked.arguments, checked.id, checked.is_approved) == ("pay", {"amount": 30}, "c1", False)
    assert (checked.text, checked.agent.name, dict(checked.run.context_variables)) == ('{"amount":30}', "Agent", {})


@pytest.mark.parametrize("arguments", ["{", "[1]", '{"amount": "much"}', "{}"])
async def test_a_call_that_cannot_be_read_does_not_pass(arguments: str) -> None:
    """No check can judge it, and the model is told what is wrong with it."""
    till, seen = Till(), list[CheckedCall]()
    response = await till.run(call("pay", arguments), before=seen.append)
    assert told(response)[0].startswith("Error: ")
    assert (seen, till.paid) == ([], [])


async def test_a_function_that_is_not_there_is_judged_too() -> None:
    """Other middleware may answer it."""
    seen: list[CheckedCall] = []
    response = await Till().run(call("shell", x=1), before=seen.append)
    assert seen[0].arguments == {"x": 1}
    assert "Tool shell not found" in told(response)[0]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("failure", [Halt("enough"), ValueError("boom")])
async def test_the_run_may_end_at_a_call(place: str, failure: Any) -> None:
    """`Halt`, or a check that fails: the call has an answer, so that it is not resumed by mistake; the calls after it are open."""
    till = Till()

    def check(checked: Any) -> Any:
        if isinstance(failure, Exception):
            raise failure
        return failure

    with pytest.raises(Blocked) as caught:
        await till.run(PAY, call("fetch", call_id="c2"), **{place: check})
    reason = "enough" if isinstance(failure, Halt) else "the check failed"
    assert caught.value.reason == reason
    assert isinstance(failure, Halt) or str(caught.value).endswith("the check failed: ValueError: boom")
    assert told(caught.value.response)[0] == f"{'not run' if place == 'before' else 'the result is withheld'}: {reason}"
    assert till.paid == ([] if place == "before" else [30])
    assert caught.value.response is not None
    assert caught.value.response.unknown_calls == []
    assert "c1" not in [each.id for each in caught.value.response.waiting]


@pytest.mark.parametrize("raises", [True, False])
async def test_a_person_may_have_to_decide(raises: bool) -> None:
    """`Hold`, returned or raised: the run waits. Once the user has let the call run, it passes the same check."""
    till = Till()

    def check(checked: CheckedCall) -> Hold:
        if raises:
            raise Hold("Really?", data={"amount": checked.arguments["amount"]})
        return Hold("Really?", data={"amount": checked.arguments["amount"]})

    asked = await till.run(PAY, before=check, may_wait=True)
    assert asked.stop == "waiting"
    assert [(each.reason, each.data) for each in asked.waiting] == [("Really?", {"amount": 30})]
    history = [{"role": "user", "content": "Hi"}, *asked.messages]
    response = await till.run(messages=history, before=check, may_wait=True)
    assert (told(response, history), till.paid) == (["paid 30"], [30])


# --- what a person approves -------------------------------------------------------------------------------------------


class Approvals:
    """A function that needs an approval, unless `approve` is False, under guards. `history`: so far, `paid`: what it paid."""

    def __init__(self, *guards: Any, approve: bool = True, answer: Any = None) -> None:
        self.paid: list[Any] = []
        self.history: list[Any] = [{"role": "user", "content": "Hi"}]
        answer = [call("pay", call_id="c1", amount=500)] if answer is None else answer
        self.model = ScriptedModel([answer, "Done"])
        self.swarm = AsyncSwarm(self.model.client(), middleware=guards)

        @tool(approve=approve)
        async def pay(amount: int, token: str = "") -> str:
            self.paid.append((amount, token) if token else amount)
            return f"paid {amount}"

        self.agent = Agent(functions=[pay])

    async def run(self, **options: Any) -> Response:
        """Go on; the history is stored as JSON between two runs."""
        response = await self.swarm.run(self.agent, self.history, **options)
        self.history = json.loads(json.dumps([*self.history, *response.messages]))
        assert waiting(self.history) == response.waiting
        return response

    @property
    def asked(self) -> list[Any]:
        """The arguments that a person sees."""
        return [json.loads(each.arguments) for each in waiting(self.history)]


def at_most(limit: int) -> Middleware:
    """A guard that pays no more."""
    return guard_tool(lambda checked: Replace({"amount": min(limit, checked.arguments["amount"])}))


@pytest.mark.parametrize(
    "decision", [True, {"c1": True}, {"c1": Approve(expected={"amount": 20})}, {"c1": Approve({"amount": 20})}]
)
@pytest.mark.parametrize("order", ["one guard", "two guards", "held by a guard"])
async def test_a_person_sees_the_arguments_that_run(order: str, decision: Any) -> None:
    """Those of the guard, in the response, in the history and in the event; the model reads what it has sent."""
    guards = {
        "one guard": [at_most(20)],
        "two guards": [at_most(50), at_most(20)],
        "held by a guard": [at_most(20), guard_tool(lambda checked: Hold("Really?"), may_wait=True)],
    }
    case = Approvals(*guards[order], approve=order != "held by a guard")
    async with case.swarm.stream(case.agent, case.history) as run:
        [event] = [event async for event in run if isinstance(event, CallWaiting)]
    assert json.loads(event.arguments) == {"amount": 20}
    case.history += run.response.messages
    assert case.asked == [{"amount": 20}]
    response = await case.run(resume=decision)
    assert (case.paid, case.asked, response.text) == ([20], [], "Done")
    assert response.messages[0]["content"] == "paid 20"


@pytest.mark.parametrize("approve", [True, False])
async def test_arguments_that_a_guard_replaces_after_the_decision_are_asked_again(approve: bool) -> None:
    """A person has changed them, and the guard does not let them pass."""
    case = Approvals(
        at_most(20), *([] if approve else [guard_tool(lambda checked: Hold("Really?"), may_wait=True)]), approve=approve
    )
    await case.run()
    response = await case.run(resume={"c1": Approve({"amount": 300})})
    assert (response.stop, case.paid, case.asked) == ("waiting", [], [{"amount": 20}])
    assert response.waiting[0].reason == "a guard has changed the arguments since the decision"
    with pytest.raises(ConfigurationError, match="was made for the arguments"):
        await case.run(resume={"c1": Approve(expected={"amount": 300})})
    response = await case.run(resume={"c1": True})
    assert case.paid == [20]
    assert response.messages[0]["content"] == '(run with arguments changed by the user: {"amount": 20})\npaid 20'


async def test_a_guard_that_decides_anew_each_time_is_asked_about_each_time() -> None:
    """Whatever a person approves is what runs, or nothing."""
    limits = iter([400, 300, 200, 200])
    case = Approvals(guard_tool(lambda checked: Replace({"amount": next(limits)})))
    await case.run()
    for shown in (400, 300, 200):
        assert (case.asked, case.paid) == ([{"amount": shown}], [])
        await case.run(resume={"c1": True})
    assert case.paid == [200]


async def test_a_replacement_that_is_not_idempotent_is_made_once() -> None:
    """The guard gets the arguments of the model each time."""
    case = Approvals(guard_tool(lambda checked: Replace({"amount": checked.arguments["amount"] // 2})))
    await case.run()
    await case.run(resume={"c1": True})
    assert case.paid == [250]


async def test_a_guard_that_lets_pass_after_the_approval() -> None:
    """The person has approved something else."""
    case = Approvals(guard_tool(lambda checked: None if checked.is_approved else Replace({"amount": 20})))
    await case.run()
    await case.run(resume={"c1": True})
    assert (case.paid, case.asked) == ([], [{"amount": 500}])
    await case.run(resume={"c1": True})
    assert case.paid == [500]


async def test_a_call_that_no_guard_had_seen_before_its_approval() -> None:
    """It waited behind another one."""
    answer = [call("pay", call_id="c1", amount=1), call("pay", call_id="c2", amount=500)]
    case = Approvals(at_most(20), answer=answer)
    case.agent = case.agent.model_copy(update={"parallel_tool_calls": False})
    case.swarm = AsyncSwarm(case.model.client(), middleware=[at_most(20)], concurrent_tools=False)
    await case.run()
    assert case.asked == [{"amount": 1}, {"amount": 500}]
    await case.run(resume={"c1": True, "c2": True})
    assert (case.paid, case.asked) == ([1], [{"amount": 20}])
    await case.run(resume={"c2": True})
    assert case.paid == [1, 20]


async def test_a_call_that_nobody_was_asked_about_is_replaced_without_a_question() -> None:
    """`resume=True` runs what an earlier run has left open."""
    case = Approvals(at_most(20), approve=False)
    case.history.append(ScriptedAnswer(calls=[call("pay", call_id="c1", amount=500)]).message)
    case.model = ScriptedModel(["Done"])
    case.swarm = AsyncSwarm(case.model.client(), middleware=[at_most(20)])
    await case.run(resume=True)
    assert case.paid == [20]


async def test_other_middleware_may_add_arguments_that_nobody_sees() -> None:
    """Such as a token: it is no replacement of a guard."""

    def with_token(handlers: Handlers) -> Handlers:
        async def call_tool(call: Any, context: Any, started: Any) -> Any:
            call.arguments = json.dumps({**json.loads(call.arguments), "token": "t"})
            return await handlers.call_tool(call, context, started)

        return dataclasses.replace(handlers, call_tool=call_tool)

    case = Approvals(at_most(20), with_token)
    await case.run()
    assert case.asked == [{"amount": 20}]
    await case.run(resume={"c1": True})
    assert case.paid == [(20, "t")]


async def test_calls_that_are_resumed_are_judged() -> None:
    """Also if they run before the first request of the run."""
    till = Till()
    history = [
        {"role": "user", "content": "Hi"},
        ScriptedAnswer(calls=[PAY]).message,
    ]
    response = await till.run(messages=history, before=lambda checked: Block("no"))
    assert (told(response, history), till.paid) == (["not run: no"], [])


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (None, "secret"),
        (Block("private"), "the result is withheld: private"),
        (Say("nothing"), "nothing"),
        (Replace("s*****"), "s*****"),
        (Replace([{"type": "text", "text": "x"}]), [{"type": "text", "text": "x"}]),
    ],
)
async def test_a_verdict_after_a_call(verdict: Any, expected: Any) -> None:
    """The model reads what the check says. A blocked result hands nothing over and changes nothing."""
    response = await Till().run(call("fetch"), after=lambda checked: verdict)
    [content] = told(response)
    assert content == expected
    is_blocked = isinstance(verdict, Block)
    assert response.agent is not None
    assert response.agent.name == ("Agent" if is_blocked else "Other")
    assert response.context_variables == ({} if is_blocked else {"seen": True})


async def test_what_a_check_of_a_result_sees() -> None:
    """The content, its text, the error, and the call; also where images are in it."""
    seen: list[CheckedResult] = []

    async def photo() -> list[Any]:
        return ["a cat", Image("https://example.com/cat.png")]

    async def fails() -> str:
        raise ValueError("boom")

    model = ScriptedModel([[call("photo"), call("fails", x=1, call_id="c2")], "Done"])
    agent = Agent(functions=[photo, fails])
    await AsyncSwarm(model.client(), middleware=[guard_tool(after=seen.append)]).run(agent, "Hi")
    first, second = sorted(seen, key=lambda each: each.name, reverse=True)
    assert (first.text, len(first.content), first.error) == ("a cat", 2, None)
    assert (second.name, second.id, second.arguments) == ("fails", "c2", '{"x": 1}')
    assert second.error is not None
    assert second.text.startswith("Error: ")
    assert second.run.run_id


async def test_a_handoff_is_a_call() -> None:
    """`Block` before it keeps the agent."""
    other = Agent(name="Other")
    model = ScriptedModel([call("transfer_to_other"), "Done"])
    swarm = AsyncSwarm(model.client(), middleware=[guard_tool(lambda checked: Block("stay here"))])
    response = await swarm.run(Agent(functions=[other]), "Hi")
    assert (told(response), response.agent and response.agent.name) == (["not run: stay here"], "Agent")


async def test_both_checks_of_one_guard() -> None:
    """`before`, then the function, then `after`. A call that `before` has answered has no result to judge."""
    till, log = Till(), list[str]()

    def before(checked: CheckedCall) -> Block | None:
        log.append(f"before {checked.name}")
        return Block() if checked.name == "fetch" else None

    async def after(checked: CheckedResult) -> None:
        log.append(f"after {checked.name}: {checked.text}")

    await till.run(PAY, call("fetch", call_id="c2"), before=before, after=after)
    assert sorted(log) == ["after pay: paid 30", "before fetch", "before pay"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_result_that_is_withheld_is_not_shown(way: str) -> None:
    """In the events of the call neither."""
    scene = Scene()
    response = await scene.run(guard_tool(after=scene.check(Block("private"))), way=way)
    assert scene.worked == 1
    assert "worked" not in str(scene.seen) + str(response.messages)


@pytest.mark.parametrize(
    ("place", "verdict"),
    [
        *(("before", each) for each in (True, Replace("x"), Replace({"x": object()}))),
        *(("after", each) for each in (True, Hold("x"), Replace(3), Replace({"x": 1}))),
    ],
)
async def test_a_value_that_is_not_a_verdict_there_ends_the_run(place: str, verdict: Any) -> None:
    """A result cannot wait for a decision: its function has run."""
    till = Till()
    with pytest.raises(ConfigurationError, match="to let pass"):
        await till.run(PAY, **{place: lambda checked: verdict})
    assert till.paid == ([] if place == "before" else [30])


async def test_a_guard_without_a_check_is_a_mistake() -> None:
    """Found when it is made."""
    with pytest.raises(ConfigurationError, match="needs a check"):
        guard_tool()


async def test_a_check_that_fails_may_let_pass() -> None:
    """With on_error="pass", before and after."""
    till = Till()

    def check(checked: Any) -> None:
        raise ValueError("boom")

    response = await till.run(PAY, before=check, after=check, on_error="pass")
    assert told(response) == ["paid 30"]


async def test_a_check_knows_its_call() -> None:
    """`current_call()` works in it; an approval of the tool itself is asked after the guard."""
    ids: list[str] = []

    @tool(approve=True)
    async def erase() -> str:
        return "erased"

    def check(checked: CheckedCall) -> None:
        ids.append(current_call().id)

    model = ScriptedModel([call("erase", call_id="c7")])
    response = await AsyncSwarm(model.client(), middleware=[guard_tool(check)]).run(Agent(functions=[erase]), "Hi")
    assert (ids, response.stop) == (["c7"], "waiting")


async def test_other_calls_of_the_turn_run_beside_a_check() -> None:
    """Each call has its own task: a check that takes long holds up its own call only."""
    scene = Scene(calls=(call("work", call_id="slow"), call("work", call_id="fast")))

    async def check(checked: CheckedCall) -> None:
        await steps(200 if checked.id == "slow" else 0)
        scene.log.append(checked.id)

    await scene.run(guard_tool(before=check))
    assert scene.log == ["asked", "fast", "worked", "slow", "worked", "asked"]
