"""`code_tool`: a tool whose argument is code, which calls other tools.

Decides the description for the model, and the surroundings of the code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from aswarm._runtime import clocks
from aswarm._values.agent import Agent
from aswarm._values.errors import CallerMistake, ConfigurationError, ToolError
from aswarm.extensions import InnerCalls, Tool, ToolCall, calling_tool, tools_of

from ._sandbox import Broken, CodeLimits, MadeCall, Paused, Sandbox, Step, Surroundings, workers
from ._stubs import Stubs, result_text, stubs_of, value_of

_DELIVERED = "delivered"


def delivered_in(calls: InnerCalls) -> list[list[int]]:
    """Return the positions of the calls whose results the code got, each time together. Raises ValueError for changed data."""
    positions = [[*map(int, group)] for group in calls.notes.get(_DELIVERED, ())]
    calls.notes[_DELIVERED] = positions
    return positions


class Snippet:
    """One snippet with the calls that it makes.

    `delivered`: the list of `delivered_in`, to which the snippet adds each round.
    """

    def __init__(self, calls: InnerCalls, sandbox: Sandbox, delivered: list[list[int]]) -> None:
        self._calls = calls
        self._sandbox = sandbox
        self._delivered = delivered
        self._replayed = [*delivered]
        self._made: list[ToolCall] = []
        self._by_id: dict[int, ToolCall] = {}  # the calls without a delivered result, by their ids in the sandbox

    async def run(self, code: str) -> str:
        """Execute the code to its end, and return its result. Raises ToolError for code that failed."""
        step = await self._sandbox.start(code)
        while isinstance(step, Paused):
            results = await self._next_results(step)
            if self._calls.handed_to is not None:
                break
            step = await self._sandbox.resume(step.state, results)
        return self._end(step)

    # --- rounds ---

    async def _next_results(self, step: Paused) -> dict[int, Any]:
        """Run the calls that the code waits for, and return results by their ids in the sandbox."""
        new = [self._call_of(made) for made in step.made]
        if self._replayed:
            ready: Sequence[ToolCall] = self._recorded(self._replayed.pop(0))
        else:
            # Calls that were left when the code got a denial start only if the code makes no new call.
            pending = [self._by_id[id_] for id_ in step.waits_for if id_ in self._by_id]
            ready = await self._ready(new or sorted(pending, key=lambda call: call.index))
            self._delivered.append([call.index for call in ready])
            if self._calls.handed_to is not None:
                return {}
        ids = {call: id_ for id_, call in self._by_id.items()}
        for call in ready:
            del self._by_id[ids[call]]
        return {ids[call]: self._result_of(call) for call in ready}

    def _call_of(self, made: MadeCall) -> ToolCall:
        call = self._calls.make(self._sandbox.stubs.names[made.name], made.arguments)
        self._made.append(call)
        self._by_id[made.id] = call
        return call

    def _recorded(self, positions: Sequence[int]) -> list[ToolCall]:
        made, waiting = self._made, self._by_id.values()
        if not all(each < len(made) and made[each].outcome and made[each] in waiting for each in positions):
            raise self._calls.lost()
        return [made[each] for each in positions]

    async def _ready(self, batch: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """Return the calls of the batch with a result; runs them, unless some are denied.

        A denial goes to the code at once, alone: it may make the other calls needless.
        """
        ready = [call for call in batch if self._calls.is_denied(call)] or batch
        await self._calls.run(ready)
        return ready

    def _result_of(self, call: ToolCall) -> dict[str, Any]:
        try:
            return {"return_value": self._calls.value_of(call)}
        except ToolError as error:
            kind = "PermissionError" if self._calls.is_denied(call) else "RuntimeError"
            return {"exc_type": kind, "message": str(error)}

    # --- the end ---

    def _end(self, step: Step) -> str:
        ran, note = self._calls_text(), self._close()
        limit = self._sandbox.limits.output_characters
        if (target := self._calls.handed_to) is not None:
            return json.dumps({"assistant": target.name}, ensure_ascii=False) + note
        if isinstance(step, Broken):
            raise ToolError(result_text(self._sandbox.printed, step.text, limit) + ran + note)
        assert not isinstance(step, Paused)  # noqa: S101 - the loop has ended
        return result_text(self._sandbox.printed, step.value, limit) + note

    def _close(self) -> str:
        """Close the calls that the code does not need, and return a note that names them."""
        left = self._calls.close()
        unknown = [call for call in left if call.outcome and call.outcome.unknown]
        return _note(
            "not run, because the code ended without them", [call for call in left if call not in unknown]
        ) + _note(
            "stopped after functions had run inside, because the code ended without them, so their outcome is unknown",
            unknown,
        )

    def _calls_text(self) -> str:
        """Return a note about the calls that ran before the code failed, so that the model does not repeat them."""
        ran = [call.name for call in self._made if self._calls.has_run(call)]
        counts = {name: ran.count(name) for name in ran}
        listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
        return f"\n[calls that ran before: {listed}]" if ran else ""


def _note(text: str, calls: Sequence[ToolCall]) -> str:
    names = ", ".join(f"{call.name} ({call.id})" for call in calls)
    return f"\n[{text}: {names}]" if calls else ""


_PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code, with `await` at its top level."}},
    "required": ["code"],
}
_DESCRIPTION = """\
Run Python code that calls the functions below. Returns what the code prints, then the value of its last line. Use it for several \
calls, for loops and for calculations: one run of code does the work of many calls. `await` each call; \
`await asyncio.gather(...)` makes calls together. A failed call raises RuntimeError, and a call that the user denied raises \
PermissionError.

The code runs in a sandbox with a subset of Python: no files, network, packages, `yield`, `async with`, base classes, \
`create_task` or `return_exceptions`. Modules: base64, collections, copy, dataclasses, datetime, functools, itertools, json, \
math, random, re, time; asyncio is imported. The clock stands still. No variable is kept for the next run.

{stubs}"""


def code_tool(
    *functions: Any,
    name: str = "run_code",
    description: str = "",
    limits: CodeLimits | None = None,
    timezone: str = "UTC",
    type_check: bool = True,
) -> Tool[..., Any]:
    """Return a tool that runs Python code of the model, which calls these functions.

        agent = Agent(functions=[code_tool(orders, tool(approve=True)(refund))])

    The model gets the functions as Python signatures with their docstrings, and its code is type-checked before it runs. Each
    call in the code is a tool call of the run. If one of them waits for a decision, the call of this tool waits, and its
    `data["waiting"]` contains the calls inside: `Reply({id: decision})` decides on them, and True runs them all. The stored
    history then contains the results of the calls inside, so do not show it to users unchanged.

    Args:
        functions: Functions, tools and agents, as in `Agent(functions=[...])`. An agent is a handoff, which ends the code.
        name: The name of the tool for the model.
        description: A text for the model before the description of the tool, such as when to use it.
        limits: The limits of each run of code.
        timezone: The time zone of the clock of the code, such as "Europe/Berlin".
        type_check: False runs code without a check of its types.

    Raises:
        ConfigurationError: For no function, for a function that cannot be a tool, for two functions with the same name, for a
            code tool among the functions, and for an unknown time zone.
    """
    if not functions:
        raise ConfigurationError("code_tool needs functions, such as code_tool(search, refund)")
    _check_timezone(timezone)
    tools = tools_of(Agent(name=name, functions=[*functions])).values()
    stubs = stubs_of(tools)
    code = _CodeTool(stubs, limits or CodeLimits(), timezone, type_check)
    text = "\n\n".join(filter(None, (description, _DESCRIPTION.format(stubs=stubs.text))))
    return calling_tool(code.run, tools, name=name, description=text, parameters=_PARAMETERS, read=code.read)


def _check_timezone(timezone: str) -> None:
    try:
        ZoneInfo(timezone)
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"code_tool: unknown time zone {timezone!r} ({error}); pass a name such as 'Europe/Berlin' or 'UTC'"
        ) from error


@dataclass(frozen=True, slots=True)
class _CodeTool:
    stubs: Stubs
    limits: CodeLimits
    timezone: str
    has_type_check: bool

    async def run(self, calls: InnerCalls, code: str) -> str:
        try:
            workers()  # raises in a forked process
            surroundings, delivered = Surroundings(**calls.fixed(self._new_surroundings)), delivered_in(calls)
        except (ConfigurationError, TypeError, ValueError) as error:
            call = calls.call
            text = f"the call {call.id!r} of {call.name}: {error}"
            raise CallerMistake(text, has_started=call.has_started_inside) from error
        sandbox = Sandbox(self.stubs, self.limits, surroundings, self.has_type_check)
        return await Snippet(calls, sandbox, delivered).run(code)

    def read(self, call: ToolCall, value: Any, text: str) -> Any:
        return value_of(value, text, self.stubs.readings.get(call.name, "any"))

    def _new_surroundings(self) -> dict[str, str]:
        clock, seed = datetime.now(UTC).isoformat(timespec="milliseconds"), clocks.urandom(8).hex()
        return {"clock": clock, "timezone": self.timezone, "seed": seed}
