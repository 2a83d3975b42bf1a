"""fold: what a log says is what the run has left, at every cut."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aswarm._record.entries import Entry
from aswarm._record.fold import fold
from aswarm._values.messages import WAITING, normalize, to_wire
from aswarm.testing import ScriptedAnswer, call, check_history
from tests.support.runs.run_logs import Scene, logged_now, scenes

pytestmark = pytest.mark.slow
Json = dict[str, Any]


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def without_marks(messages: list[Json]) -> list[Json]:
    """The messages without what calls wait for: calls that a run does not reach are marked at its end only."""
    left = [{key: value for key, value in message.items() if key != WAITING} for message in messages]
    return [new for new, old in zip(left, messages, strict=True) if not (old["role"] == "tool" and WAITING in old)]


AGENT_TWICE = Scene(
    [
        ScriptedAnswer(
            calls=[
                call("transfer_to_b", call_id="c1"),
                call("transfer_to_b", call_id="c1"),
                call("ask", call_id="c1", n=0),
            ]
        ),
        *["The end."] * 5,
    ],
    {"ask": True},
    cut=None,
    max_turns=2,
    concurrent=False,
)

HANDOFFS_BEFORE_A_CALL_THAT_WAITS = replace(
    AGENT_TWICE,
    script=[
        ScriptedAnswer(
            calls=[
                call("transfer_to_b", call_id="c1"),
                call("hand", call_id="c1", n=0),
                call("ask", call_id="c1", n=0),
            ]
        ),
        *["The end."] * 5,
    ],
)


@example(AGENT_TWICE)
@example(HANDOFFS_BEFORE_A_CALL_THAT_WAITS)
@given(scenes())
def test_a_log_says_at_every_event_what_the_response_says(scene: Scene) -> None:
    """With calls one after another, the fold of the log so far is the response of the run at that moment."""

    def check(event: Any, folded: Any, response: Any) -> None:
        messages = without_marks(plain(response.messages))
        if folded._is_resumed_turn:  # what a user has decided is known before its events; the turn's end says it
            return
        assert without_marks(folded.response_messages) == messages
        assert folded.active_agent == response.agent.name
        assert folded.context == plain(response.context_variables)

    found = logged_now(scene, check)
    for log, response in zip(found.logs, found.responses, strict=True):
        folded = fold(log)
        assert folded.response_messages == plain(response.messages)
        assert folded.active_agent == response.agent.name
        assert folded.context == plain(response.context_variables)
        assert folded.usage["requests"] == response.usage.requests


@given(scenes(concurrent=True), st.data())
def test_a_cut_log_is_a_valid_history(scene: Scene, data: st.DataObject) -> None:
    """Cut anywhere, a log gives a history that a run can continue: a beginning of the whole one, and answers of its last turn."""
    found = logged_now(scene)
    for log, history in zip(found.logs, found.histories, strict=True):
        at = data.draw(st.integers(1, len(log)))
        folded = fold(log[:at])
        messages = [*history, *folded.messages]
        assert normalize(messages) == messages
        to_wire(messages)
        whole = without_marks(fold(log).response_messages)
        heads = [message for message in whole if message["role"] != "tool"]
        own = [message for message in without_marks(folded.response_messages) if message["role"] != "tool"]
        assert own == heads[: len(own)]
        check_history(messages, allow_open=True, ordered=False)


def test_a_call_that_had_not_begun_beside_a_handoff_is_told_as_interrupted() -> None:
    """The agent that takes over has an answer to each call before it."""
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
    done = {"index": 0, "id": "c0", "name": "f", "content": "over", "error": None, "handoff": "B"}
    log = [
        ("RunStarted", {"run_id": "r", "agent": "A", "messages": [], "calls": []}),
        ("CompletionFinished", {"message": {"role": "assistant", "content": None, "tool_calls": calls}, "usage": {}}),
        ("ToolCallStarted", {"index": 0, "id": "c0", "name": "f"}),
        ("ToolCallFinished", done),
    ]
    folded = fold(Entry(seq, 0, kind, fields) for seq, (kind, fields) in enumerate(log))
    assert [message["content"] for message in folded.messages[1:]] == ["over", "not run: interrupted"]
    assert folded.active_agent == "B"


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("has_started", [False, True])
def test_a_call_that_waits_beside_a_handoff_says_whether_functions_have_run_inside(
    *, resumed: bool, has_started: bool
) -> None:
    """Of an agent tool, in the run that began to wait, and in one that does not reach the call."""
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
    open_ones = [{"index": n, "id": f"c{n}", "name": "f"} for n in range(2)]
    held = {**open_ones[0], "reason": "?", "kind": "question", "data": {"started_inside": has_started}}
    done = {**open_ones[1], "content": "over", "error": None, "handoff": "B"}
    if resumed:
        open_ones[0]["started_inside"] = has_started
        log: list[Any] = [("RunStarted", {"run_id": "r", "agent": "A", "messages": [], "calls": open_ones})]
    else:
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        log = [
            ("RunStarted", {"run_id": "r", "agent": "A", "messages": [], "calls": []}),
            ("CompletionFinished", {"message": message, "usage": {}}),
            ("ToolCallStarted", open_ones[0]),
            ("CallWaiting", held),
        ]
    log += [("ToolCallStarted", open_ones[1]), ("ToolCallFinished", done)]
    folded = fold(Entry(seq, 0, kind, fields) for seq, (kind, fields) in enumerate(log))
    text = "cancelled; its outcome is unknown" if has_started else "not run: interrupted"
    assert [message["content"] for message in folded.messages if message["role"] == "tool"] == [text, "over"]


def test_a_call_that_had_asked_inside_and_then_needs_an_approval() -> None:
    """The approval has no data of its own; that functions have run inside stays true."""
    open_one = {"index": 0, "id": "c0", "name": "f", "started_inside": True}
    left = {"index": 1, "id": "c1", "name": "go"}
    log: list[Any] = [
        ("RunStarted", {"run_id": "r", "agent": "A", "messages": [], "calls": [open_one, left]}),
        ("CallWaiting", {"index": 0, "id": "c0", "name": "f", "reason": "?", "kind": "approval", "data": None}),
        ("ToolCallStarted", left),
        ("ToolCallFinished", {**left, "content": "over", "error": None, "handoff": "B"}),
    ]
    folded = fold(Entry(seq, 0, kind, fields) for seq, (kind, fields) in enumerate(log))
    assert [message["content"] for message in folded.messages] == ["cancelled; its outcome is unknown", "over"]
