"""The check that a call which waits was declared. The plan of a turn needs the declaration before the call runs.

Without it, a later call of the same group could already have seen or changed the variables of the waiting call. So the check depends
only on the tool, and not on the other calls of the turn: a missing declaration is found with the first Hold.
"""

from __future__ import annotations

from collections.abc import Callable

from aswarm._tools.tool import NeedsApproval
from aswarm._values.decisions import public_data
from aswarm._values.errors import ConfigurationError, Hold, UndeclaredHold
from aswarm._values.events import CallWaiting, LoopEvent
from aswarm._values.messages import has_started_inside

from .call import Call

_SHARED = "and its calls may run together with other calls, so this must be declared"


def undeclared_in_function(call: Call, hold: Hold) -> UndeclaredHold | None:
    """Return the error for a Hold that the function of the call has raised without a declaration, or None."""
    return _error(
        call,
        hold,
        f"the function {call.name!r} of the agent {call.agent.name!r} raised Hold, {_SHARED}: write @tool(may_wait=True) above "
        "it, or function_tool(..., may_wait=True)",
    )


def wait(call: Call, hold: Hold, emit: Callable[[LoopEvent], None], *, may_hold: bool) -> ConfigurationError | None:
    """Let the call wait for a decision. Return an error instead if this Hold is a mistake of a middleware.

    `may_hold`: whether each call of the group may wait.
    """
    if call.has_started or call.outcome:
        late = f"a middleware or tool_error raised Hold after the function of {call.name!r} had run"
        return ConfigurationError(f"{late}; raise it before the inner call_tool is called")
    # A call that has waited in an earlier run may wait again for its decision, and no middleware is asked.
    if call.hold is None and not may_hold and (fault := _undeclared_in_middleware(call, hold)) is not None:
        if fault.has_started:
            call.start()
        return fault
    call.wait(hold)
    data = public_data(hold.data)
    emit(CallWaiting(call.index, call.id, call.name, call.arguments, call.agent, hold.reason, data))
    return None


def _undeclared_in_middleware(call: Call, hold: Hold) -> UndeclaredHold | None:
    return _error(
        call,
        hold,
        f"a middleware raised Hold for the function {call.name!r} of the agent {call.agent.name!r}, {_SHARED}: the middleware "
        "must return dataclasses.replace(handlers, call_tool=call_tool, may_hold=True); for a guard, write "
        "guard_tool(..., may_wait=True)",
    )


def _error(call: Call, hold: Hold, text: str) -> UndeclaredHold | None:
    effects = None if call.tool is None else call.tool.effects
    # aswarm itself raises NeedsApproval, and `plan` knows these calls. A call that runs alone needs no declaration.
    if effects is None or isinstance(hold, NeedsApproval) or effects.may_wait or not effects.runs_together:
        return None
    error = UndeclaredHold(text, has_started=has_started_inside(hold.data))
    error.__cause__ = hold
    return error
