"""Drawn runs: at any moment the record is a valid history, and what it sends is what the API takes."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, Result
from aswarm._run.call import Call
from aswarm._run.outcome import ToolOutcome
from aswarm._run.state import RunState
from aswarm._values.messages import normalize, to_wire
from aswarm.testing import check_history
from tests.support.run.recording import FUNCTIONS, USER, WHOLE, Json, complete, finish, told, wire_call

pytestmark = pytest.mark.slow

_ids = st.sampled_from(["x", "y", "z"])
_calls = st.lists(
    st.builds(wire_call, _ids, st.sampled_from(["look", "other", "missing", "slow"]), st.sampled_from(["", "{}", "{"])),
    max_size=3,
)


@st.composite
def block(draw: st.DrawFn) -> list[Json]:
    """An assistant message with some of its answers, or another message, or an answer without its call."""
    kind = draw(st.sampled_from(["user", "text", "nothing", "calls", "calls", "orphan"]))
    if kind == "user":
        return [USER]
    if kind == "orphan":
        return [told(draw(_ids))]
    calls = draw(_calls) if kind == "calls" else []
    message = {
        "role": "assistant",
        "content": "Hello" if kind == "text" else None,
        "sender": "A",
        "reasoning_content": "Hm",
    }
    answers = [told(made["id"], tool_name=made["function"]["name"]) for made in calls if draw(st.booleans())]
    return [{**message, "tool_calls": calls or None}, *draw(st.permutations(answers))]


_histories = st.lists(block(), max_size=5).map(
    lambda message_blocks: [message for part in message_blocks for message in part]
)
_progress = st.sampled_from(["not started", "started", "finished", "failed", "handed off"])


def progress(call: Call, how: str, key: str) -> None:
    """Bring a call to this point."""
    if how != "not started":
        call.start()
    if how == "finished":
        call.finish(ToolOutcome(f"told {key}", Result(context_variables={key: key})))
    elif how == "failed":
        call.finish(ToolOutcome("Error: no", error=ValueError("no")))
    elif how == "handed off":
        finish(call, "over", agent=Agent(name=f"to {key}", functions=FUNCTIONS))


def check_sent(sent: list[Json]) -> None:
    """What goes on the wire is valid, has no keys of ours, and no nulls but the content beside calls."""
    check_history(sent)
    for message in sent:
        assert not {"sender", "tool_name"} & message.keys()
        assert message.get("content") is not None or message.get("tool_calls")
        assert all(value is not None for key, value in message.items() if key != "content")
        assert "tool_calls" not in message or message["tool_calls"]
        assert all(made["function"]["arguments"] for made in message.get("tool_calls", ()))


@given(_histories, st.lists(st.tuples(_calls, st.lists(_progress, min_size=3, max_size=3)), max_size=4))
def test_every_snapshot_is_valid_and_every_request_too(
    history: list[Json], turns: list[tuple[list[Json], list[str]]]
) -> None:
    """At any moment of any run the response continues the history validly, and what is sent is the whole of it."""
    kept = copy.deepcopy(history)
    state = RunState(Agent(name="A", functions=FUNCTIONS), history, None, resume=True)
    full = [*to_wire(normalize(history)), *state.response.messages]
    for calls, hows in [([], ["finished"] * 3), *turns]:
        if calls:
            complete(state, *calls)
        made = state.response.messages
        for number, (call, how) in enumerate(zip(state.turn.calls, hows, strict=False)):
            progress(call, how, f"k{number}")
            response = state.response
            assert response.messages[: len(made)] == made
            handed = [item.outcome.agent for item in state.turn.calls if item.outcome and item.outcome.agent]
            assert response.agent is (handed[-1] if handed else state.agent)
            check_tail(response.messages, has_handed_off=bool(handed))
        for number, call in enumerate(state.turn.calls):
            if call.outcome is None:
                progress(call, "finished", f"k{number}")
        state.end_group(state.turn.calls)
        state.end_turn()
        full = normalize([*history, *state.response.messages])
        sent = state.request(None, WHOLE).body["messages"]
        assert sent == to_wire(full)
        check_sent(sent)
    assert history == kept


def check_tail(messages: list[Json], *, has_handed_off: bool) -> None:
    """The part of a history that was made in this run is valid; after a handoff nothing in it is open."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    check_history(messages[first:], allow_open=not has_handed_off)
