"""Calls that wait for a decision, with `Swarm`: where their functions run, and that decisions reach them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aswarm import Agent, CallWaiting, Hold, Reply, Response, Swarm, current_call
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.blocking.blocking import CLIENTS, FACES, consume
from tests.support.run.one_turn import contents

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
        assert (first.stop, first.open_calls[0].reason, first.open_calls[0].data) == (
            "waiting",
            "Which account?",
            {"order": 7},
        )
        history = stored(first)
        second = consume(swarm, agent, face, history, resume={"call_1": Reply("the second")})
    assert (second.text, contents(second)) == ("Done.", ["refunded to the second"])
    assert ran == [(True, {"order": 7}, "the second")]
    check_history([*history, *second.messages])


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
