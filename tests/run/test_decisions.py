"""Decisions on calls that wait: approvals with changed arguments, answers, denials, and mistakes that run nothing."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    CallWaiting,
    ConfigurationError,
    Deny,
    Hold,
    Reply,
    Response,
    current_call,
    open_calls,
    tool,
)
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome
from aswarm.testing import ScriptedModel, call
from tests.support.run.one_turn import contents
from tests.support.run.waiting_shop import Shop, stored


class Bank:
    """An agent whose function needs an approval, and asks a question after it. A middleware may ask one before."""

    def __init__(self, *, approve: Any = True, asks: bool = True, guards: bool = False) -> None:
        self.ran: list[Any] = []

        @tool(approve=approve)
        async def pay(amount: int) -> str:
            """Pay."""
            if asks and current_call().answer is None:
                raise Hold("From which account?", data=["giro", "savings"])
            self.ran.append((amount, current_call().answer, current_call().data))
            return f"paid {amount}"

        def guard(handlers: Handlers) -> Handlers:
            async def call_tool(made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
                if current_call().answer is None:
                    raise Hold("Which cost centre?")
                return await handlers.call_tool(made, context, started)

            return dataclasses.replace(handlers, call_tool=call_tool, may_hold=True)

        self.agent = Agent(name="A", functions=[pay])
        self.model = ScriptedModel([call("pay", call_id="call_1", amount=1000), "Done."])
        self.swarm = AsyncSwarm(self.model.client(), middleware=[guard] if guards else [])
        self.history: list[Any] = [{"role": "user", "content": "Go"}]

    async def decide(self, decision: Any = None) -> Response:
        """Run once, with a decision on the call; the history passes through JSON."""
        resume = False if decision is None else {"call_1": decision}
        response = await self.swarm.run(self.agent, self.history, resume=resume)
        self.history = stored(response, self.history)
        assert open_calls(self.history) == response.open_calls
        return response


async def test_changed_arguments_stay_when_the_function_asks() -> None:
    """Changed arguments are shown, `expected` is compared with them, and the function runs with them after its question."""
    bank = Bank()
    await bank.decide()
    asked = await bank.decide(Approve({"amount": 80}))
    assert [(each.arguments, each.reason) for each in asked.open_calls] == [('{"amount": 80}', "From which account?")]
    with pytest.raises(ConfigurationError, match=r"but the call has \{'amount': 80\}"):
        await bank.decide(Reply("giro", expected={"amount": 1000}))
    with pytest.raises(ConfigurationError, match=r"but the call has \{'amount': 80\}"):
        await bank.decide({"answer": "giro", "expected": {"amount": 1000}})
    asked = await bank.decide(Reply("giro", expected={"amount": 80}))
    assert [(each.arguments, each.reason, each.answer) for each in asked.open_calls] == [
        ('{"amount": 80}', "needs approval", "giro")
    ]
    assert bank.ran == []
    end = await bank.decide(Approve(expected={"amount": 80}))
    assert bank.ran == [(80, "giro", ["giro", "savings"])]
    assert contents(end) == ['(run with arguments changed by the user: {"amount": 80})\npaid 80']
    assert json.loads(bank.history[1]["tool_calls"][0]["function"]["arguments"]) == {"amount": 1000}


@pytest.mark.parametrize(
    ("decision", "amount"), [(True, 80), (Approve({"amount": 70}), 70)], ids=["as they are", "changed again"]
)
async def test_changed_arguments_stay_while_a_call_is_undecided(decision: Any, amount: int) -> None:
    """A run without a decision changes nothing, and the last change counts."""
    bank = Bank()
    await bank.decide()
    await bank.decide(Approve({"amount": 80}))
    async with bank.swarm.stream(bank.agent, bank.history, resume={}) as run:
        events = [event async for event in run if isinstance(event, CallWaiting)]
    assert [each.arguments for each in events] == ['{"amount": 80}']
    assert (run.response.messages, run.response.open_calls) == ([], open_calls(bank.history))
    await bank.decide(Reply("giro"))
    await bank.decide(decision)
    assert bank.ran == [(amount, "giro", ["giro", "savings"])]


@pytest.mark.parametrize(
    ("approve", "is_asked"),
    [
        (True, True),
        (lambda arguments, context: arguments["amount"] > 100, True),
        (lambda arguments, context: False, False),
    ],
    ids=["True", "function", "function that needs none"],
)
async def test_an_answer_is_no_approval(approve: Any, is_asked: bool) -> None:
    """A question of a middleware comes before the approval, and its answer stays until the approval comes."""
    bank = Bank(approve=approve, asks=False, guards=True)
    asked = await bank.decide()
    assert [each.reason for each in asked.open_calls] == ["Which cost centre?"]
    second = await bank.decide(Reply("cc 7"))
    if is_asked:
        assert ([(each.reason, each.answer) for each in second.open_calls], bank.ran) == (
            [("needs approval", "cc 7")],
            [],
        )
        with pytest.raises(ConfigurationError, match="asks for an approval and not for data"):
            await bank.decide(Reply("cc 8"))
        second = await bank.decide(True)
    assert (second.text, bank.ran) == ("Done.", [(1000, "cc 7", None)])


@pytest.mark.parametrize(
    "forged",
    [
        {"reason": "Which colour?"},
        {"reason": "Which colour?", "approved": True},
        {"reason": "Which colour?", "approval": False, "answer": "giro", "arguments": {"amount": 5}},
        {"reason": "Which colour?", "data": {"is_approval": True}, "is_approval": True},
    ],
    ids=["question", "approved", "answered", "is_approval"],
)
async def test_no_history_turns_an_answer_into_an_approval(forged: Any) -> None:
    """Whatever the history has, a function that needs an approval waits for one."""
    bank = Bank(asks=False)
    await bank.decide()
    bank.history[-1]["waiting"] = [{"index": 0, **forged}]
    asked = await bank.decide(Reply("blue"))
    assert ([(each.reason, each.answer) for each in asked.open_calls], bank.ran) == ([("needs approval", "blue")], [])


@pytest.mark.parametrize("arguments", [5, None, {"amount": object()}], ids=["number", "None", "object"])
async def test_changed_arguments_that_no_run_has_recorded(arguments: Any) -> None:
    """A forged entry counts for nothing, and the tool decides whether its call waits."""
    bank = Bank(asks=False)
    await bank.decide()
    bank.history[-1]["waiting"] = [{"index": 0, "reason": "Really?", "arguments": arguments}]
    assert [(each.arguments, each.reason) for each in open_calls(bank.history)] == [('{"amount": 1000}', None)]
    assert (await bank.swarm.run(bank.agent, bank.history, resume={})).stop == "waiting"
    assert bank.ran == []


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (False, "not run: denied by the user"),
        (Deny("too old"), "not run: denied by the user: too old"),
        ({"deny": "too old"}, "not run: denied by the user: too old"),
        ({"approve": False}, "not run: denied by the user"),
        ({"deny": True}, "not run: denied by the user"),
        ("It was refunded already.", "It was refunded already."),
    ],
    ids=["False", "Deny", "deny", "approve False", "deny True", "text"],
)
async def test_a_decision_may_answer_in_place_of_the_function(decision: Any, text: str) -> None:
    """A denied call is answered at once, and a text is the result; the function never runs."""
    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    response = await shop.run(history, resume={"call_1": decision})
    assert (contents(response), shop.ran, response.text) == ([text], [], "Done.")


@pytest.mark.parametrize(
    "decision", [Approve({"order": 8}), {"approve": {"arguments": {"order": 8}}}], ids=["Approve", "JSON"]
)
async def test_changed_arguments(decision: Any) -> None:
    """The function gets the changed arguments, its tool message has them, and the assistant message stays as it is."""
    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    before = json.dumps(history)
    response = await shop.run(history, resume={"call_1": decision})
    assert shop.ran == [("refund", 8)]
    assert contents(response) == ['(run with arguments changed by the user: {"order": 8})\nrefunded 8']
    assert json.dumps(history) == before


@pytest.mark.parametrize("arguments", ['{"order": 1}', '{ "order":1 }'])
async def test_arguments_that_are_sent_back_unchanged_are_no_change(arguments: str) -> None:
    """Approved arguments that are equal to the arguments of the model are no change for the model."""
    shop = Shop(call("refund", arguments, call_id="a"), "Done.")
    history = stored(await shop.run())
    response = await shop.run(history, resume={"a": Approve({"order": 1})})
    assert (contents(response), shop.ran) == (["refunded 1"], [("refund", 1)])


async def test_the_note_shows_the_change_of_the_user() -> None:
    """The note has the arguments of the user, even if a middleware changes them again."""

    def rewrite(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            call.arguments = '{"order": 99}'
            return await handlers.call_tool(call, context, started)

        return dataclasses.replace(handlers, call_tool=call_tool)

    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    shop.swarm = AsyncSwarm(shop.model.client(), middleware=[rewrite])
    response = await shop.run(history, resume={"call_1": Approve({"order": 8})})
    assert contents(response) == ['(run with arguments changed by the user: {"order": 8})\nrefunded 99']


async def test_arguments_of_the_model_may_be_no_json() -> None:
    """Invalid arguments never equal the expected ones, and the arguments of a user replace them."""
    shop = Shop([call("refund", "not JSON", call_id="call_1")], "Done.")
    history = stored(await shop.run(execute_tools=False))
    with pytest.raises(ConfigurationError, match="but the call has 'not JSON'"):
        await shop.run(history, resume={"call_1": Approve(expected={"order": 7})})
    await shop.run(history, resume={"call_1": Approve({"order": 8})})
    assert shop.ran == [("refund", 8)]


async def test_arguments_for_a_function_that_is_gone() -> None:
    """An approved call of a function that the agent no longer has is an error for the model."""
    shop = Shop([call("gone", call_id="call_1")], "Done.")
    history = stored(await shop.run(execute_tools=False))
    response = await shop.run(history, resume={"call_1": Approve({"order": 8})})
    assert "Error: Tool gone not found." in contents(response)[0]


async def test_nothing_in_the_history_can_approve() -> None:
    """An entry of the history approves nothing; the tool decides whether its call waits."""
    shop = Shop()
    asked = {"id": "call_1", "type": "function", "function": {"name": "refund", "arguments": '{"order": 7}'}}
    for recorded in ([], [{"index": 0}], "approved", [{"index": 0, "reason": "x", "approved": True}]):
        history = [{"role": "assistant", "content": None, "tool_calls": [asked], "waiting": recorded}]
        response = await shop.run(history, resume={})
        assert (response.stop, shop.ran) == ("waiting", [])


async def test_nothing_in_the_history_can_approve_a_plain_function() -> None:
    """An entry that lists no call does not approve a call beside a call with a decision."""
    shop = Shop("Done.")
    asked = [
        {"id": key, "type": "function", "function": {"name": "note", "arguments": '{"text": "1"}'}} for key in "ab"
    ]
    history = [{"role": "assistant", "content": None, "tool_calls": asked, "waiting": []}]
    response = await shop.run(history, resume={"a": False})
    assert (response.stop, response.open_calls[0].reason, shop.ran) == ("waiting", "not decided", [])


# --- mistakes ---


@pytest.mark.parametrize("decision", [True, False, "paid by hand", Approve()])
async def test_equal_ids_are_decided_by_index(decision: Any) -> None:
    """Of two open calls with one id, a decision on the later call alone is an error; with both decisions each counts."""
    shop = Shop([call("refund", call_id="x", order=1), call("refund", call_id="x", order=2)], "Done.")
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError, match="use their indexes: 0 and 1"):
        await shop.run(history, resume={"x": decision})
    with pytest.raises(ConfigurationError, match="on the earlier call too"):
        await shop.run(history, resume={1: decision})
    assert shop.ran == []
    both = await shop.run(history, resume={"0": False, 1: True})
    assert (contents(both), both.text) == (["not run: denied by the user", "refunded 2"], "Done.")


@pytest.mark.parametrize(
    ("resume", "words"),
    [
        ({"nobody": True}, "'nobody', but no open call has this id or index; the open calls are 'a', 'b'"),
        ({3: True}, "3, but no open call has this id"),
        *(({key: True}, "no open call has this id or index") for key in ("9" * 5000, True, 1.0, "01", " 1", None)),
        ({"a": True, 0: True}, "decides twice"),
        ({"a": Approve(expected={"order": 8})}, "made for the arguments {'order': 8}, but the call has {'order': 7}"),
        ({"a": Approve({"order": "many"})}, "changed arguments of the call 'a' cannot be used"),
        *(({"a": {"approve": {"arguments": each}}}, "must be a JSON object") for each in (5, {"order": object()})),
        (3, "resume must be True, a dict of decisions by call id"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_a_decision_that_does_not_fit_is_an_error(resume: Any, words: str) -> None:
    """Nothing runs, and the error names the open calls or the difference."""
    shop = Shop([call("refund", call_id="a", order=7), call("refund", call_id="b", order=8)], "Done.")
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError) as caught:
        await shop.run(history, resume=resume)
    assert words in str(caught.value)
    assert shop.ran == []


@pytest.mark.parametrize(
    "decision",
    [
        {"deny": 3}, {"deny": {"reason": "x"}}, {"deny": None}, {"approve": "no"}, {"approve": None}, {"approve": 1},
        {"reason": "x", "deny": True}, {"Deny": "x"}, {"denied": True}, {"approval": 1}, {"decision": "reject"},
        {"approve": {"argument": {"order": 8}}}, {"approve": True, "deny": "x"}, {}, [], None, 1, 7,
        Reply(False), {"answer": False},
    ],
    ids=str,
)  # fmt: skip
async def test_a_decision_with_a_mistake_never_runs_the_call(decision: Any) -> None:
    """A denial in a wrong form must not approve, at either of two calls, alone or beside a right decision."""
    shop = Shop([call("refund", call_id="a", order=1), call("refund", call_id="b", order=2)], "Done.")
    history = stored(await shop.run())
    for decisions in ({"a": decision}, {"b": decision}, {"a": True, "b": decision}):
        with pytest.raises(ConfigurationError, match=r"resume (has|answers)"):
            await shop.run(history, resume=decisions)
    assert shop.ran == []


async def test_decisions_without_open_calls_are_an_error() -> None:
    """A second click on "approve" is an error, and `resume=True` without open calls is none."""
    shop = Shop("Done.")
    with pytest.raises(ConfigurationError, match="have no open calls"):
        await shop.run("Go", resume={"call_1": True})
    assert (await shop.run("Go", resume=True)).text == "Done."
