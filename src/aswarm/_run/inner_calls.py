"""Functions that make calls: each of these calls is a tool call of the run.

The order of the calls must depend only on the arguments of the function and on the results, never on the time that a call takes. So
the function is replayed by calling it again: recorded calls have their recorded results, and all others run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aswarm._tools.conversion import to_text
from aswarm._tools.tool import Tool, function_tool
from aswarm._tools.toolbox import tools_of
from aswarm._values.agent import Agent, Result
from aswarm._values.errors import (
    CallerMistake,
    CallLost,
    ConfigurationError,
    FailedInside,
    Hold,
    ToolNotFound,
)
from aswarm._values.events import ToolProgress
from aswarm._values.json import is_json, shown

from .call import Call, ToolCall, TurnCalls
from .calls_inside import CODE_STARTED, OTHER_CALLS, CallsInside, Read, check_decision, read_value
from .current_call import Running, running
from .execution import finished_event
from .group import run_group
from .run_info import OuterRun
from .turn import Turn, plan

NOT_AWAITED = "not run: the code ended without it"


class InnerCalls:
    """The calls that the function of a tool call makes, see `calling_tool`. Each of them is a call of the run.

    The function makes calls, and then runs one or several of them, like the calls of one message. It must make the same calls
    whenever it gets the same arguments and results, because it runs again from its start after a wait, and after a crash if a record
    has its calls. It must not catch `Hold`.
    """

    def __init__(self, now: Running, run: OuterRun, calls: CallsInside) -> None:
        self._now = now
        self._run = run
        self._calls = calls
        self._made = 0  # in this execution
        self._reported = set(calls.finished)  # the positions of the calls whose end has an event
        self._handed_to: Agent | None = None
        self._is_running = self._has_ended = False

    @property
    def call(self) -> ToolCall:
        """The outer call."""
        return self._calls.outer

    @property
    def notes(self) -> dict[str, Any]:
        """JSON data of the function. After a wait, the function finds them again.

        The keys "failed", "not_run", "surroundings" and "values" are reserved. A reserved key, or a value that is not JSON, ends
        the run with a ConfigurationError when a call waits.
        """
        return self._calls.notes

    def fixed(self, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return values that are the same in each execution, such as a time. `make` creates them in the first execution.

        They are recorded with the first call. Call this method once, before the calls. Raises ConfigurationError if the values are
        not JSON, or have the key "type".
        """
        if self._calls.fixed is None:
            recorded = self._now.recorded_start
            values = dict(make()) if recorded is None else {key: recorded[key] for key in recorded if key != "type"}
            if "type" in values or not is_json(values):
                text = f"fixed values must be JSON data without the key 'type', not {shown(values, 80)}"
                raise CallerMistake(f"the call of {self.call.name!r}: {text}", has_started=self._calls.has_started)
            self._emit({"type": CODE_STARTED, **values})
            self._calls.fixed = values
        return dict(self._calls.fixed)

    def make(self, name: str, arguments: str) -> ToolCall:
        """Return the next call, of the function with this name. `arguments`: a JSON text. The call does not start.

        Raises ToolNotFound for an unknown name, CallLost if an earlier execution has made another call here, and RuntimeError after
        the end of the function.
        """
        self._check_open()
        if name not in self._calls.tools:
            raise ToolNotFound(f"Tool {name} not found. Tools: {', '.join(self._calls.tools)}.")
        call = self._calls.call_at(self._made, name, arguments)
        self._made += 1
        return call

    async def run(self, calls: Sequence[ToolCall]) -> None:
        """Run the calls that have no outcome: together where that is safe, and in their order where it is not.

        If a call waits for a decision, this raises Hold, and the outer call waits. After a handoff, see `handed_to`, the function must
        return. Raises RuntimeError while another `run` of this object runs, after the end of the function, for a call of another
        object, and for a call whose `run` was cancelled: its outcome is unknown, and it never starts again.
        """
        self._check_open()
        if self._is_running:
            raise RuntimeError("run() is already running; pass all calls that may run together to one run()")
        if self._handed_to is not None:
            raise RuntimeError("a call has handed off, so the function must return")
        own_calls = [self._own(call) for call in dict.fromkeys(calls)]
        open_ones = [call for call in own_calls if call.outcome is None]
        for call in own_calls:  # a user may have decided on it
            self._report(call)
        if open_ones:
            self._is_running = True
            try:
                await self._run_open(open_ones)
            finally:
                self._is_running = False

    def _own(self, call: ToolCall) -> Call:
        position = call.index
        if position >= self._made or (own := self._calls.calls[position]) is not call:
            raise RuntimeError(f"{call!r} is not a call that this object has made")
        if own.has_started and own.outcome is None:
            raise RuntimeError(
                f"the call {call.id!r} of {call.name} was cancelled, so its outcome is unknown; do not run it again"
            )
        return own

    def _check_open(self) -> None:
        if self._has_ended:
            raise RuntimeError("the function of the outer call has ended, so it makes and runs no more calls")

    @property
    def handed_to(self) -> Agent | None:
        """The agent of a handoff by a call, or None."""
        return self._handed_to

    def value_of(self, call: ToolCall) -> Any:
        """Return the result of a call that has run, as JSON data. Raises ToolError with the text of a call that has failed."""
        return self._calls.value_of(call)

    def is_denied(self, call: ToolCall) -> bool:
        """Return whether a user has denied the call, in this run or an earlier one."""
        return self._calls.is_denied(call)

    def has_run(self, call: ToolCall) -> bool:
        """Return whether functions of the call have run, in this run or an earlier one."""
        return self._calls.has_run(call)

    @staticmethod
    def lost() -> CallLost:
        """Return the error to raise if the function cannot make its recorded calls; the outcome of the outer call is unknown."""
        return CallLost(OTHER_CALLS)

    def close(self) -> list[ToolCall]:
        """Close the calls that have not run, and return them. This is done at the end of the function, too.

        Raises CallLost if an earlier execution has made more calls.
        """
        if self._made < len(self._calls.calls) and self._handed_to is None:
            raise self.lost()
        left: list[ToolCall] = []
        for call in self._calls.calls[: self._made]:
            if call.outcome is None:
                call.close(NOT_AWAITED)
                self._report(call)
                left.append(call)
        return left

    def _leave(self, *, waits: bool) -> None:
        """Finish the execution, however it ends."""
        self._has_ended = True
        for call in () if waits else self._calls.calls:
            call.close(NOT_AWAITED)
        outer = self._calls.outer
        outer.note_unknown_inside([*outer.unknown_inside, *self._calls.calls.unknown_calls()])

    # --- a round ---

    async def _run_open(self, open_ones: Sequence[Call]) -> None:
        state = self._run.state
        if state.budget is not None:
            state.budget.admit_calls(open_ones)
            for call in open_ones:
                self._report(call)
        calls = TurnCalls(call for call in open_ones if call.outcome is None)
        turn = Turn(calls)  # a round waits, and hands off, like the same calls in one message
        for group in plan(calls, concurrent=state.concurrent_tools, may_hold=self._now.may_hold):
            await self._run_group(group)
            state.context.update(calls.changes())
            if not turn.finish_group(group):
                raise self._calls.hold()
        if state.budget is not None:
            state.budget.add_results(calls)
        self._handed_to = calls.handed_to()

    async def _run_group(self, group: Sequence[Call]) -> None:
        now, context = self._now, self._run.state.context
        try:
            await run_group(group, context, now.handler, self._emit, may_hold=now.may_hold)
            self._reported.update(call.index for call in group)
        except CallLost:
            raise
        except Exception as error:  # of a middleware, a hook or the record: it ends the run, as outside of the function
            raise FailedInside(error, has_started=self._calls.has_started) from error

    # --- events ---

    def _report(self, call: ToolCall) -> None:
        if call.outcome is not None and call.index not in self._reported:
            self._reported.add(call.index)
            self._emit(finished_event(call, call.outcome))

    def _emit(self, value: Any) -> None:
        outer = self._calls.outer
        self._now.emit(ToolProgress(outer.index, outer.id, outer.name, value))


# --- the tool ---------------------------------------------------------------------------------------------------------


def calling_tool(
    function: Callable[..., Awaitable[str]],
    functions: Iterable[Any],
    *,
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    read: Read = read_value,
) -> Tool[..., Any]:
    """Return a tool whose function makes calls of other functions. Each call is a tool call of the run, see `InnerCalls`.

    So guards, limiters, budgets, traces and records see these calls, and they may wait for a decision. Then the outer call waits too,
    and its `data["waiting"]` contains the calls inside: `Reply({id: decision})` decides on them, and True runs them all.

    Args:
        function: An async function that returns the text for the model. It gets an `InnerCalls`, and the arguments of the model by
            keyword, as for `function_tool`.
        functions: The functions that it may call: functions, tools and agents, as in `Agent(functions=[...])`.
        name: The name of the tool for the model.
        description: The description for the model.
        parameters: A JSON schema, as for `function_tool`.
        read: Returns the value of `InnerCalls.value_of`, as JSON data. It gets the call, the returned value as JSON data, and the text
            of its result. By default, it is the returned value. If a middleware has replaced the result, it is the text.

    Raises:
        ConfigurationError: As `function_tool`; for a function that cannot be a tool, for two functions with the same name, and for a
            tool among the functions that makes calls itself.
    """
    tools = tools_of(Agent(name=name, functions=[*functions]))
    for inner_name, inner in tools.items():
        if inner._is_replayed:
            raise ConfigurationError(f"{name}: {inner_name!r} makes calls itself; pass its functions to one tool")
    made = function_tool(
        _CallingTool(name, function, tools, read).function_with_effects,
        name=name,
        description=description,
        parameters=parameters,
        concurrent=None if all(inner.effects.runs_together for inner in tools.values()) else False,
        may_wait=True,
        check_decision=partial(check_decision, tools),
    )
    return dataclasses.replace(made, _is_replayed=True, _inside=tuple(tools.values()))


@dataclass(frozen=True, slots=True)
class _CallingTool:
    name: str
    function: Callable[..., Awaitable[str]]
    tools: Mapping[str, Tool[..., Any]]
    read: Read

    @property
    def function_with_effects(self) -> Callable[..., Any]:
        """The function whose hints tell the plan of a turn the effects of the calls inside."""
        effects = [tool.effects for tool in self.tools.values()]
        if any(each.writes_context or each.may_hand_off for each in effects):
            return self.run_alone
        return self.run_reading if any(each.takes_context for each in effects) else self.run

    async def run_alone(self, *, context_variables: dict[str, Any], **arguments: Any) -> str | Result:  # noqa: ARG002
        return await self._run(arguments)

    async def run_reading(self, *, context_variables: Mapping[str, Any], **arguments: Any) -> str:  # noqa: ARG002
        return str(await self._run(arguments))

    async def run(self, **arguments: Any) -> str:
        return str(await self._run(arguments))

    async def _run(self, arguments: Mapping[str, Any]) -> str | Result:
        calls, waits = self._calls(), False
        try:
            text = to_text(await self.function(calls, **arguments))
            calls.close()
        except Hold:
            waits = True
            raise
        except (CallLost, ConfigurationError, FailedInside):
            raise
        except Exception:
            calls.close()  # raises CallLost for a function that has not made its recorded calls
            raise
        finally:
            calls._leave(waits=waits)
        return text if calls.handed_to is None else Result(value=text, agent=calls.handed_to)

    def _calls(self) -> InnerCalls:
        if (now := running()) is None or now.run is None:
            raise ConfigurationError(
                f"{self.name!r} makes calls of a run, so it works only as a function of an agent; put it into Agent(functions=[...])"
            )
        outer = now.call
        try:
            return InnerCalls(now, now.run, CallsInside.of(outer, self.tools, self.read))
        except ConfigurationError as error:
            text = f"the call {outer.id!r} of {outer.name}: {error}"
            raise CallerMistake(text, has_started=outer.has_started_inside) from error
