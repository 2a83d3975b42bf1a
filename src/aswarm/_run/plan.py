"""The plan of a turn: the groups of calls that may run together.

The rule: after the turn, the context, the active agent and the history must be the same as if the calls had run one after
another, in call order. This module decides only; it runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._tools.conversion import arguments_or_text
from aswarm._tools.tool import (
    Tool,
    may_hand_off,
    may_return_result,
    reads_context,
    runs_together,
    takes_context,
    writes_context,
)
from aswarm._values.agent import Agent, Result, UnknownCall
from aswarm._values.errors import Hold
from aswarm._values.events import ToolProgress
from aswarm._values.json import sendable_data
from aswarm._values.messages import Message, call_arguments, call_name, has_started_inside

from .returned import Returned

# The type of the progress that records the start of code; see `Tool._is_replayed`.
CODE_STARTED = "CodeStarted"
OTHER_CALLS = "stopped: the code has made other calls than its record has, so its outcome is unknown"
STOPPED_INSIDE = "stopped after functions had run inside, so its outcome is unknown"


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a call. `Response.unknown_calls` lists the calls with `still_running` or `unknown`.

    Args:
        content: The content of the tool message: a text, or a list of content parts.
        result: The handoff and the changes of the context variables; None if there is neither.
        error: The cause of a failure, or None.
        still_running: Whether the function continues to run, because it could not be stopped.
        unknown: Whether the function has started, in this process or an earlier one, and its outcome is unknown. If so,
            `content` must tell this to the model.

    In the content, a half of a surrogate pair becomes U+FFFD, because UTF-8 cannot encode it.
    """

    content: str | list[dict[str, Any]]
    result: Result | None = None
    error: Exception | None = None
    still_running: bool = field(default=False, kw_only=True)
    unknown: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        # Each result enters the run here: of a function, a middleware, a decision or a record.
        content = self.content
        if type(content) is str and content.isascii():
            return
        if (content := sendable_data(content)) is not self.content:
            object.__setattr__(self, "content", content)

    @property
    def agent(self) -> Agent | None:
        """The next agent of a handoff, or None."""
        return self.result.agent if self.result else None


@dataclass(frozen=True, slots=True)
class OutcomeInside(ToolOutcome):
    """The outcome of a call inside code. A middleware that replaces only the content keeps `returned`, and it then no longer holds."""

    returned: Returned | None = field(default=None, kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Decided:
    """The decisions of users on a call, in this run and earlier ones.

    `arguments`: the arguments that a user has set in place of the model's arguments, or None.
    `answer`: the data of `Answer`, if `is_answered`.
    `data`: the data of the `Hold` that the user has answered.
    `is_approval`: whether the decision of this run is an approval, and not only an `Answer`.
    `seen`: the arguments that the user of this run saw before the decision; None if no user decided.
    """

    arguments: Mapping[str, Any] | None = None
    answer: Any = None
    is_answered: bool = False
    data: Any = None
    is_approval: bool = False
    seen: Mapping[str, Any] | str | None = None


@dataclass(eq=False, slots=True)
class ToolCall:
    """One tool call of one assistant message. The object is the identity of the call, because ids of providers may repeat.

    aswarm makes it. A middleware may set `arguments` before the call runs.

    Args:
        message: The call in the assistant message; it must not be changed.
        index: The position of the call in that message, from 0.
        arguments: The JSON text of the arguments; empty for no arguments. A change does not change the history.
        agent: The agent that made the call.
        tool: The called tool; None if the agent has no such function.
    """

    message: Message
    index: int
    agent: Agent
    tool: Tool[..., Any] | None
    # The state of the call in the loop.
    _started: bool = False  # whether the function has started
    _outcome: ToolOutcome | None = None  # of a finished call
    _merged: bool = False  # whether the run has applied the handoff and the context changes of the call
    _decided: Decided | None = None  # the decision that lets the call run; None if it stays open or is refused
    _hold: Hold | None = None  # while the call waits for a decision
    _emit: Callable[[ToolProgress], None] | None = None  # gets the progress events, on the event loop
    _replaced: Mapping[str, Any] | None = None  # the arguments that a guard has set
    _unknown_inside: Sequence[UnknownCall] = ()  # the calls that its function made, and whose outcome is not known
    arguments: str = field(init=False)

    def __post_init__(self) -> None:
        self.arguments = call_arguments(self.message)

    @property
    def parent(self) -> ToolCall | None:
        """The outer call whose function makes this call; None for a call of the model."""
        return None

    @property
    def id(self) -> str:
        """The id from the provider, or a generated id if the provider sent none."""
        return str(self.message["id"])

    @property
    def name(self) -> str:
        """The name of the tool, as the model sent it."""
        return call_name(self.message)

    @property
    def _has_started_inside(self) -> bool:
        """Whether the call waits, or has waited, for an inner run in which a function has started."""
        held, decided = self._hold and self._hold.data, self.data
        return has_started_inside(held) or has_started_inside(decided)

    def _refused(self, text: str, error: Exception | None = None) -> ToolOutcome:
        """Return the outcome of a call that was not executed; `unknown=True` if a function of an inner run has started."""
        if self._has_started_inside:
            reason = text.removeprefix("not run").removeprefix(": ")
            text = f"{STOPPED_INSIDE}: {reason}" if reason else STOPPED_INSIDE
        return ToolOutcome(text, error=error, unknown=self._has_started_inside)

    def _value_of(self, outcome: ToolOutcome) -> Returned | None:  # noqa: ARG002
        """Return the value that code gets for the outcome of this call, if code makes the call."""
        return None

    @property
    def is_approved(self) -> bool:
        """Whether a user has approved this call, or has answered its question."""
        return self._decided is not None

    @property
    def answer(self) -> Any:
        """The data of the `Answer` to the `Hold` of this call, or None."""
        return self._decided and self._decided.answer

    @property
    def data(self) -> Any:
        """The data of the `Hold` that this call raised before the user decided, or None."""
        return self._decided and self._decided.data

    @property
    def _is_approval(self) -> bool:
        """Whether the decision of this run is an approval, and not only an `Answer`."""
        return self._decided is not None and self._decided.is_approval

    @property
    def _has_other_arguments(self) -> bool:
        """Whether a guard has changed the arguments after the user of this run has seen them."""
        if self._decided is None or self._decided.seen is None:
            return False
        replaced, changed = self._replaced, self._decided.arguments
        own = arguments_or_text(call_arguments(self.message)) if changed is None else changed
        return self._decided.seen != (own if replaced is None else replaced)

    @property
    def is_repeatable(self) -> bool:
        """Whether the function may run again after an interruption; see `repeatable` of `@tool`."""
        return self.tool is not None and self.tool.repeatable

    def _close(self, text: str) -> None:
        """Set the outcome of a call that will not be resumed, unless its function has started: it then has an unknown outcome."""
        if self._outcome is None and not self._started:
            self._outcome = self._refused(text)
            self._hold = None

    @property
    def _as_unknown(self) -> UnknownCall:
        """The call in the form of `Response.unknown_calls`."""
        return UnknownCall(self.id, self.name, call_arguments(self.message), self.agent.name)


@dataclass(eq=False, slots=True)
class CallInside(ToolCall):
    """One call that the function of an outer call makes.

    `index`: its number in the outer call. `outer`: the outer call. `read`: returns the value that the code gets for an outcome; None
    for a call that raises in the code.
    """

    outer: ToolCall | None = None
    read: Callable[[ToolCall, ToolOutcome], Returned | None] | None = None

    @property
    def parent(self) -> ToolCall | None:
        return self.outer

    def _value_of(self, outcome: ToolOutcome) -> Returned | None:
        return None if self.read is None else self.read(self, outcome)


def calls_of(messages: Iterable[Message], agent: Agent, tools: Mapping[str, Tool[..., Any]]) -> list[ToolCall]:
    """Return the calls of an assistant message, with the tools of the agent that made them."""
    return [
        # A call of another type ("custom") never runs a function, even if a tool has its name.
        ToolCall(message, position, agent, tools.get(call_name(message)) if message.get("function") else None)
        for position, message in enumerate(messages)
    ]


def plan(calls: Sequence[ToolCall], *, concurrent: bool = True, may_hold: bool = False) -> list[list[ToolCall]]:
    """Return the calls in groups. The groups run one after another; the calls of one group run together.

    `may_hold`: whether a middleware of the run may raise Hold for any call, so that the call waits for a decision.
    """
    if len(calls) == 1:
        return [[*calls]]
    groups: list[list[ToolCall]] = []
    # `tools`: all tools of the last group. `waiting`: the tools whose calls in this group may wait for a decision. A dict
    # contains each tool once, so a turn with thousands of calls takes linear time.
    tools: dict[int, Tool[..., Any]] = {}
    waiting: dict[int, Tool[..., Any]] = {}
    keys: set[tuple[str, str]] = set()  # the id and name of each call that may wait, even without a tool
    for call in calls:
        joins = groups and concurrent and _fits(call.tool, tools.values())
        # Calls with equal id and name never share a group. The answer of the later call would close the earlier, waiting call.
        if not joins or (keys and ((call.id, call.name) in keys or not _may_pass(call, waiting.values()))):
            groups.append([])
            tools.clear()
            waiting.clear()
            keys.clear()
        groups[-1].append(call)
        if call.tool is not None:
            tools[id(call.tool)] = call.tool
        # A call without a tool may be for a tool that the client executes, so it may wait too.
        may_wait = call._outcome is None and (may_hold or call.tool is None or call.tool._may_wait)
        if may_wait or call._hold is not None:
            keys.add((call.id, call.name))
            if call.tool is not None:
                waiting[id(call.tool)] = call.tool
    return groups


def _may_pass(call: ToolCall, waiting: Iterable[Tool[..., Any]]) -> bool:
    """Return whether a call may run while earlier calls wait for a decision. `waiting`: the tools of these earlier calls.

    Return False if this call or a waiting call may hand off, because a handoff closes waiting calls. Also return False if one
    of the two calls may change context variables that the other call uses.
    """
    tool = call.tool
    # A handoff to an agent closes no waiting calls: it runs again after their decisions, see `reopened` in `turn`.
    if tool is None or call._outcome is not None or tool.is_handoff:
        return True
    if may_hand_off(tool) or (tool._may_wait and any(map(may_hand_off, waiting))):
        return False
    if writes_context(tool):
        return not any(takes_context(other) or may_return_result(other) for other in waiting)
    return not (must_see_order(tool) and any(map(writes_context, waiting)))


def _fits(tool: Tool[..., Any] | None, tools: Iterable[Tool[..., Any]]) -> bool:
    """Return whether a call of the tool may run together with earlier calls of these tools."""
    if tool is None:  # the call runs no function
        return all(map(runs_together, tools))
    if not runs_together(tool) or not all(map(runs_together, tools)):
        return False
    if must_see_order(tool):
        return not any(may_return_result(other) or writes_context(other) for other in tools)
    return not (writes_context(tool) and any(map(must_see_order, tools)))


def must_see_order(tool: Tool[..., Any]) -> bool:
    """Return whether a call of this tool, or its `approve`, needs the context changes of the calls before it."""
    # @tool(concurrent=True) declares that the function does not need them.
    return tool.concurrent is None and (reads_context(tool) or callable(tool.approve))
