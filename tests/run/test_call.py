"""The table of docs/design/calls.md: the states of a tool call, the events that change them, and the calls of a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aswarm import Agent, ConfigurationError, Hold, Result, UnknownCall, tool
from aswarm._run.call import Call, CallInside, CallProgress, ToolCall, TurnCalls
from aswarm._run.outcome import ToolOutcome
from aswarm._tools.tool import Tool
from aswarm._tools.toolbox import toolbox
from aswarm._values.decisions import Decided

OTHER = Agent(name="Other")
FOUND = ToolOutcome("found", Result(value="found", context_variables={"seen": 1}))
STARTED_INSIDE = {"agent": "Inner", "messages": [], "started_inside": True}


async def look() -> str:
    """Look."""
    return "found"


@tool(repeatable=True)
async def search() -> str:
    """Search, without an effect."""
    return "found"


@tool(approve=True)
async def pay(amount: int = 1) -> str:
    """Pay."""
    return "paid"


AGENT = Agent(name="Desk", functions=[look, search, pay, OTHER])
TOOLS = toolbox(AGENT).tools
HANDOFF = next(name for name, each in TOOLS.items() if each.is_handoff)


def call_of(name: str = "look", index: int = 0, *, id_: str | None = None, arguments: str = "{}") -> Call:
    message = {"id": id_ or f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return Call(message, index, AGENT, TOOLS.get(name))


def in_state(state: str, name: str = "look") -> Call:
    """Return a call in a state of the table."""
    call = call_of(name)
    if state == "started":
        call.start(announced=True)
    elif state == "waiting":
        call.wait(Hold("May it?"))
    elif state in ("finished", "merged"):
        call.start(announced=True)
        call.finish(FOUND)
    if state == "merged":
        call.merge()
    return call


EVENTS: dict[str, Callable[[Call], object]] = {
    "start": Call.start,
    "announce": lambda call: call.start(announced=True),
    "withdraw": Call.withdraw,
    "wait": lambda call: call.wait(Hold("Another question")),
    "finish": lambda call: call.finish(ToolOutcome("other")),
    "close": lambda call: call.close("not run"),
    "decide": lambda call: call.decide(Decided(is_approval=True)),
    "adopt": lambda call: call.adopt(in_state("finished")),
    "merge": Call.merge,
    "arguments": lambda call: setattr(call, "arguments", '{"to": 2}'),
}
REFUSED = "refused"
# The next state; None: the event is ignored.
TABLE: dict[str, tuple[str | None, str | None, str | None, str | None, str | None]] = {
    #            planned     started     waiting     finished    merged
    "start": ("started", "started", REFUSED, "started", REFUSED),
    "announce": ("started", "started", REFUSED, "started", REFUSED),
    "withdraw": (None, "planned", None, "planned", REFUSED),
    "wait": ("waiting", REFUSED, "waiting", REFUSED, REFUSED),
    "finish": ("finished", "finished", "finished", "finished", REFUSED),
    "close": ("finished", None, "finished", None, None),
    "decide": ("planned", REFUSED, REFUSED, REFUSED, REFUSED),
    "adopt": ("finished", "finished", REFUSED, REFUSED, REFUSED),
    "merge": (REFUSED, REFUSED, REFUSED, "finished", REFUSED),
    "arguments": ("planned", "started", "waiting", "finished", REFUSED),
}
STATES = ("planned", "started", "waiting", "finished", "merged")


def facts(call: Call) -> tuple[Any, ...]:
    return (
        call.progress,
        call.has_started,
        call.is_announced,
        call.is_merged,
        call.outcome,
        call.hold,
        call.decided,
        call.arguments,
        call.replaced,
    )


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_each_event_in_each_state_does_what_the_table_names(state: str, event: str) -> None:
    """A refused event raises and changes nothing."""
    call, expected = in_state(state), TABLE[event][STATES.index(state)]
    before = facts(call)
    if expected == REFUSED:
        with pytest.raises((RuntimeError, ConfigurationError)):
            EVENTS[event](call)
        assert facts(call) == before
    else:
        EVENTS[event](call)
        assert call.progress == (expected or before[0])
        if expected is None:
            assert facts(call) == before


class RandomEvents(RuleBasedStateMachine):
    """Random events on one call, against a model of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.call = call_of()
        self.state, self.has_started, self.is_announced, self.is_late = "planned", False, False, False
        self.had_started = False

    @rule(event=st.sampled_from(sorted(EVENTS)))
    def happen(self, event: str) -> None:
        expected = TABLE[event][STATES.index(self.state)]
        if expected == REFUSED:
            before = facts(self.call)
            with pytest.raises((RuntimeError, ConfigurationError)):
                EVENTS[event](self.call)
            assert facts(self.call) == before
            return
        if event == "finish" and self.is_late:
            with pytest.raises(ConfigurationError, match="after its start"):
                EVENTS[event](self.call)
            self.is_late = False
        else:
            EVENTS[event](self.call)
        if expected is None:
            return
        self.is_late = self.has_started if event == "arguments" else self.is_late and event not in ("start", "announce")
        self.state = "merged" if event == "merge" else expected
        self.is_announced = self.is_announced or event == "announce"
        if event in ("start", "announce"):
            self.has_started = True
        elif event == "withdraw":
            self.has_started, self.is_late = self.had_started, False
            self.state = "started" if self.had_started else "planned"

    @rule()
    def enter(self) -> None:
        self.call.enter()
        self.had_started = self.has_started

    @invariant()
    def facts_agree(self) -> None:
        call = self.call
        assert call.progress == ("finished" if self.state == "merged" else self.state)
        assert (call.has_started, call.is_announced) == (self.has_started, self.is_announced)
        assert call.is_merged == (self.state == "merged")
        assert (call.outcome is not None) == (call.progress == "finished")
        assert call.outcome is None or call.hold is None
        assert call.progress != "waiting" or not call.has_started


TestRandomEvents = RandomEvents.TestCase


# --- the rows of the table --------------------------------------------------------------------------------------------


def test_a_call_may_finish_without_a_start() -> None:
    """(a) A guard, a budget or a denial answers it: its function has not started."""
    call = call_of()
    call.finish(call.refusal("not run: denied"))
    assert (call.progress, call.has_started, call.is_announced) == ("finished", False, False)
    assert TurnCalls([call]).unknown_calls() == []


def test_a_start_is_taken_back_but_its_report_is_not() -> None:
    """(b) A thread never ran the function, or the commit failed: the call is open again, and its start was reported."""
    call = in_state("started")
    call.withdraw()
    assert (call.progress, call.has_started, call.is_announced) == ("planned", False, True)
    assert TurnCalls([call]).open_calls() == {call}


def test_a_started_call_waits_and_keeps_what_has_started_inside() -> None:
    """(c) The question comes from a run inside the call, in which a function has started."""
    call = in_state("started")
    call.withdraw()
    call.wait(Hold("Inner: pay needs approval", data=STARTED_INSIDE))
    assert (call.progress, call.has_started_inside) == ("waiting", True)
    calls = TurnCalls([call])
    assert (calls.open_calls(), calls.unknown_calls(), calls.must_wait()) == ({call}, [], True)
    assert call.refusal("not run: no").unknown
    assert call.refusal("not run: no").content.startswith("stopped after functions had run inside")


def test_an_approved_call_waits_again() -> None:
    """(d) A guard has changed the arguments since the approval, or the function has a question."""
    call = call_of("pay", arguments='{"amount": 1}')
    call.decide(Decided(is_approval=True, seen={"amount": 1}))
    assert not call.has_other_arguments
    call.replace_arguments({"amount": 2}, '{"amount": 2}')
    assert call.has_other_arguments
    call.wait(Hold("a guard has changed the arguments since the decision"))
    assert (call.progress, call.has_approval, call.is_approved) == ("waiting", True, True)


def test_a_finished_handoff_is_planned_again_if_a_call_waits() -> None:
    """(e) The waiting call belongs to this agent. A call that needs an approval and was not reached waits too."""
    over, asks, pays = call_of(HANDOFF, 0), call_of("look", 1), call_of("pay", 2)
    over.start(announced=True)
    over.finish(ToolOutcome("to Other", Result(value="to Other", agent=OTHER)))
    over.merge()
    asks.wait(Hold("May it look?"))
    calls = TurnCalls([over, asks, pays])
    assert calls.must_wait()
    again, same, waits = calls.reopened()
    assert (again.progress, again.has_started, again.is_merged) == ("planned", False, False)
    assert same is asks
    assert (waits.progress, waits is pays) == ("waiting", False)
    assert (over.progress, pays.progress) == ("finished", "planned")


@pytest.mark.parametrize("arguments", ['{"amount": "much"}', "{"])
def test_a_call_with_invalid_arguments_does_not_wait_when_it_is_reopened(arguments: str) -> None:
    """(e) It will fail, so no user has to decide."""
    asks, pays = call_of("look", 0), call_of("pay", 1, arguments=arguments)
    asks.wait(Hold("May it look?"))
    assert TurnCalls([asks, pays]).reopened() == [asks, pays]


def test_a_denied_handoff_is_not_planned_again() -> None:
    """(e) Its answer is recorded, and no agent follows from it."""
    over, asks = call_of(HANDOFF, 0), call_of("look", 1)
    over.finish(ToolOutcome("not run: denied by the user"))
    asks.wait(Hold("May it look?"))
    assert TurnCalls([over, asks]).reopened()[0] is over


@pytest.mark.parametrize("state", ["planned", "started", "waiting", "finished"])
def test_a_call_of_a_turn_adopts_the_early_call(state: str) -> None:
    """(f) It takes over the progress and the arguments, and has started only if both have started."""
    made = in_state("started")
    started = in_state(state)
    made.adopt(started)
    assert (made.progress, made.hold, made.outcome) == (started.progress, started.hold, started.outcome)
    assert made.has_started == started.has_started
    assert made.is_announced


def test_an_external_answer_has_started_without_a_report() -> None:
    """(g) The client has run the function, or a record has its start: no event reports it again."""
    call = call_of()
    call.start()
    call.finish(FOUND)
    assert (call.has_started, call.is_announced) == (True, False)


def test_a_recorded_result_inside_code_is_merged_already() -> None:
    """(g) The context has its changes, because the run around the code has merged them before it waited."""
    inside = CallInside(call_of().message, 0, TOOLS["look"], call_of("search", 3), lambda _, __: None)
    inside.finish(FOUND)
    inside.merge()
    assert TurnCalls([inside]).changes() == {}
    assert inside.parent is not None
    assert inside.parent.index == 3


@pytest.mark.parametrize("last", ["finished", "started"])
def test_a_call_before_an_answered_call_of_the_same_id_is_closed(last: str) -> None:
    """(h) A resumed run would give it the answer of the later call."""
    first, second = call_of(id_="same"), call_of(index=1, id_="same")
    second.start(announced=True)
    if last == "finished":
        second.finish(FOUND)
    assert TurnCalls([first, second]).open_calls() == set()
    other = call_of("search", 2, id_="same")
    assert TurnCalls([first, second, other]).open_calls() == {other}


def test_a_withdrawn_start_keeps_an_earlier_execution() -> None:
    """(b) A middleware repeats a call, and the second execution does not start: the first one has run."""
    call = in_state("started")
    call.enter()
    call.start(announced=True)
    call.withdraw()
    assert (call.progress, call.has_started) == ("started", True)
    with pytest.raises(RuntimeError, match="wait of a call that is started"):
        call.wait(Hold("May it?"))
    call.withdraw(asks=True)
    call.wait(Hold("May it?"))
    assert call.progress == "waiting"


@pytest.mark.parametrize(
    "event",
    [
        Call.enter,
        lambda call: call.replace_arguments({}, "{}"),
        lambda call: call.take_arguments(call_of()),
        lambda call: call.note_unknown_inside([]),
    ],
    ids=["enter", "replace_arguments", "take_arguments", "note_unknown_inside"],
)
def test_a_merged_call_does_not_change(event: Callable[[Call], None]) -> None:
    """Its context changes are applied; only its handoff may still be refused."""
    call = in_state("merged")
    with pytest.raises(RuntimeError, match="merged"):
        event(call)
    call.refuse_handoff("no")
    assert call.outcome == FOUND


# --- open, closed, unknown --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handed_off", [False, True])
@pytest.mark.parametrize(
    ("name", "state", "is_open", "is_unknown"),
    [
        ("look", "planned", True, False),
        ("look", "waiting", True, False),
        ("look", "started", False, True),
        ("search", "started", True, True),
        ("look", "finished", False, False),
    ],
)
def test_a_handoff_closes_the_open_calls(
    name: str, state: str, is_open: bool, is_unknown: bool, handed_off: bool
) -> None:
    """A call that has started stays unknown, also if it is repeatable and open."""
    call, over = in_state(state, name), call_of(HANDOFF, 1)
    if handed_off:
        over.finish(ToolOutcome("to Other", Result(value="to Other", agent=OTHER)))
    calls = TurnCalls([call, over])
    assert (call in calls.open_calls()) == (is_open and not handed_off)
    assert calls.unknown_calls() == ([UnknownCall("c0", name, "{}", "Desk")] if is_unknown else [])


def test_the_turn_does_not_stay_open_after_a_handoff_of_a_function() -> None:
    """The function has run and cannot run again, so the handoff closes the waiting call."""
    asks, over = call_of("look", 0), call_of("search", 1)
    asks.wait(Hold("May it look?"))
    over.start(announced=True)
    over.finish(ToolOutcome("over", Result(value="over", agent=OTHER)))
    assert not TurnCalls([asks, over]).must_wait()


def test_a_closed_call_inside_which_functions_have_started_is_unknown() -> None:
    """It can no longer be resumed after the handoff."""
    asks, over = call_of("look", 0), call_of(HANDOFF, 1)
    asks.wait(Hold("Inner: pay", data=STARTED_INSIDE))
    over.finish(ToolOutcome("over", Result(value="over", agent=OTHER)))
    assert [each.id for each in TurnCalls([asks, over]).unknown_calls()] == ["c0"]


# --- a middleware -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["message", "index", "agent", "tool", "outcome", "hold", "has_started", "progress"])
def test_a_middleware_cannot_set_a_fact(name: str) -> None:
    """Only `arguments` can be set."""
    with pytest.raises(AttributeError):
        setattr(call_of(), name, None)
    assert not [method for method in vars(ToolCall) if not method.startswith("_") and callable(vars(ToolCall)[method])]


def test_another_object_in_place_of_the_call_is_refused() -> None:
    """The error names the remedy."""
    with pytest.raises(ConfigurationError, match="pass the call that it got"):
        Call.of(ToolCall(call_of().message, 0, AGENT, None))


def test_progress_has_the_four_states() -> None:
    """The type lists all of them."""
    states: set[CallProgress] = {in_state(state).progress for state in STATES}
    assert states == {"planned", "started", "waiting", "finished"}
    assert isinstance(TOOLS["look"], Tool)
