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
    open_calls,
    tool,
)
from aswarm.guards import Block, Blocked, CheckedCall, CheckedResult, Halt, Replace, Say, guard_tool
from aswarm.middleware import Handlers, Middleware
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history


class Till:
    """A function that pays, and a function that hands off. `paid`: the amounts."""

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
        """Return the response of a run with these calls, under a guard with these checks."""
        model = ScriptedModel([list(calls), "Done"] if calls else ["Done"])
        swarm = AsyncSwarm(model.client(), middleware=[guard_tool(**guards)])
        return await swarm.run(self.agent, messages, **{} if calls else {"resume": Approve.all()})


def results(response: Response | None, history: Sequence[Any] = ()) -> list[Any]:
    """Return the results of the calls, after a check of the history."""
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
    """The function runs only if the check lets it; the history keeps the arguments of the model."""
    till = Till()
    response = await till.run(PAY, before=lambda checked: verdict)
    assert (results(response), till.paid, response.text) == ([expected], paid, "Done")
    assert json.loads(response.messages[0]["tool_calls"][0]["function"]["arguments"]) == {"amount": "30"}


async def test_a_check_sees_the_arguments_that_the_function_gets() -> None:
    """The arguments are validated and converted. A check also sees the agent, the context and the call."""
    till, seen = Till(), list[CheckedCall]()
    await till.run(PAY, before=seen.append)
    [checked] = seen
    assert (checked.name, checked.arguments, checked.id, checked.is_approved) == ("pay", {"amount": 30}, "c1", False)
    assert (checked.text, checked.agent.name, dict(checked.run.context_variables)) == ('{"amount":30}', "Agent", {})


@pytest.mark.parametrize("arguments", ["{", "[1]", '{"amount": "much"}', "{}"])
async def test_a_call_that_cannot_be_read_does_not_pass(arguments: str) -> None:
    """The model gets the error of the arguments, and no check is called."""
    till, seen = Till(), list[CheckedCall]()
    response = await till.run(call("pay", arguments), before=seen.append)
    assert results(response)[0].startswith("Error: ")
    assert (seen, till.paid) == ([], [])


async def test_a_function_that_is_not_there_is_judged_too() -> None:
    """An unknown function is judged, because other middleware may answer its call."""
    seen: list[CheckedCall] = []
    response = await Till().run(call("shell", x=1), before=seen.append)
    assert seen[0].arguments == {"x": 1}
    assert "Tool shell not found" in results(response)[0]


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("failure", [Halt("enough"), ValueError("boom")])
async def test_the_run_may_end_at_a_call(place: str, failure: Any) -> None:
    """After a `Halt` or a failed check, the call has an answer, so that it is not resumed by mistake; the next calls are open."""
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
    assert (
        results(caught.value.response)[0] == f"{'not run' if place == 'before' else 'the result is withheld'}: {reason}"
    )
    assert till.paid == ([] if place == "before" else [30])
    assert caught.value.response is not None
    assert caught.value.response.unknown_calls == []
    assert "c1" not in [each.id for each in caught.value.response.open_calls]


@pytest.mark.parametrize("raises", [True, False])
async def test_the_user_may_have_to_decide(raises: bool) -> None:
    """The run waits after a `Hold`, returned or raised. If the user approves the call, it passes the same check."""
    till = Till()

    def check(checked: CheckedCall) -> Hold:
        if raises:
            raise Hold("Really?", data={"amount": checked.arguments["amount"]})
        return Hold("Really?", data={"amount": checked.arguments["amount"]})

    asked = await till.run(PAY, before=check, may_wait=True)
    assert asked.stop == "waiting"
    assert [(each.reason, each.data) for each in asked.open_calls] == [("Really?", {"amount": 30})]
    history = [{"role": "user", "content": "Hi"}, *asked.messages]
    response = await till.run(messages=history, before=check, may_wait=True)
    assert (results(response, history), till.paid) == (["paid 30"], [30])


# --- approvals -----------------------------------------------------------------------------------------------------


class Approvals:
    """A function that needs an approval, unless `approve` is False, under guards. `history`: all messages. `paid`: the amounts."""

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
        """Continue the conversation. The history is stored as JSON between two runs."""
        response = await self.swarm.run(self.agent, self.history, **options)
        self.history = json.loads(json.dumps([*self.history, *response.messages]))
        assert open_calls(self.history) == response.open_calls
        return response

    @property
    def asked(self) -> list[Any]:
        """Return the arguments that the user sees."""
        return [json.loads(each.arguments) for each in open_calls(self.history)]


def at_most(limit: int) -> Middleware:
    """Return a guard that lowers the amount to a limit."""
    return guard_tool(lambda checked: Replace({"amount": min(limit, checked.arguments["amount"])}))


@pytest.mark.parametrize(
    "decision", [Approve.all(), {"c1": True}, {"c1": Approve(expected={"amount": 20})}, {"c1": Approve({"amount": 20})}]
)
@pytest.mark.parametrize("order", ["one guard", "two guards", "held by a guard"])
async def test_the_user_sees_the_arguments_that_run(order: str, decision: Any) -> None:
    """The response, the history and the event have the arguments of the guard; the model reads its own arguments."""
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
    """The user has changed the arguments, and the guard does not let them pass."""
    holds = [] if approve else [guard_tool(lambda checked: Hold("Really?"), may_wait=True)]
    case = Approvals(at_most(20), *holds, approve=approve)
    await case.run()
    response = await case.run(resume={"c1": Approve({"amount": 300})})
    assert (response.stop, case.paid, case.asked) == ("waiting", [], [{"amount": 20}])
    assert response.open_calls[0].reason == "a guard has changed the arguments since the decision"
    with pytest.raises(ConfigurationError, match="was made for the arguments"):
        await case.run(resume={"c1": Approve(expected={"amount": 300})})
    response = await case.run(resume={"c1": True})
    assert case.paid == [20]
    assert response.messages[0]["content"] == '(run with arguments changed by the user: {"amount": 20})\npaid 20'


async def test_a_guard_that_changes_its_decision_asks_again() -> None:
    """A call runs only with arguments that the user has approved."""
    limits = iter([400, 300, 200, 200])
    case = Approvals(guard_tool(lambda checked: Replace({"amount": next(limits)})))
    await case.run()
    for shown in (400, 300, 200):
        assert (case.asked, case.paid) == ([{"amount": shown}], [])
        await case.run(resume={"c1": True})
    assert case.paid == [200]


async def test_a_call_that_no_guard_had_seen_before_its_approval() -> None:
    """A call that waited behind another call is judged after its approval, and may wait again."""
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
    """Calls that `resume=True` runs are judged too, before the first request of the run."""
    case = Approvals(at_most(20), approve=False)
    case.history.append(ScriptedAnswer(calls=[call("pay", call_id="c1", amount=500)]).message)
    case.model = ScriptedModel(["Done"])
    case.swarm = AsyncSwarm(case.model.client(), middleware=[at_most(20)])
    await case.run(resume=True)
    assert case.paid == [20]


async def test_other_middleware_may_add_arguments_that_nobody_sees() -> None:
    """An argument that middleware adds, such as a token, is no replacement of a guard."""

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
    """The model reads the text of the check. A blocked result does not hand off and changes nothing."""
    response = await Till().run(call("fetch"), after=lambda checked: verdict)
    [content] = results(response)
    assert content == expected
    is_blocked = isinstance(verdict, Block)
    assert response.agent is not None
    assert response.agent.name == ("Agent" if is_blocked else "Other")
    assert response.context_variables == ({} if is_blocked else {"seen": True})


async def test_a_check_sees_the_result_and_its_call() -> None:
    """A check sees the content, its text, the error and the call. The content may have images."""
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
