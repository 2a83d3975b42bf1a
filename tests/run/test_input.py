"""What a run is given: the caller's mistakes are told, open calls are resumed, nothing given is changed."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from aswarm import Agent, ConfigurationError
from aswarm._run.state import RunState
from aswarm._values.context import copy_containers
from aswarm.testing import check_history
from tests.support.run.recording import (
    FUNCTIONS,
    USER,
    WHOLE,
    Json,
    asking,
    complete,
    contents,
    finish,
    one_turn,
    run_of,
    told,
    wire_call,
)

# --- the caller's mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        (7, "messages must be a list"),
        (None, "messages must be a list"),
        ({"role": "user"}, "messages must be a list"),
        ([7], r"messages\[0\]"),
        ([USER, {"content": "x"}], r"messages\[1\].*role"),
        ([{"role": "robot", "content": "x"}], "'robot'"),
        ([{"role": "user", "content": 7}], "content 7"),
        ([{"role": "tool", "content": "x"}], "tool_call_id"),
        ([{"role": "assistant", "tool_calls": "x"}], "not a list"),
        ([{"role": "assistant", "tool_calls": [{"type": "function"}]}], r"tool_calls\[0\]"),
        ([{"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}], "no function name"),
        ([{"role": "user", "content": "x", "tool_calls": []}], "only assistant"),
    ],
)
def test_messages_that_are_none(messages: Any, fault: str) -> None:
    """What is no history is a ConfigurationError that names place and fault."""
    with pytest.raises(ConfigurationError, match=fault):
        RunState(Agent(), messages, None)


@pytest.mark.parametrize("agent", [None, "A", Agent])
def test_an_agent_that_is_none(agent: object) -> None:
    """What is no agent is a ConfigurationError."""
    with pytest.raises(ConfigurationError, match="agent must be an Agent"):
        RunState(agent, "Hi", None)


@pytest.mark.parametrize("context", ["x", [("a", 1)], 7])
def test_a_context_that_is_none(context: Any) -> None:
    """What is no mapping is a ConfigurationError."""
    with pytest.raises(ConfigurationError, match="context_variables must be a dict"):
        RunState(Agent(), "Hi", context)


def test_open_calls_are_not_run_without_a_word() -> None:
    """Open calls at the end of messages are an error that names them and `resume=True`."""
    with pytest.raises(ConfigurationError, match=r"'c'.*resume=True"):
        RunState(Agent(functions=FUNCTIONS), [USER, asking(wire_call("c"))], None)


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        ("abcde", "'a', 'b', 'c', 'd', 'e'"),
        ("abcdefg", "'a', 'b', 'c', 'd', 'e', and 2 more"),
        (["x" * 50], f"'{'x' * 36}..."),
    ],
)
def test_of_many_open_calls_the_first_are_named(ids: Sequence[str], named: str) -> None:
    """A history may come from a browser: the error names five ids, and not more of a long one than its beginning."""
    with pytest.raises(ConfigurationError) as caught:
        run_of(USER, asking(*map(wire_call, ids)))
    assert str(caught.value) == (
        f"messages end with tool calls that have no answer ({named}). A run executes such calls only if you ask for it. Pass "
        "resume={'call_1': True}, with a decision for each call, or resume=True to run them all, if the history comes from "
        "storage you trust; or answer them yourself"
    )


def test_resume_with_nothing_open_is_a_run() -> None:
    """`resume=True` with nothing to resume is an ordinary run."""
    state = run_of(USER, asking(wire_call()), told("c"), resume=True)
    assert state.turn.calls == []
    assert state.start_step(1, execute_tools=True) is None


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_resumed_calls_are_sent_with_their_answers() -> None:
    """Before the resumed calls are answered they are not on the wire; then all of the block is, in call order."""
    history = [USER, asking(wire_call("1"), wire_call("2"), wire_call("3")), told("2", "by hand")]
    state = run_of(*history, resume=True)
    assert [(made.id, made.agent) for made in state.turn.calls] == [("1", state.agent), ("3", state.agent)]
    finish(state.turn.calls[0], "first")
    finish(state.turn.calls[1], "third")
    state.end_turn()
    sent = state.request(None, WHOLE).body["messages"]
    assert [message.get("content") for message in sent] == ["Hi", None, "first", "by hand", "third"]
    check_history([*history, *state.response.messages], ordered=False)


def test_resumed_calls_have_their_position_in_the_message() -> None:
    """A call's position counts within its message, also where the calls before it have been answered."""
    state = run_of(USER, asking(wire_call("1"), wire_call("2")), told("1"), resume=True)
    assert [(made.id, made.index) for made in state.turn.calls] == [("2", 1)]


def test_equal_ids_are_separate_calls() -> None:
    """Equal ids in one message and across turns are separate calls, each answered."""
    history = [USER, asking(wire_call("x"), wire_call("x")), told("x", "1"), told("x", "2"), USER]
    state = run_of(*history)
    complete(state, wire_call("x"), wire_call("x", "other"))
    assert len(state.turn.calls) == 2
    finish(state.turn.calls[0], "3")
    finish(state.turn.calls[1], "4")
    state.end_turn()
    assert contents(state) == [("x", "3"), ("x", "4")]
    answers = [m["content"] for m in state.request(None, WHOLE).body["messages"] if m["role"] == "tool"]
    assert answers == ["1", "2", "3", "4"]


def test_equal_ids_of_which_one_is_open() -> None:
    """Of two calls of one id the one that is not answered is resumed: by its name, else by its place."""
    two = asking(wire_call("x", "look"), wire_call("x", "other"))
    by_name = run_of(USER, two, told("x", tool_name="other"), resume=True)
    assert [made.name for made in by_name.turn.calls] == ["look"]
    by_place = run_of(USER, two, told("x"), resume=True)
    assert [made.name for made in by_place.turn.calls] == ["other"]


def test_a_finished_call_is_never_run_again_for_its_open_twin() -> None:
    """Of two calls of one id and name the second has finished: resuming must not take its answer for the first's."""
    state = run_of()
    complete(state, wire_call("x", arguments='{"n": 1}'), wire_call("x", arguments='{"n": 2}'))
    finish(state.turn.calls[1], "second")
    resumed = run_of(USER, *state.response.messages, resume=True)
    assert '{"n": 2}' not in [made.arguments for made in resumed.turn.calls]
    check_history([USER, *state.response.messages], allow_open=True)


def test_open_calls_in_the_middle_are_answered_as_interrupted() -> None:
    """Open calls followed by other messages are answered on the wire, so that an invalid history is never sent."""
    state = run_of(USER, asking(wire_call("1"), wire_call("2")), told("2"), USER)
    sent = state.request(None, WHOLE).body["messages"]
    assert [message.get("content") for message in sent] == ["Hi", None, "not run: interrupted", "seen", "Hi"]
    check_history(sent)


# --- input is never changed -------------------------------------------------------------------------------------------


def test_messages_and_context_of_the_caller_stay() -> None:
    """A run changes neither the messages nor the context it was given."""
    history = [USER, asking(wire_call("1", arguments="")), told("1", tool_name="look"), USER]
    context = {"list": [1, {"deep": {2}}], "dict": {"a": [3]}}
    before = copy.deepcopy((history, context))
    state = RunState(Agent(functions=FUNCTIONS), history, context)
    state.request("I", WHOLE)
    state.context["list"][1]["deep"].add(4)
    state.context["dict"]["a"].append(5)
    one_turn(state)
    assert (history, context) == before


def test_what_is_no_container_is_shared() -> None:
    """Locks, clients and objects are shared by reference; a tuple and what is in it too."""
    lock, shared = threading.Lock(), ([1],)
    copied = copy_containers({"lock": lock, "deep": [lock], "tuple": shared})
    assert copied["lock"] is copied["deep"][0] is lock
    assert copied["tuple"] is shared


def test_containers_keep_their_type() -> None:
    """A defaultdict stays one, an OrderedDict too."""
    copied = copy_containers({"d": defaultdict(list, a=[1]), "o": OrderedDict(x=1)})
    assert copied["d"]["new"] == []
    assert isinstance(copied["o"], OrderedDict)


def test_a_container_that_holds_itself() -> None:
    """Containers that point at themselves, or are held twice, are copied once."""
    context: Json = {"twice": []}
    context["self"], context["again"] = context, context["twice"]
    copied = copy_containers(context)
    assert copied["self"] is copied is not context
    assert copied["again"] is copied["twice"] is not context["twice"]


@pytest.mark.parametrize("kind", [MappingProxyType, UserDict, OrderedDict])
def test_a_mapping_that_is_no_dict_is_copied_as_deeply(kind: Callable[[Json], Mapping[str, Any]]) -> None:
    """The context may be any Mapping; the containers in it are copied as those of a dict are."""
    inner: list[int] = []
    state = RunState(Agent(), "Hi", kind({"seen": inner}))
    state.context["seen"].append(1)
    assert inner == []
