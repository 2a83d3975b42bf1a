"""The calls that the function of a call makes: their values, their stored form if one of them waits, and the decisions on them. No I/O.

The stored form is the same as for a run inside a call, so programs that show such a run show these calls too: one assistant message
with all calls, and the tool messages of the finished calls. Nothing in it can approve a call.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aswarm._tools.tool import Tool
from aswarm._values.content import described
from aswarm._values.decisions import UNDECIDED, is_run_inside, storable_inside, waiting_entries
from aswarm._values.errors import CallerMistake, CallLost, ConfigurationError, Hold, ToolError
from aswarm._values.json import is_json, is_object
from aswarm._values.messages import (
    OUTCOME_UNKNOWN,
    STARTED_INSIDE,
    WAITING,
    Message,
    call_arguments,
    call_name,
    match_answers,
    normalize,
)

from .call import Call, ToolCall, TurnCalls
from .outcome import OutcomeInside, Returned, ToolOutcome, returned
from .resuming import DENIED, DENIED_INSIDE, decide
from .turn import Turn, check_order

# The type of the progress that records the values of `InnerCalls.fixed`.
CODE_STARTED = "CodeStarted"
OTHER_CALLS = "stopped: the code has made other calls than its record has, so its outcome is unknown"
_CODE = "code"  # the key of the data that only the function and these calls read
_FIXED = "surroundings"
_RESERVED = frozenset({_FIXED, "failed", "not_run", "values"})  # keys of these data that are no notes

Read: TypeAlias = Callable[[ToolCall, Any, str], Any]


def read_value(_: ToolCall, value: Any, __: str) -> Any:
    """Return the value that a function has returned as JSON data, or else the text of its result."""
    return value


class CallInside(Call):
    """One call that the function of an outer call makes.

    `index`: its number in the outer call. `outer`: the outer call. `read`: see `calling_tool`.
    """

    __slots__ = ("_outer", "_read")

    def __init__(self, message: Message, index: int, tool: Tool[..., Any] | None, outer: Call, read: Read) -> None:
        super().__init__(message, index, outer.agent, tool)
        self._outer = outer
        self._read = read

    @property
    def parent(self) -> Call:
        return self._outer

    def value_of(self, outcome: ToolOutcome) -> Returned | None:
        return None if _raises(self, outcome) else _final_value(self._read, self, outcome)


def _raises(call: ToolCall, outcome: ToolOutcome) -> bool:
    """Return whether the outcome is an error for the function: the call failed, or was not allowed to run."""
    if outcome.error is not None or outcome.unknown or outcome.still_running:
        return True
    content = outcome.content
    return not call.has_started and isinstance(content, str) and content.startswith(("not run", "stopped"))


def _final_value(read: Read, call: ToolCall, outcome: ToolOutcome) -> Returned:
    """Return the value of an outcome that is no error."""
    content = outcome.content
    text = content if isinstance(content, str) else described(content)
    own = outcome.returned if isinstance(outcome, OutcomeInside) else None
    if own is None or own.content != content:  # a guard or another middleware has replaced the content
        return _as_returned(content, read(call, text, text), text)
    if own.is_final:
        return own
    value = read(call, before := own.value, text)
    return dataclasses.replace(own, is_final=True) if value is before else _as_returned(content, value, text)


def _as_returned(content: str | list[dict[str, Any]], value: Any, text: str) -> Returned:
    made = returned(content, value, is_final=True)
    return made or Returned(content, json.dumps(text), is_final=True)


@dataclass(slots=True)
class CallsInside:
    """All calls of one outer call so far.

    `finished`: the positions of the calls that finished in an earlier run. `failed`: the positions among them of errors; `not_run`: of
    refused calls. `entries`: the entries of the calls that waited, by position. `notes`: the data of the function. `fixed`: its
    fixed values, or None.
    """

    outer: Call
    tools: Mapping[str, Tool[..., Any]]
    read: Read
    calls: TurnCalls = field(default_factory=TurnCalls)
    finished: set[int] = field(default_factory=set[int])
    failed: set[int] = field(default_factory=set[int])
    not_run: set[int] = field(default_factory=set[int])
    entries: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    had_started: bool = False
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    fixed: dict[str, Any] | None = None

    @classmethod
    def of(cls, outer: Call, tools: Mapping[str, Tool[..., Any]], read: Read) -> CallsInside:
        """Return the calls of an outer call, with the decisions of this run. There are none if the outer call has not waited.

        Raises ConfigurationError for a decision that does not suit, and for data that were changed.
        """
        calls = cls(outer, tools, read)
        if (data := _data_of(outer)) is not None:
            try:
                calls._restore(data)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"the calls in its data cannot be read ({type(error).__name__}: {error}); pass the messages of the run that "
                    "stopped, unchanged"
                ) from error
            calls._decide()
        return calls

    def call_at(self, position: int, name: str, arguments: str) -> Call:
        """Return the call at this position: a new call, or the call of the earlier run. Raises CallLost if that is another call."""
        if position < len(self.calls):
            call = self.calls[position]
            if (call.name, call_arguments(call.message)) != (name, arguments):
                raise CallLost(OTHER_CALLS)
            return call
        function = {"name": name, "arguments": arguments}
        call = self._inside({"id": f"{self.outer.id}.{position}", "type": "function", "function": function}, position)
        self.calls.append(call)
        return call

    def _inside(self, message: Message, position: int) -> CallInside:
        return CallInside(message, position, self.tools.get(call_name(message)), self.outer, self.read)

    # --- the stored form ---

    def _restore(self, data: Mapping[str, Any]) -> None:
        head, *behind = normalize(data["messages"])
        made, code = head["tool_calls"], dict(data[_CODE])
        self.calls = TurnCalls(self._inside(message, position) for position, message in enumerate(made))
        values = {int(position): value for position, value in code.pop("values", {}).items()}
        self.failed, self.not_run = set(map(int, code.pop("failed"))), set(map(int, code.pop("not_run", ())))
        self.fixed, self.notes = code.pop(_FIXED, None), code
        answers = match_answers(made, [message for message in behind if WAITING not in message])
        for call, answer in zip(self.calls, answers, strict=True):
            if answer is not None:
                content, value = answer["content"], values.get(call.index)
                own = None if value is None else Returned.from_record(content, value)
                call.finish(OutcomeInside(content, returned=own))
                call.merge()
                self.finished.add(call.index)
        self.entries = waiting_entries([head, *behind]) or {}
        self.had_started = bool(data.get(STARTED_INSIDE))

    def _decide(self) -> None:
        open_ones = [call for call in self.calls if call.outcome is None]
        decide(open_ones, (self.outer.decision or UNDECIDED).inside, self.entries)
        check_order(open_ones, self.entries)

    def hold(self) -> Hold:
        """Return the `Hold` of the outer call: the calls that wait, and the data to continue in another process."""
        self.calls[:] = self.calls.reopened()
        agent, has_started = self.outer.agent.name, self.has_started
        made = [call.message for call in self.calls]
        head: Message = {"role": "assistant", "content": None, "sender": agent, "tool_calls": made}
        messages, waiting = Turn(self.calls, self.entries).added_to([head])
        if (stored := storable_inside(messages)) is None:
            raise CallerMistake(
                "a call inside the call waits, and its data are nested too deeply to be stored; use fewer levels of agents as tools",
                has_started=has_started,
            )
        if not is_json(self.notes) or not _RESERVED.isdisjoint(self.notes):
            raise CallerMistake(
                f"a call inside {self.outer.name!r} waits, and its notes cannot be stored: they must be JSON data without the keys "
                f"{', '.join(map(repr, sorted(_RESERVED)))}",
                has_started=has_started,
            )
        return Hold(
            "; ".join(f"{call.name} {call.reason}" for call in waiting if call.reason),
            data={
                "agent": agent,
                "messages": stored,
                "context_variables": {},
                "removed": [],
                STARTED_INSIDE: has_started,
                _CODE: {**({} if self.fixed is None else {_FIXED: self.fixed}), **self.notes, **self._facts()},
            },
        )

    def _facts(self) -> dict[str, Any]:
        values = {str(call.index): value.recorded for call in self.calls if (value := self._value_of(call))}
        return {
            "not_run": [call.index for call in self.calls if call.outcome and not self.has_run(call)],
            "failed": sorted(call.index for call in self.calls if self.has_failed(call)),
            "values": values,
        }

    # --- outcomes ---

    @property
    def has_started(self) -> bool:
        """Whether a function has started inside, in this run or an earlier one."""
        return self.had_started or any(call.has_started or call.has_started_inside for call in self.calls)

    def has_run(self, call: ToolCall) -> bool:
        """Return whether functions of the call have run, in this run or an earlier one. A refused call has not run."""
        if call.index in self.finished:
            return call.index not in self.not_run
        return call.has_started or (call.outcome is not None and call.outcome.unknown)

    def has_failed(self, call: ToolCall) -> bool:
        """Return whether the call is an error for the function: it failed, or was not allowed to run."""
        if (outcome := call.outcome) is None:
            return call.has_started and call.hold is None  # its run was cancelled
        if call.index in self.finished:  # its content may look like a refusal
            return call.index in self.failed
        return _raises(call, outcome)

    def is_denied(self, call: ToolCall) -> bool:
        """Return whether a user has denied the call."""
        if (outcome := call.outcome) is None or not self.has_failed(call):
            return False
        return str(outcome.content).startswith((DENIED, DENIED_INSIDE))

    def value_of(self, call: ToolCall) -> Any:
        """Return the value of a finished call. Raises ToolError with the text of a call that has failed."""
        if (value := self._value_of(call)) is not None:
            return value.value
        content = call.outcome.content if call.outcome else OUTCOME_UNKNOWN if call.has_started else "not run"
        raise ToolError(content if isinstance(content, str) else described(content))

    def _value_of(self, call: ToolCall) -> Returned | None:
        if (outcome := call.outcome) is None or self.has_failed(call):
            return None
        return _final_value(self.read, call, outcome)


def _data_of(outer: ToolCall) -> Mapping[str, Any] | None:
    """Return the data of a call that has waited, or None. Raises ConfigurationError for data of another form."""
    data = outer.data
    if data is None:
        return None
    if not (is_run_inside(data) and is_object(data.get(_CODE))):
        raise ConfigurationError(
            'it has no calls in its data; pass the messages of the run that stopped with stop="waiting", unchanged'
        )
    return data


def check_decision(tools: Mapping[str, Tool[..., Any]], outer: ToolCall) -> None:
    """Raise ConfigurationError if the decision does not suit the calls inside the call, before any other call runs."""
    decision = outer.decision or UNDECIDED
    try:
        if decision.data is not None and decision.is_changed:
            raise ConfigurationError("its code has started, so it cannot be changed; decide on the calls inside")
        CallsInside.of(Call.of(outer), tools, read_value)
    except ConfigurationError as error:
        raise ConfigurationError(f"the call {outer.id!r} of {outer.name}: {error}") from error
