"""The table of docs/design/calls.md: the states of a tool call, the events that change them, and the calls of a turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aswarm import Agent, ConfigurationError, Hold, Result, tool
from aswarm._run.call import Call, ToolCall
from aswarm._run.outcome import ToolOutcome
from aswarm._tools.toolbox import toolbox
from aswarm._values.decisions import CallDecision

OTHER = Agent(name="Other")
FOUND = ToolOutcome("found", Result(value="found", context_variables={"seen": 1}))


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


def call_of() -> Call:
    """Return a planned call of `look`."""
    message = {"id": "c0", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return Call(message, 0, AGENT, TOOLS["look"])


def in_state(state: str) -> Call:
    """Return a call in a state of the table."""
    call = call_of()
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
    "decide": lambda call: call.decide(CallDecision(is_approval=True)),
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
        call.decision,
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
        lambda call: call.replace_arguments({}),
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


# --- a middleware -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["message", "index", "agent", "tool", "outcome", "hold", "has_started", "progress"])
def test_a_middleware_cannot_set_a_fact(name: str) -> None:
    """Only `arguments` can be set, and few methods change a call."""
    with pytest.raises(AttributeError):
        setattr(call_of(), name, None)
    methods = {method for method in vars(ToolCall) if not method.startswith("_") and callable(vars(ToolCall)[method])}
    assert methods == {"finish", "refusal", "replace_arguments", "valid_arguments"}


def test_another_object_in_place_of_the_call_is_refused() -> None:
    """The error names the remedy."""
    with pytest.raises(ConfigurationError, match="pass the call that it got"):
        Call.of(ToolCall(call_of().message, 0, AGENT, None))
