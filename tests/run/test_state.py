"""The record of one run: what it hands out at any moment, why it is over, what early exits and handoffs leave."""

from __future__ import annotations

import math

import pytest

from aswarm import Agent, ConfigurationError
from aswarm._run.options import MAX_TURNS
from aswarm._run.state import RunState
from aswarm._wire.accumulator import Accumulator
from aswarm.testing import check_history
from tests.support.run.recording import (
    FUNCTIONS,
    USER,
    WHOLE,
    asking,
    complete,
    contents,
    finish,
    one_turn,
    run_of,
    told,
    wire_call,
)

# --- what is recorded -------------------------------------------------------------------------------------------------


def test_a_run_that_has_done_nothing() -> None:
    """Before anything happened the response is empty and says cancelled."""
    state = run_of(a=1)
    response = state.response
    assert (response.messages, response.agent, response.stop) == ([], state.agent, "cancelled")
    assert response.context_variables == {"a": 1}
    assert (response.usage.requests, state.partial) == (0, "")


def test_an_assistant_message_has_its_four_keys() -> None:
    """A recorded message has role, content, sender and tool_calls, and what the provider sent; sender is who spoke."""
    message = complete(run_of(), content="Hello", reasoning_content="Hm")
    assert list(message) == ["role", "content", "sender", "tool_calls", "reasoning_content"]
    assert (message["sender"], message["tool_calls"], message["reasoning_content"]) == ("A", None, "Hm")


def test_a_providers_own_sender_does_not_replace_ours() -> None:
    """A `sender` key that the provider sent does not say who spoke in this run."""
    assert complete(run_of(), content="Hello", sender="somebody")["sender"] == "A"


def test_a_tool_message_has_exactly_four_keys() -> None:
    """Tool messages are exactly role, tool_call_id, tool_name and content."""
    state = run_of()
    complete(state, wire_call())
    finish(state.turn.calls[0], "seen")
    state.end_turn()
    expected = {"role": "tool", "tool_call_id": "c", "tool_name": "look", "content": "seen"}
    assert state.response.messages[1:] == [expected]


def test_tool_messages_are_in_call_order() -> None:
    """Whatever finished first, messages are recorded in the order of the calls."""
    state = run_of()
    complete(state, wire_call("1"), wire_call("2"), wire_call("3"))
    for position in (2, 0, 1):
        finish(state.turn.calls[position], f"result {position + 1}")
    state.end_turn()
    assert contents(state) == [("1", "result 1"), ("2", "result 2"), ("3", "result 3")]


def test_usage_is_summed() -> None:
    """The usage of the completions is added up."""
    state = run_of()
    complete(state, content="a")
    complete(state, content="b")
    assert (state.response.usage.total_tokens, state.response.usage.requests) == (6, 2)


def test_the_partial_text_is_never_in_the_messages() -> None:
    """The text of an unfinished completion is `partial`, and nothing of it is a message; once recorded it is gone."""
    state = run_of()
    state.accumulator = Accumulator()
    state.accumulator.feed({"choices": [{"index": 0, "delta": {"content": "Hel"}}]})
    assert (state.partial, state.response.messages) == ("Hel", [])
    complete(state, content="Hello")
    assert state.partial == ""


def test_a_response_is_a_snapshot() -> None:
    """What was handed out does not grow, and changing its context does not change the run's."""
    state = run_of(seen=[1])
    before = state.response
    before.context_variables["seen"].append(2)
    complete(state, content="Hello")
    assert before.messages == []
    assert state.context == {"seen": [1]}


def test_after_the_end_it_is_always_the_same_response() -> None:
    """`finish` gives the response, and from then on it is that object."""
    state = run_of()
    complete(state, content="Hello")
    response = state.finish("answer")
    assert (response.stop, response.run_id) == ("answer", state.id)
    assert state.response is response


@pytest.mark.parametrize("empty", [None, ""])
def test_the_content_beside_calls_is_sent_as_the_server_wants_it(empty: str | None) -> None:
    """`empty_content` holds for messages of the history and for those of this run."""
    history = [USER, asking(wire_call()), told("c"), USER]
    state = RunState(Agent(name="A", functions=FUNCTIONS), history, None, empty_content=empty)
    one_turn(state)
    sent = state.request("I", WHOLE).body["messages"]
    assert [message["content"] for message in sent if message["role"] == "assistant"] == [empty, empty]


def test_a_function_that_was_added_during_the_run_is_checked() -> None:
    """A function that cannot be offered is an error before the next request."""
    state = run_of(agent=Agent(functions=[]))
    _ = state.tools
    state.agent.functions.append(lambda: "no name")
    with pytest.raises(ConfigurationError, match="name"):
        _ = state.tools


# --- why it is over ---------------------------------------------------------------------------------------------------


def test_start_steps() -> None:
    """A run goes on until the model answers; calls are run first, whatever the limit."""
    state = run_of()
    assert state.start_step(5, execute_tools=True) is None
    assert state.start_step(0, execute_tools=True) == "max_turns"
    complete(state, wire_call())
    assert state.start_step(1, execute_tools=True) is None
    assert state.start_step(1, execute_tools=False) == "tool_calls"
    finish(state.turn.calls[0])
    state.end_turn()
    assert state.start_step(1, execute_tools=True) == "max_turns"
    assert state.start_step(2, execute_tools=True) is None
    complete(state, content="Hello")
    assert state.start_step(2, execute_tools=True) == "answer"


def test_asking_why_it_is_over_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The state decides, and does not log: another question gets the same answer."""
    state = run_of()
    state.turns = MAX_TURNS
    assert state.start_step(math.inf, execute_tools=True) is state.start_step(math.inf, execute_tools=True) is None
    assert caplog.records == []


def test_resume_is_approval() -> None:
    """Calls that a resumed run begins with are run also with `execute_tools=False`; later ones are not."""
    state = run_of(USER, asking(wire_call()), resume=True)
    assert state.start_step(0, execute_tools=False) is None
    finish(state.turn.calls[0])
    state.end_turn()
    assert state.start_step(0, execute_tools=False) == "max_turns"
    complete(state, wire_call())
    assert state.start_step(9, execute_tools=False) == "tool_calls"


# --- early exits ------------------------------------------------------------------------------------------------------


def test_what_a_cancelled_turn_leaves() -> None:
    """Finished calls keep their result, started ones have an unknown outcome, the others stay open."""
    state = run_of()
    complete(state, wire_call("1"), wire_call("2"), wire_call("3", "slow"), wire_call("4"))
    finish(state.turn.calls[0], "done", a=1)
    for made in state.turn.calls[1:3]:
        made.start()
    unknown = "cancelled; its outcome is unknown"
    assert contents(state) == [("1", "done"), ("2", unknown), ("3", f"{unknown}; it may still be running")]
    assert state.response.context_variables == {"a": 1}
    check_history([USER, *state.response.messages], allow_open=True)
    with pytest.raises(AssertionError, match="'4'"):
        check_history([USER, *state.response.messages])


def test_a_finished_handoff_settles_the_turn() -> None:
    """Once a handoff of the turn has finished, what never started is answered, and the agent is the new one."""
    state, target = run_of(), Agent(name="B")
    complete(state, wire_call("1"), wire_call("2"), wire_call("3"))
    finish(state.turn.calls[1], "to B", agent=target)
    state.turn.calls[2].start()
    not_run, unknown = "not run: interrupted", "cancelled; its outcome is unknown"
    assert contents(state) == [("1", not_run), ("2", "to B"), ("3", unknown)]
    assert [made.id for made in state.response.unknown_calls] == ["3"]
    assert state.response.agent is target
    check_history([USER, *state.response.messages])


def test_what_was_left_open_can_be_resumed() -> None:
    """The history of a cancelled turn, resumed, runs what never started and nothing else."""
    state = run_of()
    complete(state, wire_call("1"), wire_call("2"), wire_call("3"))
    finish(state.turn.calls[0])
    history = [USER, *state.response.messages]
    resumed = run_of(*history, resume=True)
    assert [made.id for made in resumed.turn.calls] == ["2", "3"]


def test_context_of_an_interrupted_turn_is_merged_in_call_order() -> None:
    """Changes of finished calls are in the response in call order, and not twice."""
    state = run_of(k="old")
    complete(state, wire_call("1"), wire_call("2"))
    finish(state.turn.calls[1], k="second")
    finish(state.turn.calls[0], k="first")
    assert state.response.context_variables == {"k": "second"}
    assert state.context == {"k": "old"}
    state.end_group(state.turn.calls)
    state.context["k"] = "written later"
    assert state.response.context_variables == {"k": "written later"}


# --- handoffs ---------------------------------------------------------------------------------------------------------


def test_a_handoff_switches_the_agent_at_the_end_of_the_turn() -> None:
    """The agent changes when the turn ends, and the next request is the new agent's."""
    state, target = run_of(), Agent(name="B", model="b")
    source = state.agent
    complete(state, wire_call())
    finish(state.turn.calls[0], agent=target)
    assert state.agent is source
    assert state.end_turn() == (source, target)
    assert state.request("I", WHOLE).body["model"] == "b"
    assert complete(state, content="Hello")["sender"] == "B"


def test_the_last_of_several_handoffs_wins_and_says_so() -> None:
    """The last handoff in call order wins, its message names what it replaced, and recorded results stay."""
    state, b, c = run_of(), Agent(name="B"), Agent(name="C")
    complete(state, wire_call("1"), wire_call("2"), wire_call("3"))
    finish(state.turn.calls[2], "to C", agent=c)
    finish(state.turn.calls[0], "to B", agent=b)
    finish(state.turn.calls[1], "seen")
    assert state.response.agent is c
    assert state.end_turn() == (Agent(name="A", functions=FUNCTIONS), c)
    assert contents(state) == [("1", "to B"), ("2", "seen"), ("3", "to C (replaces the handoff to B)")]


def test_two_handoffs_to_one_agent_replace_nothing() -> None:
    """Handing over to the same agent twice is one handoff."""
    state, b = run_of(), Agent(name="B")
    complete(state, wire_call("1"), wire_call("2"))
    for made in state.turn.calls:
        finish(made, "to B", agent=b)
    state.end_turn()
    assert contents(state) == [("1", "to B"), ("2", "to B")]


def test_a_handoff_to_oneself_is_none() -> None:
    """Handing over to the active agent switches nothing, also where another handoff came before."""
    state = run_of()
    complete(state, wire_call("1"), wire_call("2"))
    finish(state.turn.calls[0], "to B", agent=Agent(name="B"))
    finish(state.turn.calls[1], "to A", agent=state.agent)
    assert state.end_turn() is None
    assert contents(state)[1] == ("2", "to A (replaces the handoff to B)")


def test_a_turn_without_calls_ends_quietly() -> None:
    """Ending a turn with no calls records nothing and switches nothing."""
    state = run_of()
    complete(state, content="Hello")
    assert state.end_turn() is None
    assert len(state.response.messages) == 1
