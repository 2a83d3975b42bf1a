"""Calls that wait for a decision: the calls beside them, the data that a user sees, and each decision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    ConfigurationError,
    Hold,
    OpenCall,
    Reply,
    Swarm,
    current_call,
    external_tool,
    open_calls,
    tool,
)
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.run.one_turn import contents
from tests.support.run.waiting_shop import Shop, stored

EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


async def test_a_call_that_needs_approval_stays_open() -> None:
    """The run stops, and the open call is listed and has no tool message."""
    shop = Shop([call("refund", order=7)])
    response = await shop.run()
    open_call = OpenCall(0, response.open_calls[0].id, "refund", '{"order": 7}', "A", "needs approval", None)
    assert (response.stop, response.open_calls, shop.ran) == ("waiting", [open_call], [])
    assert open_calls(stored(response)) == response.open_calls
    check_history(response.messages, allow_open=True)


async def test_an_approved_call_runs_and_the_model_goes_on() -> None:
    """An approved function runs with the arguments that the user has seen; no request has a key of ours."""
    shop = Shop([call("refund", call_id="call_1", order=7)], "Done.")
    history = stored(await shop.run())
    response = await shop.run(history, resume={"call_1": Approve(expected={"order": 7})})
    assert (response.text, shop.ran, response.open_calls) == ("Done.", [("refund", 7)], [])
    assert "waiting" not in json.dumps(shop.model.requests[-1].body)
    check_history([*history, *response.messages])


async def test_a_function_that_asks_gets_the_answer() -> None:
    """The data of Hold is in the history; the function runs again with the answer and its data."""
    shop = Shop([call("ask", call_id="call_1", what="account")], "Done.")
    first = await shop.run()
    assert (first.open_calls[0].reason, first.open_calls[0].data) == ("Which account?", {"of": "account"})
    response = await shop.run(stored(first), resume={"call_1": Reply("the second")})
    assert shop.ran == [("ask", "the second", {"of": "account"})]
    assert contents(response) == ["took the second"]


async def test_a_function_may_ask_again() -> None:
    """The new question is in the messages of the resumed run, and in the stored history."""
    shop = Shop([call("ask", call_id="call_1", what="account")], "Done.")
    before = stored(await shop.run())

    @tool(may_wait=True)
    async def ask(what: str) -> str:
        raise Hold("And which bank?", data=current_call().data["of"])

    shop.agent.functions = [ask]
    second = await shop.run(before, resume={"call_1": Reply(1)})
    history = stored(second, before)
    assert [(each.reason, each.data) for each in open_calls(history)] == [("And which bank?", "account")]
    assert second.open_calls == open_calls(history)
    third = await shop.run(history, resume={"call_1": "none"})
    assert third.text == "Done."
    assert [each["role"] for each in shop.model.requests[-1].messages] == ["system", "user", "assistant", "tool"]


async def test_external_tools_have_a_result_from_elsewhere() -> None:
    """A str or JSON data is the result of an external tool, and True is an error."""
    shop = Shop([call("browser", call_id="call_1", city="Oslo"), call("browser", call_id="call_2")], "Done.")
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError, match="external tool 'browser'"):
        await shop.run(history, resume={"call_1": True})
    response = await shop.run(history, resume={"call_1": "opened", "call_2": Reply({"title": "Ø"})})
    assert contents(response) == ["opened", '{"title": "Ø"}']
    for resume in (True, Approve.all()):
        assert (await shop.run(history, resume=resume)).stop == "waiting"


async def test_calls_that_run_and_calls_that_wait() -> None:
    """Earlier calls and independent neighbours of a call that waits run; later calls and handoffs wait with it."""
    shop = Shop(
        [call("note", text="1"), call("look", at="1"), call("refund", call_id="call_1", order=7), call("look", at="2"),
         call("transfer_to_other"), call("note", text="2")],
        "Done.",
    )  # fmt: skip
    response = await shop.run()
    assert sorted(shop.ran) == [("look", "1"), ("look", "2"), ("note", "1")]
    assert [(each.index, each.reason) for each in response.open_calls] == [(2, "needs approval"), (4, None), (5, None)]
    assert response.agent is shop.agent
    check_history(response.messages, allow_open=True, ordered=False)
    end = await shop.run(stored(response), resume={"call_1": True})
    assert (end.agent, end.text, shop.ran[3:]) == (shop.other, "Done.", [("refund", 7), ("note", "2")])


async def test_a_function_that_hands_off_closes_the_calls_that_wait() -> None:
    """A handoff by a function cannot be undone, so the calls that wait are answered as interrupted."""
    shop = Shop([call("leave"), call("refund", order=7)], "Done.")
    response = await shop.run()
    assert (response.stop, response.agent, contents(response)[1]) == ("answer", shop.other, "not run: interrupted")


def doubtful() -> str:
    """Ask until the answer is "sure"."""
    if current_call().answer != "sure":
        raise Hold("Sure?")
    return "done"


async def test_a_decision_about_a_call_that_was_not_reached(caplog: pytest.LogCaptureFixture) -> None:
    """The earlier call asks once more, so the later one waits again for the same reason, and the log says so."""
    shop = Shop([call("doubtful", call_id="a"), call("refund", call_id="b", order=2)], "Done.")
    shop.agent.functions.append(doubtful)
    first = await shop.run()
    assert "not reach" not in caplog.text
    second = await shop.run(stored(first), resume={"a": Reply("perhaps"), "b": Approve({"order": 3})})
    assert second.open_calls[1] == first.open_calls[1] == open_calls(stored(second, stored(first)))[1]
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert "decisions on calls that the run did not reach" in record.getMessage()
    assert record.__dict__["run_id"] == second.run_id
    assert shop.ran == []
    third = await shop.run(stored(second, stored(first)), resume={"a": Reply("sure"), "b": True})
    assert (third.text, shop.ran) == ("Done.", [("refund", 2)])


@pytest.mark.parametrize("decision", [True, Approve({"order": 3})], ids=repr)
async def test_a_decision_that_would_be_lost_is_refused(decision: bool | Approve) -> None:
    """The run would stop at the earlier call, and the history keeps no approval. A denial, or both decisions, are accepted."""
    steps = [call("refund", call_id="a", order=1), call("note", text="1"), call("refund", call_id="b", order=2)]
    shop = Shop(steps, "Done.")
    history = stored(await shop.run())
    with pytest.raises(ConfigurationError, match="decides on the call 'b', but not on the earlier call 'a'"):
        await shop.run(history, resume={"b": decision})
    denied = await shop.run(history, resume={"b": False})
    assert ([each.id for each in denied.open_calls if each.reason], shop.ran) == (["a"], [])
    both = await shop.run(history, resume={"b": True, "a": True})
    assert (both.text, shop.ran) == ("Done.", [("refund", 1), ("note", "1"), ("refund", 2)])


async def test_a_later_call_that_runs_together_needs_no_other_decision() -> None:
    """The calls of async functions run beside the waiting call; without concurrent calls, the decision is refused."""
    shop = Shop([call("refund", call_id="a", order=1), call("refund", call_id="b", order=2)], "Done.")
    history = stored(await shop.run())
    in_turn = AsyncSwarm(shop.model.client(), concurrent_tools=False)
    with pytest.raises(ConfigurationError, match="earlier call 'a'"):
        await in_turn.run(shop.agent, history, resume={"b": True})
    response = await shop.run(history, resume={"b": True})
    assert ([each.id for each in response.open_calls], shop.ran) == (["a"], [("refund", 2)])


async def test_a_decision_behind_a_function_that_may_hand_off() -> None:
    """If this function hands off, no call keeps the turn open, and the decided call runs."""
    steps = [call("leave"), call("refund", call_id="a", order=1), call("note", call_id="b", text="1")]
    shop = Shop(steps, "Done.")
    shop.agent.functions = [
        tool(each, approve=True) if each.__name__ == "note" else each for each in shop.agent.functions
    ]
    history = stored(await shop.run(execute_tools=False))
    response = await shop.run(history, resume={"0": True, "b": True})
    assert (response.agent, shop.ran) == (shop.other, ["leave", ("note", "1")])


async def test_a_call_that_was_not_reached_asks_about_no_invalid_arguments() -> None:
    """A call with invalid arguments fails in its turn, without a question."""
    refunds = [call("refund", order=1), call("note", text="1"), call("refund", order="many"), call("refund", order=2)]
    shop = Shop(refunds, "Done.")
    first = await shop.run()
    assert [each.arguments for each in first.open_calls if each.reason] == ['{"order": 1}', '{"order": 2}']
    second = await shop.run(stored(first), resume=Approve.all())
    assert [text for text in contents(second) if "many" in text] == [contents(second)[2]]
    assert shop.ran == [("refund", 1), ("note", "1"), ("refund", 2)]


async def test_a_middleware_that_holds_a_call_after_its_function() -> None:
    """A middleware that raises Hold after the function has run ends the run with an error, and the outcome is unknown."""

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


async def test_a_history_that_was_not_executed_is_decided_call_by_call() -> None:
    """After execute_tools=False, an undecided call stays open, whatever its function."""
    shop = Shop([call("note", call_id="a", text="1"), call("note", call_id="b", text="2")], "Done.")
    first = await shop.run(execute_tools=False)
    assert (first.stop, [each.id for each in first.open_calls]) == ("tool_calls", ["a", "b"])
    second = await shop.run(stored(first), resume={"a": True})
    assert (second.stop, shop.ran, [each.reason for each in second.open_calls]) == (
        "waiting",
        [("note", "1")],
        ["not decided"],
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda: Hold(3), "reason"), (lambda: Hold("x", data=object()), "JSON")],  # type: ignore[arg-type]
    ids=["reason", "data"],
)
def test_a_hold_is_a_text_and_json(make: Any, words: str) -> None:
    """Hold raises TypeError for a reason or data that cannot be stored."""
    with pytest.raises(TypeError, match=words):
        make()


async def test_each_call_has_its_own_current_call() -> None:
    """`current_call()` is different in each of two concurrent calls, and an error outside of a call."""
    with pytest.raises(ConfigurationError, match="only while a tool call runs"):
        current_call()
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
    """`approve` is a bool or a function, so a str is an error."""
    with pytest.raises(ConfigurationError, match="approve must be"):

        @tool(approve="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        def refund() -> None: ...


async def test_an_async_approve_and_one_that_fails() -> None:
    """`approve` may be async; if it raises, the model gets the error and nothing runs."""
    ran: list[str] = []

    async def check(arguments: dict[str, Any], variables: Mapping[str, Any]) -> bool:
        return bool(1 / arguments["divisor"])

    @tool(approve=check)
    def act(divisor: int) -> str:
        ran.append("act")
        return "x"

    model = ScriptedModel([[call("act", divisor=0)], [call("act", divisor=1)], "Done."])
    response = await AsyncSwarm(model.client()).run(Agent(functions=[act]), "Go")
    assert (response.stop, contents(response), ran) == ("waiting", ["Error: ZeroDivisionError: division by zero"], [])


def test_a_step_of_swarm_runs_calls_that_need_approval() -> None:
    """`handle_tool_calls` is a decision of the caller; an external tool is answered with an error."""

    @tool(approve=True)
    def refund() -> str:
        return "refunded"

    browser = external_tool(name="browser", description="Opens a page.", parameters=EMPTY)
    named = [("refund", "{}"), ("browser", "{}")]
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": text}} for name, text in named]
    response = Swarm(ScriptedModel([]).client()).handle_tool_calls(calls, [refund, browser], {}, debug=False)
    assert contents(response) == ["refunded", "Error: the call waits for a decision: runs outside of this program"]
