"""The record of one run: at any moment what it hands out is a valid history, and what it sends is what the API takes."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aswarm import Agent, ConfigurationError, Result, Usage, tool
from aswarm._accumulator import Accumulator, Completion
from aswarm._context import copy_containers
from aswarm._messages import normalize, wire
from aswarm._plan import ToolCall, ToolOutcome
from aswarm._request import RequestSettings
from aswarm._run_state import RunState
from aswarm.testing import check_history

Json = dict[str, Any]
USER = {"role": "user", "content": "Hi"}
WHOLE = RequestSettings(stream=False)


async def look() -> str:
    """Look."""
    return "seen"


async def other() -> str:
    """Another."""
    return "other"


@tool(abandon_on_cancel=True)
def slow() -> str:
    """A plain function that is left behind when the run is cancelled."""
    return "slow"


FUNCTIONS = [look, other, slow]


def wire_call(call_id: str = "c", name: str = "look", arguments: str = "{}") -> Json:
    """A tool call as a provider sends it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asking(*calls: Json, content: str | None = None) -> Json:
    """An assistant message with these calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def told(call_id: str, content: str = "seen", **more: Any) -> Json:
    """A tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def run_of(*history: Json, agent: Agent | None = None, resume: bool = False, **context: Any) -> RunState:
    """A run that begins with this history."""
    return RunState(agent or Agent(name="A", functions=FUNCTIONS), list(history) or [USER], context, resume=resume)


def complete(state: RunState, *calls: Json, content: str | None = None, **extra: Any) -> Json:
    """Let the model answer."""
    state.turns += 1
    message = {"role": "assistant", "content": content, "tool_calls": list(calls) or None, **extra}
    finish = "tool_calls" if calls else "stop"
    return state.record_completion(Completion(copy.deepcopy(message), finish, Usage(total_tokens=3, requests=1)))


def finish(call: ToolCall, content: str = "seen", *, agent: Agent | None = None, **changes: Any) -> None:
    """Let a call end with this result."""
    call.started = True
    call.outcome = ToolOutcome(content, Result(value=content, agent=agent, context_variables=changes))


def contents(state: RunState) -> list[tuple[str, str]]:
    """The tool messages of the response: id and content."""
    return [(m["tool_call_id"], m["content"]) for m in state.response.messages if m["role"] == "tool"]


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
    finish(state.calls[0], "seen")
    state.end_turn()
    expected = {"role": "tool", "tool_call_id": "c", "tool_name": "look", "content": "seen"}
    assert state.response.messages[1:] == [expected]


def test_tool_messages_are_in_call_order() -> None:
    """Whatever finished first, messages are recorded in the order of the calls."""
    state = run_of()
    complete(state, wire_call("1"), wire_call("2"), wire_call("3"))
    for position in (2, 0, 1):
        finish(state.calls[position], f"result {position + 1}")
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
    state.completing = Accumulator()
    state.completing.feed({"choices": [{"index": 0, "delta": {"content": "Hel"}}]})
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
    assert response.stop == "answer"
    assert state.response is response


# --- why it is over ---------------------------------------------------------------------------------------------------


def test_stop_reasons() -> None:
    """A run goes on until the model answers; calls are run first, whatever the limit."""
    state = run_of()
    assert state.stop_reason(5, execute_tools=True) is None
    assert state.stop_reason(0, execute_tools=True) == "max_turns"
    complete(state, wire_call())
    assert state.stop_reason(1, execute_tools=True) is None
    assert state.stop_reason(1, execute_tools=False) == "tool_calls"
    finish(state.calls[0])
    state.end_turn()
    assert state.stop_reason(1, execute_tools=True) == "max_turns"
    assert state.stop_reason(2, execute_tools=True) is None
    complete(state, content="Hello")
    assert state.stop_reason(2, execute_tools=True) == "answer"


def test_resume_is_approval() -> None:
    """Calls that a resumed run begins with are run also with `execute_tools=False`; later ones are not."""
    state = run_of(USER, asking(wire_call()), resume=True)
    assert state.stop_reason(0, execute_tools=False) is None
    finish(state.calls[0])
    state.end_turn()
    assert state.stop_reason(0, execute_tools=False) == "max_turns"
    complete(state, wire_call())
    assert state.stop_reason(9, execute_tools=False) == "tool_calls"


# --- early exits ------------------------------------------------------------------------------------------------------


def test_what_a_cancelled_turn_leaves() -> None:
    """Finished calls keep their result, started ones have an unknown outcome, the others stay open."""
    state = run_of()
    complete(state, wire_call("1"), wire_call("2"), wire_call("3", "slow"), wire_call("4"))
    finish(state.calls[0], "done", a=1)
    state.calls[1].started = state.calls[2].started = True
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
    finish(state.calls[1], "to B", agent=target)
    state.calls[2].started = True
    not_run, unknown = "not run: interrupted", "cancelled; its outcome is unknown"
    assert contents(state) == [("1", not_run), ("2", "to B"), ("3", unknown)]
    assert state.response.agent is target
    check_history([USER, *state.response.messages])


def test_what_was_left_open_can_be_resumed() -> None:
    """The history of a cancelled turn, resumed, runs what never started and nothing else."""
    state = run_of()
    complete(state, wire_call("1"), wire_call("2"), wire_call("3"))
    finish(state.calls[0])
    history = [USER, *state.response.messages]
    resumed = run_of(*history, resume=True)
    assert [made.id for made in resumed.calls] == ["2", "3"]


def test_context_of_an_interrupted_turn_is_merged_in_call_order() -> None:
    """Changes of finished calls are in the response in call order, and not twice."""
    state = run_of(k="old")
    complete(state, wire_call("1"), wire_call("2"))
    finish(state.calls[1], k="second")
    finish(state.calls[0], k="first")
    assert state.response.context_variables == {"k": "second"}
    assert state.context == {"k": "old"}
    state.merge_context(state.calls)
    state.context["k"] = "written later"
    assert state.response.context_variables == {"k": "written later"}


# --- handoffs ---------------------------------------------------------------------------------------------------------


def test_a_handoff_switches_the_agent_at_the_end_of_the_turn() -> None:
    """The agent changes when the turn ends, and the next request is the new agent's."""
    state, target = run_of(), Agent(name="B", model="b")
    source = state.agent
    complete(state, wire_call())
    finish(state.calls[0], agent=target)
    assert state.agent is source
    assert state.end_turn() == (source, target)
    assert state.request("I", WHOLE).body["model"] == "b"
    assert complete(state, content="Hello")["sender"] == "B"


def test_the_last_of_several_handoffs_wins_and_says_so() -> None:
    """The last handoff in call order wins, its message names what it replaced, and recorded results stay."""
    state, b, c = run_of(), Agent(name="B"), Agent(name="C")
    complete(state, wire_call("1"), wire_call("2"), wire_call("3"))
    finish(state.calls[2], "to C", agent=c)
    finish(state.calls[0], "to B", agent=b)
    finish(state.calls[1], "seen")
    assert state.response.agent is c
    assert state.end_turn() == (Agent(name="A", functions=FUNCTIONS), c)
    assert contents(state) == [("1", "to B"), ("2", "seen"), ("3", "to C (replaces the handoff to B)")]


def test_two_handoffs_to_one_agent_replace_nothing() -> None:
    """Handing over to the same agent twice is one handoff."""
    state, b = run_of(), Agent(name="B")
    complete(state, wire_call("1"), wire_call("2"))
    for made in state.calls:
        finish(made, "to B", agent=b)
    state.end_turn()
    assert contents(state) == [("1", "to B"), ("2", "to B")]


def test_a_handoff_to_oneself_is_none() -> None:
    """Handing over to the active agent switches nothing, also where another handoff came before."""
    state = run_of()
    complete(state, wire_call("1"), wire_call("2"))
    finish(state.calls[0], "to B", agent=Agent(name="B"))
    finish(state.calls[1], "to A", agent=state.agent)
    assert state.end_turn() is None
    assert contents(state)[1] == ("2", "to A (replaces the handoff to B)")


def test_a_turn_without_calls_ends_quietly() -> None:
    """Ending a turn with no calls records nothing and switches nothing."""
    state = run_of()
    complete(state, content="Hello")
    assert state.end_turn() is None
    assert len(state.response.messages) == 1


# --- forced tool choice -----------------------------------------------------------------------------------------------


def choice_of(state: RunState) -> object:
    """The tool_choice of the next request."""
    return state.request("I", WHOLE).body.get("tool_choice")


def one_turn(state: RunState, agent: Agent | None = None) -> None:
    """One turn with one call, perhaps a handoff."""
    complete(state, wire_call())
    finish(state.calls[0], agent=agent)
    state.end_turn()


FORCES = ["required", "any", {"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize("choice", FORCES)
def test_a_forced_choice_relaxes_after_the_first_tool_result(choice: Any) -> None:
    """A choice that forces a call holds until the agent has had a tool result in this run, then it is "auto"."""
    state = run_of(agent=Agent(functions=[look], tool_choice=choice))
    assert choice_of(state) == choice
    one_turn(state)
    assert choice_of(state) == "auto"


@pytest.mark.parametrize("choice", FORCES)
def test_a_forced_choice_in_the_settings_relaxes_as_well(choice: Any) -> None:
    """A choice that came through `model_settings` would otherwise call for ever."""
    state = run_of(agent=Agent(functions=[look], model_settings={"tool_choice": choice}))
    assert choice_of(state) == choice
    one_turn(state)
    assert choice_of(state) == "auto"


@pytest.mark.parametrize(
    "choice", ["auto", "none", None, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}]
)
def test_other_choices_hold(choice: Any) -> None:
    """A choice that forces nothing stays: relaxing allowed_tools would offer what the user has withheld."""
    state = run_of(agent=Agent(functions=[look], tool_choice=choice))
    one_turn(state)
    assert choice_of(state) == choice


def test_a_forced_choice_among_some_tools_relaxes_to_those() -> None:
    """OpenAI's allowed_tools in the mode "required" relaxes to the mode "auto", and withholds what it withheld."""
    tools = [{"type": "function", "function": {"name": "look"}}]
    forced, free = (
        {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}} for mode in ("required", "auto")
    )
    state = run_of(agent=Agent(functions=[look, other], tool_choice=forced))
    assert choice_of(state) == forced
    one_turn(state)
    assert choice_of(state) == free


def test_a_forced_choice_is_the_agents_own() -> None:
    """Another agent's tool result relaxes nothing; coming back to an agent that has had its own does."""
    b = Agent(name="B", functions=[look], tool_choice="required")
    a = Agent(name="A", functions=[look], tool_choice="required")
    state = run_of(agent=a)
    one_turn(state, b)
    assert choice_of(state) == "required"
    one_turn(state, a)
    assert choice_of(state) == "auto"


def test_equal_agents_are_told_apart() -> None:
    """Two agents that are equal are two agents all the same."""
    a, b = (Agent(functions=[look], tool_choice="required") for _ in range(2))
    state = run_of(agent=a)
    one_turn(state, b)
    assert choice_of(state) == "required"


def test_results_of_an_earlier_run_relax_nothing() -> None:
    """Only results of this run count: a history with tool messages in it does not relax the choice."""
    agent = Agent(functions=[look], tool_choice="required")
    assert choice_of(run_of(USER, asking(wire_call()), told("c"), USER, agent=agent)) == "required"


def test_a_resumed_call_relaxes() -> None:
    """The result of a call that this run has resumed is a result of this run."""
    state = run_of(USER, asking(wire_call()), agent=Agent(functions=[look], tool_choice="required"), resume=True)
    finish(state.calls[0])
    state.end_turn()
    assert choice_of(state) == "auto"


# --- tools ------------------------------------------------------------------------------------------------------------


def test_functions_may_change_during_a_run() -> None:
    """Functions that are added to an agent while it runs are offered in the next request."""
    agent = Agent(functions=[look])
    state = run_of(agent=agent)
    assert list(state.tools) == ["look"]
    assert state.tools is state.tools
    agent.functions.append(other)
    assert list(state.tools) == ["look", "other"]
    agent.functions[0] = slow
    assert [made["function"]["name"] for made in state.request("I", WHOLE).body["tools"]] == ["slow", "other"]


def test_a_call_keeps_the_tool_it_was_made_for() -> None:
    """A call is bound to the function that the agent had when the model called it."""
    agent = Agent(functions=[look])
    state = run_of(agent=agent)
    complete(state, wire_call(), wire_call("d", "missing"))
    agent.functions.clear()
    assert state.calls[0].tool is not None
    assert state.calls[1].tool is None


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
        run_of(USER, asking(wire_call("c")))


def test_resume_with_nothing_open_is_a_run() -> None:
    """`resume=True` with nothing to resume is an ordinary run."""
    state = run_of(USER, asking(wire_call()), told("c"), resume=True)
    assert state.calls == []
    assert state.stop_reason(1, execute_tools=True) is None


# --- resuming ---------------------------------------------------------------------------------------------------------


def test_resumed_calls_are_sent_with_their_answers() -> None:
    """Before the resumed calls are answered they are not on the wire; then all of the block is, in call order."""
    history = [USER, asking(wire_call("1"), wire_call("2"), wire_call("3")), told("2", "by hand")]
    state = run_of(*history, resume=True)
    assert [made.id for made in state.calls] == ["1", "3"]
    finish(state.calls[0], "first")
    finish(state.calls[1], "third")
    state.end_turn()
    sent = state.request(None, WHOLE).body["messages"]
    assert [message.get("content") for message in sent] == ["Hi", None, "first", "by hand", "third"]
    check_history([*history, *state.response.messages], ordered=False)


def test_resumed_calls_have_their_position_in_the_message() -> None:
    """A call's position counts within its message, also where the calls before it have been answered."""
    state = run_of(USER, asking(wire_call("1"), wire_call("2")), told("1"), resume=True)
    assert [(made.id, made.position) for made in state.calls] == [("2", 1)]


def test_equal_ids_are_separate_calls() -> None:
    """Equal ids in one message and across turns are separate calls, each answered."""
    history = [USER, asking(wire_call("x"), wire_call("x")), told("x", "1"), told("x", "2"), USER]
    state = run_of(*history)
    complete(state, wire_call("x"), wire_call("x", "other"))
    assert len(state.calls) == 2
    finish(state.calls[0], "3")
    finish(state.calls[1], "4")
    state.end_turn()
    assert contents(state) == [("x", "3"), ("x", "4")]
    answers = [m["content"] for m in state.request(None, WHOLE).body["messages"] if m["role"] == "tool"]
    assert answers == ["1", "2", "3", "4"]


def test_equal_ids_of_which_one_is_open() -> None:
    """Of two calls of one id the one that is not answered is resumed: by its name, else by its place."""
    two = asking(wire_call("x", "look"), wire_call("x", "other"))
    by_name = run_of(USER, two, told("x", tool_name="other"), resume=True)
    assert [made.name for made in by_name.calls] == ["look"]
    by_place = run_of(USER, two, told("x"), resume=True)
    assert [made.name for made in by_place.calls] == ["other"]


def test_a_finished_call_is_never_run_again_for_its_open_twin() -> None:
    """Of two calls of one id and name the second has finished: resuming must not take its answer for the first's."""
    state = run_of()
    complete(state, wire_call("x", arguments='{"n": 1}'), wire_call("x", arguments='{"n": 2}'))
    finish(state.calls[1], "second")
    resumed = run_of(USER, *state.response.messages, resume=True)
    assert '{"n": 2}' not in [made.arguments for made in resumed.calls]
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


# --- properties -------------------------------------------------------------------------------------------------------

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


_histories = st.lists(block(), max_size=5).map(lambda blocks: [message for part in blocks for message in part])
_progress = st.sampled_from(["not started", "started", "finished", "failed", "handed off"])


def progress(call: ToolCall, how: str, key: str) -> None:
    """Bring a call to this point."""
    call.started = how != "not started"
    if how == "finished":
        call.outcome = ToolOutcome(f"told {key}", Result(context_variables={key: key}))
    elif how == "failed":
        call.outcome = ToolOutcome("Error: no", error=ValueError("no"))
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
@settings(deadline=None, max_examples=200)
def test_every_snapshot_is_valid_and_every_request_too(
    history: list[Json], turns: list[tuple[list[Json], list[str]]]
) -> None:
    """At any moment of any run the response continues the history validly, and what is sent is the whole of it."""
    kept = copy.deepcopy(history)
    state = RunState(Agent(name="A", functions=FUNCTIONS), history, None, resume=True)
    full = [*wire(normalize(history)), *state.response.messages]
    for calls, hows in [([], ["finished"] * 3), *turns]:
        if calls:
            complete(state, *calls)
        made = state.response.messages
        for number, (call, how) in enumerate(zip(state.calls, hows, strict=False)):
            progress(call, how, f"k{number}")
            response = state.response
            assert response.messages[: len(made)] == made
            handed = [item.outcome.agent for item in state.calls if item.outcome and item.outcome.agent]
            assert response.agent is (handed[-1] if handed else state.agent)
            check_tail(response.messages, has_handed_off=bool(handed))
        for number, call in enumerate(state.calls):
            if call.outcome is None:
                progress(call, "finished", f"k{number}")
        state.merge_context(state.calls)
        state.end_turn()
        full = normalize([*history, *state.response.messages])
        sent = state.request(None, WHOLE).body["messages"]
        assert sent == wire(full)
        check_sent(sent)
    assert history == kept


def check_tail(messages: list[Json], *, has_handed_off: bool) -> None:
    """The part of a history that was made in this run is valid; after a handoff nothing in it is open."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    check_history(messages[first:], allow_open=not has_handed_off)
