"""`fold` and `Facts`: at every cut, a log gives the history of its run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, agent_tool, tool
from aswarm._record.entries import Entry
from aswarm._record.facts import CallKey, Facts
from aswarm._record.fold import fold
from aswarm._values.messages import WAITING, normalize
from aswarm._values.wire_messages import to_wire
from aswarm.conversations import MemoryStore
from aswarm.runs import LocalRuns, NewRun
from aswarm.serve.wires.turns import Turns
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.runs.kept_runs import entries_of, types_of
from tests.support.runs.run_logs import Scene, logged_now, scenes

pytestmark = pytest.mark.slow
Json = dict[str, Any]


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def without_marks(messages: list[Json]) -> list[Json]:
    """Return the messages without the marks of waiting calls: a run marks the calls that it does not reach only at its end."""
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
            calls=[call("transfer_to_b", call_id="c1"), call("hand", call_id="c1", n=0), call("ask", call_id="c1", n=0)]
        ),
        *["The end."] * 5,
    ],
)


@example(AGENT_TWICE)
@example(HANDOFFS_BEFORE_A_CALL_THAT_WAITS)
@given(scenes())
def test_a_log_gives_the_response_at_every_event(scene: Scene) -> None:
    """With calls one after another, the fold of the log so far is the response of the run at that moment."""

    def check(event: Any, folded: Any, response: Any) -> None:
        messages = without_marks(plain(response.messages))
        if folded._is_resumed_turn:  # the response has the decisions of the user earlier than the events
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
    """Cut anywhere, a log gives a history that a run can continue: the first messages, and answers of the last turn."""
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


def fold_of(log: list[tuple[str, Json]]) -> Any:
    return fold(Entry(seq, 0, kind, fields) for seq, (kind, fields) in enumerate(log))


def calls_of(count: int) -> list[Json]:
    return [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(count)]


def test_a_call_that_had_not_started_beside_a_handoff_is_interrupted() -> None:
    """The agent that takes over has an answer to each call before it."""
    done = {"index": 0, "id": "c0", "name": "f", "content": "over", "error": None, "handoff": "B"}
    log = [
        ("RunStarted", {"run_id": "r", "agent": "A", "messages": [], "calls": []}),
        (
            "CompletionFinished",
            {"message": {"role": "assistant", "content": None, "tool_calls": calls_of(2)}, "usage": {}},
        ),
        ("ToolCallStarted", {"index": 0, "id": "c0", "name": "f"}),
        ("ToolCallFinished", done),
    ]
    folded = fold_of(log)
    assert [message["content"] for message in folded.messages[1:]] == ["over", "not run: interrupted"]
    assert folded.active_agent == "B"


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("has_started", [False, True])
def test_a_call_that_waits_beside_a_handoff_is_unknown_if_functions_have_run_inside(
    *, resumed: bool, has_started: bool
) -> None:
    """This holds in the run that started to wait, and in a run that does not reach the call."""
    open_ones = [{"index": n, "id": f"c{n}", "name": "f"} for n in range(2)]
    held = {**open_ones[0], "reason": "?", "kind": "question", "data": {"started_inside": has_started}}
    done = {**open_ones[1], "content": "over", "error": None, "handoff": "B"}
    if resumed:
        open_ones[0]["started_inside"] = has_started
        log: list[Any] = [("RunStarted", {"run_id": "r", "agent": "A", "messages": [], "calls": open_ones})]
    else:
        message = {"role": "assistant", "content": None, "tool_calls": calls_of(2)}
        log = [
            ("RunStarted", {"run_id": "r", "agent": "A", "messages": [], "calls": []}),
            ("CompletionFinished", {"message": message, "usage": {}}),
            ("ToolCallStarted", open_ones[0]),
            ("CallWaiting", held),
        ]
    log += [("ToolCallStarted", open_ones[1]), ("ToolCallFinished", done)]
    folded = fold_of(log)
    text = "cancelled; its outcome is unknown" if has_started else "not run: interrupted"
    assert [message["content"] for message in folded.messages if message["role"] == "tool"] == [text, "over"]


def test_a_call_that_had_asked_inside_and_then_needs_an_approval() -> None:
    """The approval has no data of its own, but functions have run inside, so the outcome is unknown."""
    open_one = {"index": 0, "id": "c0", "name": "f", "started_inside": True}
    left = {"index": 1, "id": "c1", "name": "go"}
    log: list[Any] = [
        ("RunStarted", {"run_id": "r", "agent": "A", "messages": [], "calls": [open_one, left]}),
        ("CallWaiting", {"index": 0, "id": "c0", "name": "f", "reason": "?", "kind": "approval", "data": None}),
        ("ToolCallStarted", left),
        ("ToolCallFinished", {**left, "content": "over", "error": None, "handoff": "B"}),
    ]
    folded = fold_of(log)
    assert [message["content"] for message in folded.messages] == ["cancelled; its outcome is unknown", "over"]


@pytest.mark.parametrize("depth", [1, 3])
async def test_a_log_that_is_cut_after_the_wait_gives_the_whole_history(depth: int) -> None:
    """The entry of a call that waits has the inner run, like the history. The log has no second copy, and readers get less."""

    @tool(approve=True)
    async def refund(order: int) -> str:
        return f"refunded {order}"

    agent = Agent(name="Level 0", functions=[refund])
    for level in range(depth):
        agent = Agent(name=f"Level {level + 1}", functions=[agent_tool(agent, name="below")])
    steps: list[Any] = [[call("below", call_id="b", request="x")]] * depth
    model = ScriptedModel([*steps, [call("refund", call_id="r", order=1)]])
    async with (
        MemoryStore() as store,
        AsyncSwarm(model.client()) as swarm,
        LocalRuns(swarm, store=store, agents=[agent]) as runs,
    ):
        new = NewRun("ann", "c", "Go")
        entries = await entries_of(await runs.start(new))
        stored = await store.load("ann/c")
    assert stored is not None
    at = types_of(entries).index("CallWaiting")
    assert fold(entries[: at + 1]).messages == stored.messages
    assert fold(entries).messages == stored.messages
    assert "MessagesRecorded" not in types_of(entries)
    shown = entries[at].to_dict()
    assert shown["data"] == stored.open_calls[0].data
    assert not any(key.startswith("_") for key in shown)
    assert [*Facts(entries).waiting.values()] == [entries[at].fields]


@pytest.mark.parametrize("is_cut", [False, True])
def test_an_attempt_continues_a_turn_that_an_earlier_attempt_had_ended(is_cut: bool) -> None:
    """The earlier process died after TurnFinished and before the end of the run. The turn counts that the run has at last."""
    made, done = (
        calls_of(2),
        [{"index": n, "id": f"c{n}", "name": "f", "content": f"done {n}", "error": None} for n in (0, 1)],
    )
    stopped = {"turn": 1, "answers": [0, {"index": 1, "content": "not run: interrupted"}]}
    log: list[Any] = [
        ("RunStarted", {"run_id": "r", "conversation": "c", "agent": "A", "messages": [], "calls": []}),
        ("TurnStarted", {"agent": "A", "turn": 1}),
        ("CompletionFinished", {"message": {"role": "assistant", "content": None, "tool_calls": made}, "usage": {}}),
        ("ToolCallStarted", done[0]),
        ("ToolCallFinished", done[0]),
        ("TurnFinished", stopped),
        ("ToolCallStarted", done[1]),
        ("ToolCallFinished", done[1]),
        *([] if is_cut else [("TurnFinished", {"turn": 1, "answers": [0, 1]})]),
    ]
    folded = fold_of(log)
    assert [message["content"] for message in folded.messages[1:]] == ["done 0", "done 1"]
    facts = Facts(Entry(seq, 0, kind, fields) for seq, (kind, fields) in enumerate(log))
    again = Entry(99, 0, "TurnFinished", {"turn": 1, "answers": [0, 1]})
    assert facts.has(2, again) is not is_cut
    turns = Turns()
    turns.start_run(Entry(0, 0, *log[0]))
    turns.start_turn(Entry(1, 0, *log[1]))
    turns.complete(Entry(2, 0, "CompletionFinished", {**log[2][1], "finish_reason": None}))
    for kind, fields in log[3:5]:
        turns.of(Entry(0, 0, kind, fields)).is_answered = kind == "ToolCallFinished"
    assert [text for _, text in turns.answers(Entry(0, 0, "TurnFinished", stopped))] == ["not run: interrupted"]
    turns.of(Entry(0, 0, *log[6]))
    assert [text for _, text in turns.answers(Entry(0, 0, "RunStopped", {}))] == ["cancelled; its outcome is unknown"]


# --- entries of a newer version ---

TURN = Entry(1, 0, "TurnStarted", {"agent": "Boss", "turn": 1})
LATER = Entry(2, 0, "Later", {"instructions": "secret", "index": 0})


def test_an_unknown_type_changes_neither_the_history_nor_the_facts() -> None:
    """The run continues as if the entry were missing."""
    folded, facts = fold([TURN, LATER]), Facts([TURN, LATER])
    assert folded.messages == []
    assert not (facts.completions or facts.started or facts.waiting or facts.finished)


def test_an_unknown_type_inside_code_is_not_taken_for_a_result() -> None:
    """Otherwise the call would be answered from this entry, and would never run."""
    value = {"type": "Later", "index": 0, "name": "erase"}
    facts = Facts([TURN, Entry(2, 0, "ToolProgress", {"index": 0, "value": value, "_inside": True})])
    assert CallKey(1, 0, 0) not in facts.finished
    assert not facts.made
