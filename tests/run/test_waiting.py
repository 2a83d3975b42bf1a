"""Calls that wait for a decision: what runs beside them, what a user is told, and what each decision does."""

from __future__ import annotations

import dataclasses
import gc
import json
import weakref
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from aswarm import (
    Agent,
    Answer,
    Approve,
    AsyncSwarm,
    CallWaiting,
    ConfigurationError,
    Deny,
    Hold,
    OpenCall,
    Response,
    Swarm,
    current_call,
    external_tool,
    function_tool,
    tool,
    waiting,
)
from aswarm._values.decisions import as_json
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome
from aswarm.testing import ScriptedModel, call, check_history

pytestmark = pytest.mark.anyio
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}


class Shop:
    """An agent with functions of every kind, and what ran."""

    def __init__(self, *steps: Any) -> None:
        self.ran: list[Any] = []
        self.other = Agent(name="Other")
        self.model = ScriptedModel(steps)
        self.swarm = AsyncSwarm(self.model.client())

        @tool(approve=True)
        async def refund(order: int) -> str:
            self.ran.append(("refund", order))
            return f"refunded {order}"

        @tool(approve=lambda arguments, context: "large" if arguments["amount"] > context["limit"] else False)
        async def pay(amount: int) -> str:
            self.ran.append(("pay", amount))
            return f"paid {amount}"

        @tool(may_wait=True)
        async def ask(what: str) -> str:
            if current_call().answer is None:
                raise Hold(f"Which {what}?", data={"of": what})
            self.ran.append(("ask", current_call().answer, current_call().data))
            return f"took {current_call().answer}"

        async def look(at: str = "") -> str:
            self.ran.append(("look", at))
            return "seen"

        def note(text: str) -> str:
            self.ran.append(("note", text))
            return "noted"

        def leave() -> Agent:
            self.ran.append("leave")
            return self.other

        browser = external_tool(name="browser", description="Opens a page.", parameters=PARAMETERS)
        self.agent = Agent(name="A", functions=[refund, pay, ask, look, note, leave, browser, self.other])

    async def run(self, messages: Any = "Go", **options: Any) -> Response:
        """A run with the limit of 10."""
        return await self.swarm.run(self.agent, messages, {"limit": 10}, **options)


def stored(response: Response, before: Any = ({"role": "user", "content": "Go"},)) -> list[Any]:
    """The history as it comes back from a storage."""
    history: list[Any] = json.loads(json.dumps([*before, *response.messages]))
    return history


def told(response: Response) -> list[str]:
    """The answers to calls."""
    return [each["content"] for each in response.messages if each["role"] == "tool"]


async def test_a_call_that_needs_approval_stays_open() -> None:
    """The run stops; the call is listed, is no message, and nothing ran."""
    shop = Shop([call("refund", order=7)])
    response = await shop.run()
    open_call = OpenCall(0, response.waiting[0].id, "refund", '{"order": 7}', "A", "needs approval", None)
    assert (response.stop, response.waiting, shop.ran) == ("waiting", [open_call], [])
    assert waiting(stored(response)) == response.waiting
    check_history(response.messages, allow_open=True)


async def test_an_approved_call_runs_and_the_model_goes_on() -> None:
    """The function runs with the arguments of the model, which the user has seen; nothing of ours is sent."""
    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    response = await shop.run(history, resume={"call_1": Approve(expected={"order": 7})})
    assert (response.text, shop.ran, response.waiting) == ("Done.", [("refund", 7)], [])
    assert "waiting" not in json.dumps(shop.model.requests[-1].body)
    check_history([*history, *response.messages])


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
        """One run, in which the call is decided; its history passes through JSON."""
        resume = False if decision is None else {"call_1": decision}
        response = await self.swarm.run(self.agent, self.history, resume=resume)
        self.history = stored(response, self.history)
        assert waiting(self.history) == response.waiting
        return response


async def test_changed_arguments_stay_when_the_function_asks() -> None:
    """They are shown, `expected` means them, and the function runs with them once its question is answered."""
    bank = Bank()
    await bank.decide()
    asked = await bank.decide(Approve({"amount": 80}))
    assert [(each.arguments, each.reason) for each in asked.waiting] == [('{"amount": 80}', "From which account?")]
    with pytest.raises(ConfigurationError, match=r"but the call has \{'amount': 80\}"):
        await bank.decide(Answer("giro", expected={"amount": 1000}))
    with pytest.raises(ConfigurationError, match=r"but the call has \{'amount': 80\}"):
        await bank.decide(as_json(Answer("giro", expected={"amount": 1000})))
    asked = await bank.decide(Answer("giro", expected={"amount": 80}))
    assert [(each.arguments, each.reason, each.answer) for each in asked.waiting] == [
        ('{"amount": 80}', "needs approval", "giro")
    ]
    assert bank.ran == []
    end = await bank.decide(Approve(expected={"amount": 80}))
    assert bank.ran == [(80, "giro", ["giro", "savings"])]
    assert told(end) == ['(run with arguments changed by the user: {"amount": 80})\npaid 80']
    assert json.loads(bank.history[1]["tool_calls"][0]["function"]["arguments"]) == {"amount": 1000}


@pytest.mark.parametrize(
    ("decision", "amount"), [(True, 80), (Approve({"amount": 70}), 70)], ids=["as they are", "changed again"]
)
async def test_changed_arguments_stay_while_a_call_is_undecided(decision: Any, amount: int) -> None:
    """A run that decides nothing changes nothing; the last change counts."""
    bank = Bank()
    await bank.decide()
    await bank.decide(Approve({"amount": 80}))
    async with bank.swarm.stream(bank.agent, bank.history, resume={}) as run:
        events = [event async for event in run if isinstance(event, CallWaiting)]
    assert [each.arguments for each in events] == ['{"amount": 80}']
    assert (run.response.messages, run.response.waiting) == ([], waiting(bank.history))
    await bank.decide(Answer("giro"))
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
    """What a middleware asks comes before the approval; the answer stays until the approval has come."""
    bank = Bank(approve=approve, asks=False, guards=True)
    asked = await bank.decide()
    assert [each.reason for each in asked.waiting] == ["Which cost centre?"]
    second = await bank.decide(Answer("cc 7"))
    if is_asked:
        assert ([(each.reason, each.answer) for each in second.waiting], bank.ran) == ([("needs approval", "cc 7")], [])
        with pytest.raises(ConfigurationError, match="asks for an approval and not for data"):
            await bank.decide(Answer("cc 8"))
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
    """Whatever stands there, a function that needs an approval waits for one."""
    bank = Bank(asks=False)
    await bank.decide()
    bank.history[-1]["waiting"] = [{"index": 0, **forged}]
    asked = await bank.decide(Answer("blue"))
    assert ([(each.reason, each.answer) for each in asked.waiting], bank.ran) == ([("needs approval", "blue")], [])


@pytest.mark.parametrize("arguments", [5, None, {"amount": object()}], ids=["number", "None", "object"])
async def test_changed_arguments_that_no_run_has_recorded(arguments: Any) -> None:
    """The entry says nothing then, and the call is asked for by its tool."""
    bank = Bank(asks=False)
    await bank.decide()
    bank.history[-1]["waiting"] = [{"index": 0, "reason": "Really?", "arguments": arguments}]
    assert [(each.arguments, each.reason) for each in waiting(bank.history)] == [('{"amount": 1000}', None)]
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
async def test_what_is_told_in_place_of_running(decision: Any, text: str) -> None:
    """A denied call is answered at once and never runs."""
    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    response = await shop.run(history, resume={"call_1": decision})
    assert (told(response), shop.ran, response.text) == ([text], [], "Done.")


@pytest.mark.parametrize(
    "decision", [Approve({"order": 8}), {"approve": {"arguments": {"order": 8}}}], ids=["Approve", "JSON"]
)
async def test_changed_arguments(decision: Any) -> None:
    """The function gets them, the tool message says so, and the assistant message stays as it is."""
    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    before = json.dumps(history)
    response = await shop.run(history, resume={"call_1": decision})
    assert shop.ran == [("refund", 8)]
    assert told(response) == ['(run with arguments changed by the user: {"order": 8})\nrefunded 8']
    assert json.dumps(history) == before


async def test_approve_as_a_function_gets_arguments_and_context() -> None:
    """A small amount runs at once; a large one waits with the reason that the function gave."""
    shop = Shop([call("pay", amount=5), call("pay", amount=50)])
    response = await shop.run()
    assert shop.ran == [("pay", 5)]
    assert [(each.index, each.reason) for each in response.waiting] == [(1, "large")]


async def test_a_function_that_asks_gets_the_answer() -> None:
    """Hold keeps its data in the history; the function runs again and finds the answer and its own data."""
    shop = Shop([call("ask", call_id="call_1", what="account")], "Done.")
    first = await shop.run()
    assert (first.waiting[0].reason, first.waiting[0].data) == ("Which account?", {"of": "account"})
    response = await shop.run(stored(first), resume={"call_1": Answer("the second")})
    assert shop.ran == [("ask", "the second", {"of": "account"})]
    assert told(response) == ["took the second"]


async def test_a_function_may_ask_again() -> None:
    """The new question is in the messages of the resumed run, and the history says it after JSON."""
    shop = Shop([call("ask", call_id="call_1", what="account")], "Done.")
    before = stored(await shop.run())

    @tool(may_wait=True)
    async def ask(what: str) -> str:
        raise Hold("And which bank?", data=current_call().data["of"])

    shop.agent.functions = [ask]
    second = await shop.run(before, resume={"call_1": Answer(1)})
    history = stored(second, before)
    assert [(each.reason, each.data) for each in waiting(history)] == [("And which bank?", "account")]
    assert second.waiting == waiting(history)
    third = await shop.run(history, resume={"call_1": "none"})
    assert third.text == "Done."
    assert [each["role"] for each in shop.model.requests[-1].messages] == ["system", "user", "assistant", "tool"]


async def test_external_tools_have_a_result_from_elsewhere() -> None:
    """A str or JSON data is the result; there is nothing that True could run."""
    shop = Shop([call("browser", call_id="call_1", city="Oslo"), call("browser", call_id="call_2")], "Done.")
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError, match="external tool 'browser'"):
        await shop.run(history, resume={"call_1": True})
    response = await shop.run(history, resume={"call_1": "opened", "call_2": Answer({"title": "Ø"})})
    assert told(response) == ["opened", '{"title": "Ø"}']
    assert (await shop.run(history, resume=True)).stop == "waiting"


async def test_what_runs_and_what_waits() -> None:
    """Calls before the one that waits run, and those beside it; those after it do not, and neither do handoffs."""
    shop = Shop(
        [call("note", text="1"), call("look", at="1"), call("refund", call_id="call_1", order=7), call("look", at="2"),
         call("transfer_to_other"), call("note", text="2")],
        "Done.",
    )  # fmt: skip
    response = await shop.run()
    assert sorted(shop.ran) == [("look", "1"), ("look", "2"), ("note", "1")]
    assert [(each.index, each.reason) for each in response.waiting] == [(2, "needs approval"), (4, None), (5, None)]
    assert response.agent is shop.agent
    check_history(response.messages, allow_open=True, ordered=False)
    end = await shop.run(stored(response), resume={"call_1": True})
    assert (end.agent, end.text, shop.ran[3:]) == (shop.other, "Done.", [("refund", 7), ("note", "2")])


async def test_a_function_that_hands_off_closes_the_calls_that_wait() -> None:
    """Its effect cannot be taken back, and the new agent may not have the function."""
    shop = Shop([call("leave"), call("refund", order=7)], "Done.")
    response = await shop.run()
    assert (response.stop, response.agent, told(response)[1]) == ("answer", shop.other, "not run: interrupted")


async def test_undecided_calls_stay_open() -> None:
    """Each decision may come in a run of its own, in any order."""
    shop = Shop([call("refund", call_id="a", order=1), call("refund", call_id="b", order=2)], "Done.")
    history = stored(await shop.run())
    second = await shop.run(history, resume={"b": True})
    assert (second.stop, [each.id for each in second.waiting], shop.ran) == ("waiting", ["a"], [("refund", 2)])
    history = stored(second, history)
    third = await shop.run(history, resume={"a": False})
    assert (third.text, shop.ran) == ("Done.", [("refund", 2)])
    check_history([*history, *third.messages], ordered=False)


@pytest.mark.parametrize("decision", [True, False, "paid by hand", Approve(), None, 7, {"approval": 1}])
async def test_a_decision_on_the_later_of_two_calls_with_equal_ids(decision: Any) -> None:
    """It is not dropped: the error says to decide on the earlier call too. With both, it counts."""
    shop = Shop([call("refund", call_id="a", order=1), call("refund", call_id="a", order=2)], "Done.")
    history = stored(await shop.run())
    for decisions in ({1: decision}, {0: True, 1: decision}) if decision in (None, 7) else ({1: decision},):
        with pytest.raises(ConfigurationError, match=r"on the earlier call too|a decision is True"):
            await shop.run(history, resume=decisions)
    assert shop.ran == []
    both = await shop.run(history, resume={0: True, 1: True})
    assert (both.text, sorted(shop.ran)) == ("Done.", [("refund", 1), ("refund", 2)])


@pytest.mark.parametrize("junk", [None, 7, [], {}, {"approval": 1}, {"approve": True, "deny": "x"}, {"approve": 1}])
async def test_a_decision_of_no_known_form(junk: Any) -> None:
    """Nothing runs, wherever the call stands."""
    shop = Shop([call("refund", call_id="a", order=1), call("refund", call_id="b", order=2)], "Done.")
    history = stored(await shop.run())
    for decisions in ({"a": junk}, {"b": junk}, {"a": True, "b": junk}):
        with pytest.raises(ConfigurationError, match="a decision is True, False"):
            await shop.run(history, resume=decisions)
    assert shop.ran == []


@pytest.mark.parametrize("arguments", ['{"order": 1}', '{ "order":1 }'])
async def test_arguments_that_are_sent_back_unchanged_are_no_change(arguments: str) -> None:
    """A form that was opened and approved: the model does not read that the user changed something."""
    shop = Shop(call("refund", arguments, call_id="a"), "Done.")
    history = stored(await shop.run())
    response = await shop.run(history, resume={"a": Approve({"order": 1})})
    assert (told(response), shop.ran) == (["refunded 1"], [("refund", 1)])


async def test_a_handoff_that_was_denied_stays_denied() -> None:
    """It was answered while another call still waited, and that answer is not taken back."""
    shop = Shop([call("refund", call_id="a", order=1), call("transfer_to_other", call_id="b")], "Done.")
    history = stored(await shop.run())
    second = await shop.run(history, resume={"b": False})
    assert ([each.id for each in second.waiting], told(second)) == (["a"], ["not run: denied by the user"])
    third = await shop.run(stored(second, history), resume={"a": True})
    assert (third.agent, third.text) == (shop.agent, "Done.")


async def test_a_decision_about_a_call_that_was_not_reached() -> None:
    """It waits again, for the same reason, in the response as in the history."""
    steps = [call("refund", call_id="a", order=1), call("note", text="1"), call("refund", call_id="b", order=2)]
    shop = Shop(steps, "Done.")
    first = await shop.run()
    second = await shop.run(stored(first), resume={"b": True})
    assert second.waiting == first.waiting == waiting(stored(second, stored(first)))
    assert shop.ran == []


async def test_a_call_that_was_not_reached_asks_about_no_invalid_arguments() -> None:
    """Approved, it would only fail: it fails without a question when its turn comes."""
    refunds = [call("refund", order=1), call("note", text="1"), call("refund", order="many"), call("refund", order=2)]
    shop = Shop(refunds, "Done.")
    first = await shop.run()
    assert [each.arguments for each in first.waiting if each.reason] == ['{"order": 1}', '{"order": 2}']
    second = await shop.run(stored(first), resume=True)
    assert [text for text in told(second) if "many" in text] == [told(second)[2]]
    assert shop.ran == [("refund", 1), ("note", "1"), ("refund", 2)]


async def test_an_approval_that_cannot_be_carried_out_yet_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The call stands behind one that waits: it is open as before, and a warning names it. A denial is kept."""
    steps = [
        call("refund", call_id="a", order=1),
        *(call("note", call_id=key, text="1") for key in "bcd"),
        call("transfer_to_other", call_id="e"),
    ]
    shop = Shop(steps, "Done.")
    shop.agent.functions = [
        tool(each, approve=True) if each.__name__ == "note" else each for each in shop.agent.functions
    ]
    first = await shop.run()
    assert "not reach" not in caplog.text
    response = await shop.run(stored(first), resume={"b": Approve({"text": "2"}), "c": False, "e": True})
    assert [each.id for each in response.waiting] == ["a", "b", "d", "e"]
    assert [each.arguments for each in response.waiting][1] == '{"text": "1"}'
    assert (shop.ran, told(response)) == ([], ["not run: denied by the user"])
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "decisions on calls that the run did not reach" in record.getMessage()
    assert "'b', 'e'" in record.getMessage()
    assert record.__dict__["run_id"] == response.run_id


async def test_a_middleware_that_holds_a_call_that_has_begun() -> None:
    """Nothing is left to decide: the run ends with an error that names the mistake, and the outcome is unknown."""

    def late(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            await handlers.call_tool(made, context, started)
            raise Hold("Was that right?")

        return Handlers(handlers.complete, call_tool, handlers.run)

    async def pay() -> str:
        return "paid"

    model = ScriptedModel([call("pay"), "Done."])
    with pytest.raises(ConfigurationError, match="raised Hold after the function of 'pay' had run") as caught:
        await AsyncSwarm(model.client(), middleware=[late]).run(Agent(functions=[pay]), "Go")
    assert caught.value.response is not None
    assert [each.name for each in caught.value.response.unknown_calls] == ["pay"]


async def test_a_call_that_waits_before_one_of_its_id() -> None:
    """Nothing could tell the answer of the later call from its own, so the later one waits too, though it needs no decision."""
    shop = Shop([call("refund", call_id="x", order=1), call("refund", call_id="x", order="many")], "Done.")
    response = await shop.run()
    assert (response.stop, len(response.waiting), shop.ran, told(response)) == ("waiting", 2, [], [])


async def test_an_undeclared_call_that_waits_before_an_answered_call_of_its_id() -> None:
    """Both have run together, and an open call would get the answer of the other call. So it is answered, and the run fails."""

    async def ask(order: int) -> str:
        if order == 1:
            _ask_elsewhere()
        return "asked"

    model = ScriptedModel([[call("ask", call_id="x", order=1), call("ask", call_id="x", order=2)], "Done."])
    with pytest.raises(ConfigurationError, match=r"'ask' .* raised Hold.*may_wait=True") as caught:
        await AsyncSwarm(model.client()).run(Agent(functions=[ask]), "Go")
    response = caught.value.response
    assert response is not None
    assert (response.stop, response.waiting, told(response)) == ("error", [], ["not run: interrupted", "asked"])


def _ask_elsewhere() -> None:
    raise Hold("Which?")


async def test_a_history_that_was_not_executed_is_decided_call_by_call() -> None:
    """After execute_tools=False an undecided call stays open, whatever its function: nobody was asked about it."""
    shop = Shop([call("note", call_id="a", text="1"), call("note", call_id="b", text="2")], "Done.")
    first = await shop.run(execute_tools=False)
    assert (first.stop, [each.id for each in first.waiting]) == ("tool_calls", ["a", "b"])
    second = await shop.run(stored(first), resume={"a": True})
    assert (second.stop, shop.ran, [each.reason for each in second.waiting]) == (
        "waiting",
        [("note", "1")],
        ["not decided"],
    )


async def test_equal_ids_are_decided_by_index() -> None:
    """An id of several open calls is refused, and so is a decision on the later one alone."""
    shop = Shop([call("refund", call_id="x", order=1), call("refund", call_id="x", order=2)], "Done.")
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError, match="use their indexes: 0 and 1"):
        await shop.run(history, resume={"x": True})
    with pytest.raises(ConfigurationError, match="on the earlier call too"):
        await shop.run(history, resume={1: True})
    third = await shop.run(history, resume={"0": False, 1: True})
    assert (told(third), third.text) == (["not run: denied by the user", "refunded 2"], "Done.")


async def test_a_denied_call_of_an_equal_id_never_runs() -> None:
    """The decision on the later one counts beside one on the earlier one, or once that has run."""
    steps = [call("refund", call_id="a", order=1), call("look", call_id="x", at="1"), call("look", call_id="x", at="2")]
    shop = Shop(steps, "Done.")
    shop.swarm = AsyncSwarm(shop.model.client(), concurrent_tools=False)
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError, match="on the earlier call too"):
        await shop.run(history, resume={"a": True, 2: False})
    assert shop.ran == []
    second = await shop.run(history, resume={"a": True, 1: True, 2: False})
    assert (told(second)[2], second.text, len(shop.ran)) == ("not run: denied by the user", "Done.", 2)


@pytest.mark.parametrize(
    ("resume", "words"),
    [
        ({"nobody": True}, "'nobody', but no open call has this id or index; the open calls are 'call_1'"),
        ({3: True}, "3, but no open call has this id"),
        ({True: True}, "True, but no open call has this id"),
        ({"call_1": True, 0: True}, "decides twice"),
        ({"call_1": 3}, "resume has 3 for the call 'call_1'"),
        (
            {"call_1": Approve(expected={"order": 8})},
            "made for the arguments {'order': 8}, but the call has {'order': 7}",
        ),
        ({"call_1": Approve({"order": "many"})}, "changed arguments of the call 'call_1' cannot be used"),
        (3, "resume must be True, or a dict of decisions"),
    ],
    ids=["id", "index", "bool", "twice", "no decision", "expected", "arguments", "no mapping"],
)
async def test_a_decision_that_does_not_fit_is_refused(resume: Any, words: str) -> None:
    """Nothing runs, and the text names the open calls or the difference."""
    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError) as caught:
        await shop.run(history, resume=resume)
    assert words in str(caught.value)
    assert shop.ran == []


async def test_decisions_without_open_calls_are_refused() -> None:
    """A second click on "approve" does not pass silently."""
    shop = Shop("Done.")
    with pytest.raises(ConfigurationError, match="have no open calls"):
        await shop.run("Go", resume={"call_1": True})
    assert (await shop.run("Go", resume=True)).text == "Done."


async def test_nothing_in_the_history_can_approve() -> None:
    """A call that the history says nothing of is still asked for by its tool."""
    shop = Shop()
    asked = {"id": "call_1", "type": "function", "function": {"name": "refund", "arguments": '{"order": 7}'}}
    for recorded in ([], [{"index": 0}], "approved", [{"index": 0, "reason": "x", "approved": True}]):
        history = [{"role": "assistant", "content": None, "tool_calls": [asked], "waiting": recorded}]
        response = await shop.run(history, resume={})
        assert (response.stop, shop.ran) == ("waiting", [])


async def test_typed_events_say_what_waits() -> None:
    """`CallWaiting` comes for each call that is reached, in place of `ToolCallFinished`."""
    shop = Shop([call("ask", call_id="call_1", what="account")])
    async with shop.swarm.stream(shop.agent, "Go") as run:
        events = [event async for event in run]
    (event,) = [each for each in events if isinstance(each, CallWaiting)]
    assert event.to_dict() == {
        "type": "CallWaiting", "index": 0, "id": "call_1", "name": "ask", "arguments": '{"what": "account"}',
        "agent": "A", "reason": "Which account?", "data": {"of": "account"},
    }  # fmt: skip


async def test_the_provider_fails_after_an_approved_call() -> None:
    """The error's response has the result, so that resuming again finds nothing to run."""
    from aswarm import CompletionError
    from aswarm.testing import Failure

    shop = Shop([call("refund", call_id="call_1", order=7)], Failure(400), "Done.")
    history = stored(await shop.run())
    with pytest.raises(CompletionError) as caught:
        await shop.run(history, resume={"call_1": True})
    assert caught.value.response is not None
    response = await shop.run(stored(caught.value.response, history))
    assert (response.text, shop.ran) == ("Done.", [("refund", 7)])


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda: Hold(3), "reason"), (lambda: Hold("x", data=object()), "JSON")],  # type: ignore[arg-type]
    ids=["reason", "data"],
)
def test_a_hold_is_a_text_and_json(make: Any, words: str) -> None:
    """What could not be stored is refused where it is raised."""
    with pytest.raises(TypeError, match=words):
        make()


async def test_current_call_outside_of_a_call() -> None:
    """There is none."""
    with pytest.raises(ConfigurationError, match="only while a tool call runs"):
        current_call()


async def test_current_call_says_which_call_it_is() -> None:
    """Each call sees its own."""
    seen: list[Any] = []

    async def look(at: int) -> str:
        mine = current_call()
        seen.append(
            (mine.index, mine.id, mine.name, mine.arguments, mine.agent.name, mine.is_approved, mine.answer, mine.data)
        )
        return "x"

    model = ScriptedModel([[call("look", call_id="a", at=1), call("look", call_id="b", at=2)], "Done."])
    await AsyncSwarm(model.client()).run(Agent(name="A", functions=[look]), "Go")
    assert sorted(seen) == [
        (0, "a", "look", '{"at": 1}', "A", False, None, None),
        (1, "b", "look", '{"at": 2}', "A", False, None, None),
    ]


def test_approve_must_be_a_bool_or_a_function() -> None:
    """A str would be a mistake that approves nothing."""
    with pytest.raises(ConfigurationError, match="approve must be"):

        @tool(approve="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        def refund() -> None: ...


async def test_an_async_approve_and_one_that_fails() -> None:
    """`approve` may be async; if it raises, the model is told and nothing runs."""
    ran: list[str] = []

    async def check(arguments: dict[str, Any], variables: Mapping[str, Any]) -> bool:
        return bool(1 / arguments["divisor"])

    @tool(approve=check)
    def act(divisor: int) -> str:
        ran.append("act")
        return "x"

    model = ScriptedModel([[call("act", divisor=0)], [call("act", divisor=1)], "Done."])
    response = await AsyncSwarm(model.client()).run(Agent(functions=[act]), "Go")
    assert (response.stop, told(response), ran) == ("waiting", ["Error: ZeroDivisionError: division by zero"], [])


@pytest.mark.parametrize(
    "decision",
    [
        {"deny": 3}, {"deny": {"reason": "x"}}, {"deny": None}, {"approve": "no"}, {"approve": None},
        {"reason": "x", "deny": True}, {"Deny": "x"}, {"denied": True},
        {"approve": {"argument": {"order": 8}}}, {"approve": True, "deny": "x"}, {"decision": "reject"}, {},
        Answer(False), {"answer": False}, None, 1,
    ],
    ids=str,
)  # fmt: skip
async def test_a_decision_with_a_mistake_never_runs_the_call(decision: Any) -> None:
    """A refusal that is written wrongly must not approve."""
    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError, match=r"resume (has|answers)"):
        await shop.run(history, resume={"call_1": decision})
    assert shop.ran == []


@pytest.mark.parametrize("form", [{"reason": "no", "deny": True}, {"Deny": "no"}, {"denied": True}], ids=str)
async def test_a_mapping_that_is_no_form_is_no_answer_to_a_question(form: Any) -> None:
    """A function that asked would take it for consent."""
    ran: list[str] = []

    @tool(may_wait=True)
    async def pay() -> str:
        if not current_call().is_approved:
            raise Hold("From which account?")
        ran.append("pay")
        return "paid"

    agent, swarm = Agent(functions=[pay]), AsyncSwarm(ScriptedModel([call("pay", call_id="c"), "Done."]).client())
    first = await swarm.run(agent, "Go")
    with pytest.raises(ConfigurationError, match="a decision is True, False"):
        await swarm.run(agent, stored(first), resume={"c": form})
    assert ran == []


@pytest.mark.parametrize("key", ["9" * 5000, True, 1.0, "01", " 1", None], ids=lambda key: str(key)[:5])
async def test_a_key_of_another_form_names_no_call(key: Any) -> None:
    """Decisions may come from a browser: a long number is no other error, and only the index itself is an index."""
    shop = Shop([call("note", call_id="a", text="1"), call("note", call_id="b", text="2")], "Done.")
    first = await shop.run(execute_tools=False)
    with pytest.raises(ConfigurationError, match=r"no open call has this id or index; the open calls are 'a', 'b'"):
        await shop.run(stored(first), resume={key: True})
    assert shop.ran == []


async def test_nothing_in_the_history_can_approve_a_plain_function() -> None:
    """A key that says nothing counts as no key."""
    shop = Shop("Done.")
    asked = {"id": "call_1", "type": "function", "function": {"name": "note", "arguments": '{"text": "1"}'}}
    history = [{"role": "assistant", "content": None, "tool_calls": [asked], "waiting": []}]
    response = await shop.run(history, resume={})
    assert (response.stop, response.waiting[0].reason, shop.ran) == ("waiting", "not decided", [])


async def test_an_answer_with_a_key_of_other_code_is_an_answer() -> None:
    """Only our own record makes a tool message no answer."""
    shop = Shop([call("note", call_id="call_1", text="1")], "Done.")
    first = await shop.run(execute_tools=False)
    answer = {"role": "tool", "tool_call_id": "call_1", "content": "noted", "waiting": False}
    response = await shop.run([*stored(first), answer], resume=True)
    assert (response.text, shop.ran) == ("Done.", [])


async def test_looking_at_the_response_changes_nothing() -> None:
    """A reader that looks at `run.response` in the middle of a turn gets the same end as one that does not."""
    ends: list[Any] = []
    for looks in (False, True):
        shop = Shop([call("transfer_to_other"), call("refund", order=7), call("slow_leave")], "Done.")
        third = Agent(name="Third")

        async def slow_leave(target: Agent = third) -> Agent:
            await anyio.sleep(0.05)
            return target

        shop.agent.functions.append(function_tool(slow_leave, name="slow_leave", description="", parameters=EMPTY))
        async with shop.swarm.stream(shop.agent, "Go", {"limit": 10}) as run:
            async for event in run:
                if looks:
                    assert run.response.messages is not event
        ends.append((run.response.agent.name, run.response.stop, told(run.response)))
    assert ends[0] == ends[1]


async def test_the_note_shows_what_the_user_changed() -> None:
    """And not what a middleware made of it."""

    def rewrite(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            call.arguments = '{"order": 99}'
            return await handlers.call_tool(call, context, started)

        return dataclasses.replace(handlers, call_tool=call_tool)

    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    shop.swarm = AsyncSwarm(shop.model.client(), middleware=[rewrite])
    response = await shop.run(history, resume={"call_1": Approve({"order": 8})})
    assert told(response) == ['(run with arguments changed by the user: {"order": 8})\nrefunded 99']


async def test_what_waits_keeps_no_frames_alive() -> None:
    """A response that is stored for days must not hold the objects of its run."""

    class Big:
        """Something that a function has in a local variable."""

    found: list[Any] = []

    @tool(may_wait=True)
    async def ask() -> str:
        big = Big()
        found.append(weakref.ref(big))
        raise Hold("Which?")

    gc.disable()
    try:
        model = ScriptedModel([[call("ask")]])
        await AsyncSwarm(model.client()).run(Agent(functions=[ask]), "Go")
        assert found[0]() is None
    finally:
        gc.enable()


def test_a_step_of_swarm_runs_what_needs_approval() -> None:
    """`handle_tool_calls` is a decision of the caller; what waits all the same is answered with an error."""

    @tool(approve=True)
    def refund() -> str:
        return "refunded"

    browser = external_tool(name="browser", description="Opens a page.", parameters=PARAMETERS)
    named = [("refund", "{}"), ("browser", "{}")]
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": text}} for name, text in named]
    response = Swarm(ScriptedModel([]).client()).handle_tool_calls(calls, [refund, browser], {}, debug=False)
    assert told(response) == ["refunded", "Error: the call waits for a decision: runs outside of this program"]


@pytest.mark.parametrize("arguments", [5, {"order": object()}], ids=["number", "object"])
async def test_changed_arguments_are_a_json_object(arguments: Any) -> None:
    """Anything else could not be told to the model."""
    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError, match="must be a JSON object"):
        await shop.run(history, resume={"call_1": {"approve": {"arguments": arguments}}})


async def test_what_the_model_sent_may_be_no_json() -> None:
    """Then no arguments are those that were expected, and those of a user run the call."""
    shop = Shop([call("refund", "not JSON", call_id="call_1")], "Done.")
    history = stored(await shop.run(execute_tools=False))
    with pytest.raises(ConfigurationError, match="but the call has 'not JSON'"):
        await shop.run(history, resume={"call_1": Approve(expected={"order": 7})})
    await shop.run(history, resume={"call_1": Approve({"order": 8})})
    assert shop.ran == [("refund", 8)]


async def test_arguments_for_a_function_that_is_gone() -> None:
    """The model is told that there is no such function, as of any call."""
    shop = Shop([call("gone", call_id="call_1")], "Done.")
    history = stored(await shop.run(execute_tools=False))
    response = await shop.run(history, resume={"call_1": Approve({"order": 8})})
    assert "Error: Tool gone not found." in told(response)[0]
