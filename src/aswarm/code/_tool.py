"""`code_tool`: a tool whose argument is code, which calls other tools.

Decides the description for the model, and whether the calls of the code may run beside other calls.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from aswarm._run.call import CODE_STARTED
from aswarm._run.current_call import Running, running
from aswarm._tools.tool import Tool, function_tool
from aswarm._tools.toolbox import tools_of
from aswarm._values.agent import Agent, Result
from aswarm._values.decisions import UNDECIDED
from aswarm._values.errors import CallerMistake, ConfigurationError
from aswarm._values.events import ToolProgress

from ._limits import CodeLimits
from ._sandbox import Sandbox, Surroundings
from ._snippet import Snippet
from ._state import CodeState, check_decision, restored, waited
from ._stubs import Stubs, stubs_of
from ._workers import workers

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
    `data["waiting"]` contains the calls inside: `Answer({id: decision})` decides on them, and True runs them all. The stored
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
    tools = tools_of(Agent(name=name, functions=[*functions]))
    for inner_name, inner in tools.items():
        if inner._is_replayed:
            raise ConfigurationError(
                f"code_tool: {inner_name!r} is a code tool itself; pass its functions to one code_tool"
            )
    stubs = stubs_of(tools.values())
    code = _CodeTool(tools, stubs, limits or CodeLimits(), timezone, type_check)
    text = "\n\n".join(filter(None, (description, _DESCRIPTION.format(stubs=stubs.text))))
    made = function_tool(
        code.function,
        name=name,
        description=text,
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code, with `await` at its top level."}},
            "required": ["code"],
        },
        concurrent=None if all(tool.effects.runs_together for tool in tools.values()) else False,
        may_wait=True,
        check_decision=partial(check_decision, tools),
    )
    return dataclasses.replace(made, _is_replayed=True, _inside=tuple(tools.values()))


def _check_timezone(timezone: str) -> None:
    try:
        ZoneInfo(timezone)
    except (ValueError, OSError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"code_tool: unknown time zone {timezone!r} ({error}); pass a name such as 'Europe/Berlin' or 'UTC'"
        ) from error


@dataclass(frozen=True, slots=True)
class _CodeTool:
    tools: Mapping[str, Tool[..., Any]]
    stubs: Stubs
    limits: CodeLimits
    timezone: str
    has_type_check: bool

    @property
    def function(self) -> Callable[..., Any]:
        """The function whose hints tell the plan of a turn the effects of the calls of the code."""
        effects = [tool.effects for tool in self.tools.values()]
        if any(each.writes_context or each.may_hand_off for each in effects):
            return self.run_alone
        return self.run_reading if any(each.takes_context for each in effects) else self.run

    async def run_alone(self, code: str, context_variables: dict[str, Any]) -> str | Result:  # noqa: ARG002
        return await self._run(code)

    async def run_reading(self, code: str, context_variables: Mapping[str, Any]) -> str:  # noqa: ARG002
        return str(await self._run(code))

    async def run(self, code: str) -> str:
        return str(await self._run(code))

    async def _run(self, code: str) -> str | Result:
        if (now := running()) is None or now.run is None:
            raise ConfigurationError(
                "a code_tool works only as a function of an agent; put it into Agent(functions=[...])"
            )
        try:
            workers()  # raises in a forked process
            state = self._state_of(now)
        except ConfigurationError as error:
            outer = now.call
            has_started = outer.has_started_inside
            raise CallerMistake(f"the call {outer.id!r} of {outer.name}: {error}", has_started=has_started) from error
        sandbox = Sandbox(self.stubs, self.limits, state.surroundings, self.has_type_check)
        return await Snippet(now, now.run, sandbox, state, self.tools).run(code)

    def _state_of(self, now: Running) -> CodeState:
        outer, readings = now.call, self.stubs.readings
        if (data := waited(outer)) is not None:
            return restored(outer, data, self.tools, outer.decision or UNDECIDED, readings)
        fixed = now.recorded_start
        if fixed is None:
            clock, seed = datetime.now(UTC).isoformat(timespec="milliseconds"), os.urandom(8).hex()
            fixed = {"clock": clock, "timezone": self.timezone, "seed": seed}
        # This entry is written with the first call.
        now.emit(ToolProgress(outer.index, outer.id, outer.name, {"type": CODE_STARTED, **fixed}))
        return CodeState(Surroundings(fixed["clock"], fixed["timezone"], fixed["seed"]), readings=readings)
