"""Calls that wait for a decision, with `Swarm`: where their functions run, and that decisions reach them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aswarm import (
    Agent,
    Answer,
    Approve,
    CallWaiting,
    ConfigurationError,
    Hold,
    Response,
    Swarm,
    current_call,
    external_tool,
    tool,
)
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.blocking.blocking import CLIENTS, FACES, consume, results

USER = {"role": "user", "content": "Go"}
every_face = pytest.mark.parametrize("face", FACES)
every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())


def is_caller() -> bool:
    """Whether this is the thread of the caller."""
    return threading.current_thread() is threading.main_thread()


def stored(response: Response, *before: Any) -> list[Any]:
    """The history as it comes back from a storage."""
    history: list[Any] = json.loads(json.dumps([*(before or (USER,)), *response.messages]))
    return history


@every_client
@every_face
def test_a_plain_function_asks_and_gets_the_answer_in_the_callers_thread(face: str, client: Callable[..., Any]) -> None:
    """Hold crosses from the caller's thread to the run; the decision crosses back, and the function runs once with it."""
    ran: list[Any] = []

    def refund(order: int) -> str:
        if (answer := current_call().answer) is None:
            raise Hold("Which account?", data={"order": order})
        ran.append((is_caller(), current_call().data, answer))
        return f"refunded to {answer}"

    steps = [call("refund", call_id="call_1", order=7), "Done."]
    agent = Agent(functions=[refund])
    with Swarm(client(*steps)) as swarm:
        first = consume(swarm, agent, face, "Go")
        assert (first.stop, first.waiting[0].reason, first.waiting[0].data) == (
            "waiting",
            "Which account?",
            {"order": 7},
        )
        history = stored(first)
        second = consume(swarm, agent, face, history, resume={"call_1": Answer("the second")})
    assert (second.text, results(second)) == ("Done.", ["refunded to the second"])
    assert ran == [(True, {"order": 7}, "the second")]
    check_history([*history, *second.messages])


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_approve_may_be_a_plain_or_an_async_function(is_async: bool) -> None:
    """It sees arguments and context and decides for each call; changed arguments reach the function."""
    ran: list[int] = []

    def large(arguments: Mapping[str, Any], context: Mapping[str, Any]) -> str | bool:
        return "It is large." if arguments["amount"] > context["limit"] else False

    async def large_async(arguments: Mapping[str, Any], context: Mapping[str, Any]) -> str | bool:
        return large(arguments, context)

    @tool(approve=large_async if is_async else large)
    def pay(amount: int) -> str:
        ran.append(amount)
        return f"paid {amount}"

    model = ScriptedModel([[call("pay", amount=5), call("pay", call_id="b", amount=50)], "Done."])
    agent = Agent(functions=[pay])
    with Swarm(model.client()) as swarm:
        first = swarm.run(agent, "Go", {"limit": 10})
        assert ([each.reason for each in first.waiting], ran) == (["It is large."], [5])
        second = swarm.run(agent, stored(first), {"limit": 10}, resume={"b": Approve({"amount": 9})})
    assert ran == [5, 9]
    assert results(second) == ['(run with arguments changed by the user: {"amount": 9})\npaid 9']


@every_face
def test_external_tools_and_denied_calls(face: str) -> None:
    """The model reads a result from elsewhere and a denial in call order, and no function runs."""

    @tool(approve=True)
    def erase() -> str:
        raise AssertionError("a denied call ran")

    browser = external_tool(
        name="browser", description="Opens a page.", parameters={"type": "object", "properties": {}}
    )
    model = ScriptedModel([[call("browser", call_id="a"), call("erase", call_id="b")], "Done."])
    agent = Agent(functions=[erase, browser])
    with Swarm(model.client()) as swarm:
        first = consume(swarm, agent, face, "Go")
        assert [each.reason is None for each in first.waiting] == [False, False]
        history = stored(first)
        second = consume(swarm, agent, face, history, resume={"a": Answer({"title": "Ø"}), "b": False})
        assert results(second) == ['{"title": "Ø"}', "not run: denied by the user"]
        with pytest.raises(ConfigurationError, match="have no open calls"):
            consume(swarm, agent, face, [*history, *second.messages], resume={"a": True})


def test_typed_events_name_the_call_that_waits() -> None:
    """`CallWaiting` comes while the run goes on; Swarm's dict events are the same as without it."""

    def ask() -> str:
        raise Hold("Why?")

    model = ScriptedModel([call("ask", call_id="call_1")] * 2)
    agent = Agent(functions=[ask])
    with Swarm(model.client()) as swarm:
        with swarm.stream(agent, "Go") as run:
            waiting = [event for event in run if isinstance(event, CallWaiting)]
        assert [(event.id, event.reason) for event in waiting] == [("call_1", "Why?")]
        events = list(swarm.run(agent, "Go", stream=True))
    assert {key for event in events for key in event} <= {"role", "content", "sender", "tool_calls", "delim", "response"} | {
        "function_call", "refusal"
    }  # fmt: skip
    assert events[-1]["response"].stop == "waiting"
