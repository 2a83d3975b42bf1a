"""A tool call: its facts, the transitions that change them, and the facts that depend on the other calls of its turn.

docs/design/calls.md has the table of states and events. No I/O.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from aswarm._tools.conversion import are_valid, arguments_or_text, parse_arguments, valid_arguments
from aswarm._tools.tool import Tool, standing_hold
from aswarm._values.agent import Agent, UnknownCall
from aswarm._values.content import with_note
from aswarm._values.decisions import CallDecision
from aswarm._values.errors import ConfigurationError, Hold
from aswarm._values.json import shown
from aswarm._values.messages import Message, call_arguments, call_name, has_started_inside

from .outcome import Returned, ToolOutcome

CallProgress: TypeAlias = Literal["planned", "started", "waiting", "finished"]
STOPPED_INSIDE = "stopped after functions had run inside, so its outcome is unknown"
_HOLD = attrgetter("hold")

if TYPE_CHECKING:
    fact_property = property
else:

    def fact_property(getter: Callable[[Any], Any]) -> property:
        """Return a property that reads the slot of its name in C: it makes no frame, so a fact costs hardly more than an attribute."""
        return property(attrgetter(f"_{getter.__name__}"), doc=getter.__doc__)


class ToolCall:
    """One tool call of one assistant message, for middleware. aswarm makes it.

    The object is the identity of the call, because ids of providers may repeat. All attributes are read-only, except `arguments`.
    """

    __slots__ = (
        "_agent", "_arguments", "_decision", "_had_started", "_has_started", "_hold", "_id", "_index", "_is_announced",
        "_is_late", "_is_merged", "_message", "_name", "_outcome", "_replaced", "_tool", "_unknown_inside",
    )  # fmt: skip
    _parent: ToolCall | None = None  # a call inside code has another `parent`

    def __init__(self, message: Message, index: int, agent: Agent, tool: Tool[..., Any] | None) -> None:
        self._message = message
        self._index = index
        self._agent = agent
        self._tool = tool
        self._id, self._name = str(message["id"]), call_name(message)
        self._arguments: str = call_arguments(message)
        self._decision: CallDecision | None = None
        self._has_started = self._had_started = self._is_announced = self._is_late = self._is_merged = False
        self._hold: Hold | None = None
        self._outcome: ToolOutcome | None = None
        self._replaced: Mapping[str, Any] | None = None
        self._unknown_inside: Sequence[UnknownCall] = ()

    @property
    def arguments(self) -> str:
        """The JSON text of the arguments; empty for no arguments.

        A middleware may set it before the start of the call; the history does not change. If it is set later and the call is not
        repeated, the run ends with a ConfigurationError.
        """
        return self._arguments

    @arguments.setter
    def arguments(self, arguments: str) -> None:
        if self._is_merged:
            self._check("arguments")
        # A middleware that repeats the call may set them between two executions, so only the end shows the mistake.
        self._arguments, self._is_late = arguments, self._has_started

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.index} {self.name!r} {self.progress}>"

    @fact_property
    def message(self) -> Message:
        """The call in the assistant message; it must not be changed."""
        return self._message

    @fact_property
    def index(self) -> int:
        """The position of the call in that message, from 0."""
        return self._index

    @fact_property
    def agent(self) -> Agent:
        """The agent that made the call."""
        return self._agent

    @fact_property
    def tool(self) -> Tool[..., Any] | None:
        """The called tool; None if the agent has no such function."""
        return self._tool

    @fact_property
    def parent(self) -> ToolCall | None:
        """The outer call whose function makes this call; None for a call of the model."""
        return self._parent

    @fact_property
    def id(self) -> str:
        """The id from the provider, or a generated id if the provider sent none."""
        return self._id

    @fact_property
    def name(self) -> str:
        """The name of the tool, as the model sent it."""
        return self._name

    @fact_property
    def has_started(self) -> bool:
        """Whether the function has started."""
        return self._has_started

    @fact_property
    def outcome(self) -> ToolOutcome | None:
        """The outcome of a finished call, or None."""
        return self._outcome

    @fact_property
    def hold(self) -> Hold | None:
        """The `Hold` of a waiting call, or None."""
        return self._hold

    @property
    def progress(self) -> CallProgress:
        """The state of the call: "planned", "started", "waiting" for a decision, or "finished"."""
        if self._outcome is not None:
            return "finished"
        if self._hold is not None:
            return "waiting"
        return "started" if self._has_started else "planned"

    @property
    def has_started_inside(self) -> bool:
        """Whether the call waits, or has waited, for an inner run in which a function has started."""
        held = self._hold and self._hold.data
        return has_started_inside(held) or has_started_inside(self.data)

    @fact_property
    def decision(self) -> CallDecision | None:
        """The decisions of users that let the call run; None if there is none, or if it stays open or is refused."""
        return self._decision

    @property
    def is_approved(self) -> bool:
        """Whether a user has approved this call, or has answered its question."""
        return self._decision is not None

    @property
    def answer(self) -> Any:
        """The data of the `Reply` to the `Hold` of this call, or None."""
        return self._decision and self._decision.answer

    @property
    def data(self) -> Any:
        """The data of the `Hold` that this call raised before the user decided, or None."""
        return self._decision and self._decision.data

    @property
    def is_repeatable(self) -> bool:
        """Whether the function may run again after an interruption; see `repeatable` of `@tool`."""
        return self._tool is not None and self._tool.repeatable

    def valid_arguments(self) -> dict[str, Any]:
        """Return the arguments as the function gets them, validated and converted. Raises ToolArgumentsError."""
        return valid_arguments(self._tool, self._arguments) if self._tool else parse_arguments(self._arguments)

    def refusal(self, text: str, error: Exception | None = None) -> ToolOutcome:
        """Return the outcome of a call that is not executed; `unknown=True` if a function of an inner run has started."""
        if has_started := self.has_started_inside:
            reason = text.removeprefix("not run").removeprefix(": ")
            text = f"{STOPPED_INSIDE}: {reason}" if reason else STOPPED_INSIDE
        return ToolOutcome(text, error=error, unknown=has_started)

    def replace_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Set the arguments as a guard does: JSON data. The user who decides on the call sees them, and decides again.

        A guard checks a call again if a middleware repeats it, so these arguments are never late.
        """
        self._check("replace_arguments")
        self._arguments, self._replaced = json.dumps(arguments, ensure_ascii=False), arguments

    def finish(self, outcome: ToolOutcome) -> None:
        """Set the outcome of the call. Raises ConfigurationError for a mistake of a middleware.

        A middleware returns the outcome instead. If it raises an exception, which ends the run, it may first finish the call.
        """
        # A middleware of the user is not type-checked, so it may return anything.
        if not (isinstance(outcome, ToolOutcome) and isinstance(outcome.content, str | list)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"a middleware answered the call of {self.name} with {shown(outcome, 80)}; its call_tool must return a "
                "ToolOutcome whose content is a str, or a list of content parts"
            )
        if self._is_merged:
            self._check("finish")
        self._outcome, self._hold = outcome, None
        if self._is_late:
            self._is_late = False
            late = f"the arguments of the call of {self.name!r} were set after its start"
            raise ConfigurationError(f"{late}; set them before the inner call_tool is called")

    def _check(self, event: str, *refused: CallProgress) -> None:
        if self._is_merged or (refused and self.progress in refused):
            state = "merged" if self._is_merged else self.progress
            raise RuntimeError(f"{event} of a call that is {state}: {self!r}")


class Call(ToolCall):
    """A tool call with its transitions, for the run. A wrong order of transitions is a fault of aswarm, a RuntimeError."""

    __slots__ = ()

    @fact_property
    def is_announced(self) -> bool:
        """Whether `ToolCallStarted` was reported."""
        return self._is_announced

    @fact_property
    def is_merged(self) -> bool:
        """Whether the run has applied the context changes of the call."""
        return self._is_merged

    @fact_property
    def replaced(self) -> Mapping[str, Any] | None:
        """The arguments that a guard has set, or None."""
        return self._replaced

    @fact_property
    def unknown_inside(self) -> Sequence[UnknownCall]:
        """The calls that its function made, and whose outcome is not known."""
        return self._unknown_inside

    @staticmethod
    def of(call: ToolCall) -> Call:
        """Return the call of the run. Raises ConfigurationError if a middleware has passed another object."""
        if not isinstance(call, Call):
            raise ConfigurationError(
                f"a middleware passed {shown(call, 80)} to the inner call_tool; pass the call that it got"
            )
        return call

    # --- transitions ---

    def decide(self, decision: CallDecision) -> None:
        """Let the call run with these decisions."""
        self._check("decide", "started", "waiting", "finished")
        self._decision = decision

    def enter(self) -> None:
        """Start an execution. Remember an earlier start: a middleware may repeat a call, and `withdraw` takes back one execution."""
        if self._is_merged:
            self._check("enter")
        self._had_started, self._unknown_inside = self._has_started, ()

    def start(self, *, announced: bool = False) -> None:
        """Mark the start of the function, here or in an earlier process. A middleware may start a call again.

        `announced`: whether `ToolCallStarted` is reported.
        """
        if self._is_merged or self._hold is not None:
            self._check("start", "waiting")
        self._has_started, self._is_late = True, False
        self._is_announced = self._is_announced or announced
        self._outcome = None

    def withdraw(self, *, asks: bool = False) -> None:
        """Take back the start of this execution, because the function has not run.

        `asks`: the function has raised `Hold`, so it will run again from its start. This takes back earlier executions too: the
        middleware that repeats the call has decided that it may run again.
        """
        self._check("withdraw")
        self._has_started = self._had_started and not asks
        self._outcome, self._is_late = None, False

    def wait(self, hold: Hold) -> None:
        """Keep the call open for a decision."""
        self._check("wait", "started", "finished")
        self._hold = hold.with_traceback(None)  # the frames of the traceback refer to the call: a reference cycle

    def close(self, text: str) -> None:
        """Refuse a call that will not be resumed, unless its function has started: it then has an unknown outcome."""
        if self._outcome is None and not self._has_started:
            self.finish(self.refusal(text))

    def take_arguments(self, early: Call) -> None:
        """Take over the arguments of a call that has started early, because a middleware may have changed them."""
        self._check("take_arguments")
        self._arguments, self._replaced = early._arguments, early._replaced

    def adopt(self, early: Call) -> None:
        """Take over the arguments and the progress of a call that has started early. `early` has the same message."""
        self._check("adopt", "waiting", "finished")
        self.take_arguments(early)
        self._has_started = self._has_started and early._has_started
        self._unknown_inside = early._unknown_inside
        self._hold, self._outcome = early._hold, early._outcome

    def note_unknown_inside(self, calls: Sequence[UnknownCall]) -> None:
        """Set the calls inside this call whose outcome is not known."""
        self._check("note_unknown_inside")
        self._unknown_inside = calls

    # --- the end of the turn ---

    def merge(self) -> None:
        """Mark the context changes as applied."""
        if self._outcome is None or self._is_merged:
            self._check("merge", "planned", "started", "waiting")
        self._is_merged = True

    def refuse_handoff(self, reason: str) -> None:
        """Remove the handoff from the outcome. The message gets the reason."""
        outcome = self._outcome
        if outcome is not None and outcome.result is not None and outcome.agent is not None:
            result = outcome.result.model_copy(update={"agent": None})
            self._outcome = dataclasses.replace(
                outcome, content=with_note(outcome.content, f" ({reason})"), result=result
            )

    def reopened(self) -> Call:
        """Return the call for a turn that stays open; a new object if the call must change.

        A handoff to an agent is planned again, because the waiting calls must belong to the active agent. A call that needs a
        decision and was not reached waits too, so that the user can decide on all calls at once.
        """
        if (tool := self._tool) is None:
            return self
        if tool.is_handoff and (self._outcome is None or self._outcome.agent is not None):
            return self._planned_again()
        is_new = self.progress == "planned" and self._decision is None
        if is_new and (hold := standing_hold(tool)) and are_valid(tool, self._arguments):
            again = self._planned_again()
            again.wait(hold)
            return again
        return self

    def _planned_again(self) -> Call:
        again = copy.copy(self)
        again._outcome, again._has_started, again._had_started, again._is_merged = None, False, False, False
        return again

    # --- derived facts ---

    @property
    def has_approval(self) -> bool:
        """Whether the decision of this run is an approval, and not only a `Reply`."""
        return self._decision is not None and self._decision.is_approval

    @property
    def has_other_arguments(self) -> bool:
        """Whether a guard has changed the arguments after the user of this run has seen them."""
        if self._decision is None or self._decision.seen is None:
            return False
        replaced, changed = self._replaced, self._decision.arguments
        own = arguments_or_text(call_arguments(self._message)) if changed is None else changed
        return self._decision.seen != (own if replaced is None else replaced)

    def value_of(self, outcome: ToolOutcome) -> Returned | None:  # noqa: ARG002
        """Return the value that code gets for the outcome of this call, if code makes the call."""
        return None


class TurnCalls(list[Call]):
    """The calls of a turn, or of a round of code, in call order. Derives the facts that depend on the other calls."""

    __slots__ = ()

    def changes(self) -> dict[str, Any]:
        """Return the context changes of finished calls that are not merged yet. The last change in call order wins."""
        changes: dict[str, Any] = {}
        for call in self:
            if (outcome := call.outcome) and outcome.result and not call.is_merged:
                changes.update(outcome.result.context_variables)
        return changes

    def handed_to(self) -> Agent | None:
        """Return the agent of the last handoff in call order, or None."""
        target: Agent | None = None
        for call in self:
            if (outcome := call.outcome) and outcome.result and outcome.result.agent:
                target = outcome.result.agent
        return target

    def open_calls(self) -> set[Call]:
        """Return the calls that get no answer, so that a later run can resume them.

        After a handoff in the same turn, no call stays open, because the new agent may not have its function.
        """
        return set() if self.handed_to() else self._resumable()

    def _resumable(self) -> set[Call]:
        """Return the calls that have not started, or are repeatable.

        Ids may repeat. A call is excluded if a later call with the same id and name has an answer: a resumed run would give that
        answer to the earlier call.
        """
        resumable: set[Call] = set()
        answered: set[tuple[str, str]] = set()
        for call in reversed(self):
            key = (call.id, call.name)
            if call.outcome or key in answered or (call.has_started and not call.is_repeatable):
                answered.add(key)
            else:
                resumable.add(call)
        return resumable

    def unknown_calls(self) -> list[UnknownCall]:
        """Return the calls whose outcome is not known; the calls inside a call come before it.

        A call without an outcome is in this list if its function has started. It is also in the list if a function of an inner
        run has started and the call cannot be resumed.
        """
        unknown_calls: list[UnknownCall] = []
        for call in self:
            if call.unknown_inside:
                unknown_calls += call.unknown_inside
            if (outcome := call.outcome) is not None:
                is_unknown = outcome.unknown or outcome.still_running
            else:
                is_unknown = call.has_started or (call.has_started_inside and call not in self.open_calls())
            if is_unknown:
                unknown_calls.append(UnknownCall(call.id, call.name, call_arguments(call.message), call.agent.name))
        return unknown_calls

    def must_wait(self) -> bool:
        """Return whether a waiting call keeps the turn open.

        After a handoff by a function, no call keeps it open: the function has run, so the handoff cannot be repeated later.
        """
        if not (held := [*filter(_HOLD, self)]):
            return False
        for call in self:
            if (outcome := call.outcome) and outcome.agent and not (call.tool and call.tool.is_handoff):
                return False
        return not self._resumable().isdisjoint(held)

    def reopened(self) -> TurnCalls:
        """Return the calls of a turn that stays open because a call waits."""
        return TurnCalls(call.reopened() for call in self)
