"""`code_tool`: a tool whose argument is code, which calls other tools.

Decides the description for the model, and the surroundings of the code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from aswarm._values.agent import Agent
from aswarm._values.errors import CallerMistake, ConfigurationError
from aswarm.extensions import InnerCalls, Tool, ToolCall, calling_tool, tools_of

from ._limits import CodeLimits
from ._sandbox import Sandbox, Surroundings
from ._snippet import Snippet, delivered_in
from ._stubs import Stubs, stubs_of
from ._values import value_of
from ._workers import workers

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
        clock, seed = datetime.now(UTC).isoformat(timespec="milliseconds"), os.urandom(8).hex()
        return {"clock": clock, "timezone": self.timezone, "seed": seed}
