"""Guards of tool calls, as middleware: before the function runs, and before the model reads the result.

Decides the result that the model gets in place of a call or a result that a check does not let pass.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from aswarm._errors import ConfigurationError, Hold, ToolArgumentsError
from aswarm._json import is_json, is_object
from aswarm._run.handlers import Handlers, Middleware, Started
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._tools.conversion import parse_arguments

from ._check import Check, OnError, guarding
from ._checked import CheckedCall, CheckedResult
from ._verdicts import Block, Blocked, Halt, Replace, Say, Verdict, is_content, refusal

_CallVerdict: TypeAlias = Block | Say | Replace | Halt | Hold | None
_ResultVerdict: TypeAlias = Block | Say | Replace | Halt | None
NOT_RUN = "not run"
WITHHELD = "the result is withheld"


def guard_tool(
    before: Callable[[CheckedCall], _CallVerdict | Awaitable[_CallVerdict]] | None = None,
    after: Callable[[CheckedResult], _ResultVerdict | Awaitable[_ResultVerdict]] | None = None,
    *,
    on_error: OnError = "block",
) -> Middleware:
    """Middleware that asks `before` about each call before its function runs, and `after` about each result.

    None lets it pass. `Block(reason)` of `before`: the function does not run. `Block(reason)` of `after`: the model gets the
    reason in place of the result, and a handoff of the function does not happen. `Say(text)` is the result. `Replace` changes
    the arguments (a dict) or the result (a text or content parts). `Halt(reason)` ends the run with `Blocked`.
    `Hold(reason)`, which `before` returns or raises, leaves the call open for a decision; once a user has let the call run,
    the Hold lets it pass.

    `after` cannot undo what a function has done. Handoffs are calls too; a call of `final_answer` is not judged: use
    `Output(check=...)`. Arguments that do not fit the function are an error for the model, and no check is asked, nor
    `AsyncSwarm(tool_error=...)`. Middleware further in may change a call after `before`; put the guard last in the list.

    `on_error="pass"`: if a check raises, the error is logged and the call passes; by default the run ends with `Blocked`. A
    plain check is called on the event loop and must not block it. Raises ConfigurationError without a check, and for an
    argument of another kind. The run raises it for a value of a check that is not one of these verdicts.
    """
    if before is None and after is None:
        raise ConfigurationError("guard_tool needs a check: before=..., after=..., or both")
    kinds = (Block, Say, Replace, Halt)
    first = None if before is None else Check(before, "a call", (*kinds, Hold), _are_arguments, on_error)
    last = None if after is None else Check(after, "a result", kinds, is_content, on_error)

    def wrap(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            if first is not None and (answered := await _before(first, call, handlers)) is not None:
                return answered
            outcome = await handlers.call_tool(call, context, started)
            return outcome if last is None else await _after(last, call, outcome, handlers)

        return dataclasses.replace(handlers, call_tool=call_tool)

    return guarding(wrap)


def _are_arguments(value: object) -> bool:
    return is_object(value) and is_json(dict(value))


async def _before(check: Check, call: ToolCall, handlers: Handlers) -> ToolOutcome | None:
    """The outcome of a call that must not run, or None if it may run. Raises Hold and Blocked."""
    try:
        arguments = parse_arguments(call.arguments)
        arguments = arguments if call.tool is None else call.tool.schema.validate(arguments)
    except ToolArgumentsError as error:  # a check cannot judge such a call
        return ToolOutcome(f"Error: {error}", error=error)
    is_approved = call.decided is not None
    checked = CheckedCall(call.name, arguments, call.id, is_approved, call.agent, handlers.run)
    match await _judged(check, checked, call, ToolOutcome(NOT_RUN)):
        case Block(reason):
            return ToolOutcome(_text(NOT_RUN, reason))
        case Say(text):
            return ToolOutcome(text)
        case Replace(value):
            call.arguments = json.dumps(dict(value), ensure_ascii=False)
        case Hold() as hold if not is_approved:
            raise hold
        case _:
            pass
    return None


async def _after(check: Check, call: ToolCall, outcome: ToolOutcome, handlers: Handlers) -> ToolOutcome:
    """The outcome that the model gets. Raises Blocked."""
    checked = CheckedResult(
        call.name, call.arguments, outcome.content, outcome.error, call.id, call.agent, handlers.run
    )
    withheld = dataclasses.replace(outcome, content=WITHHELD, result=None)
    match await _judged(check, checked, call, withheld):
        case Block(reason):
            return dataclasses.replace(withheld, content=_text(WITHHELD, reason))
        case Say(content) | Replace(content):
            return dataclasses.replace(outcome, content=content if isinstance(content, str) else [*content])
        case _:
            return outcome


async def _judged(check: Check, checked: CheckedCall | CheckedResult, call: ToolCall, refused: ToolOutcome) -> Verdict:
    """The verdict. If the run ends here, the history has `refused` with the reason as the result of the call."""
    try:
        verdict = await check.judge(checked)
        if isinstance(verdict, Halt):
            raise refusal(check.name, verdict.reason)
    except Blocked as error:
        # A call without a result would run when the history is resumed, or its outcome would be unknown.
        call.outcome = dataclasses.replace(refused, content=_text(str(refused.content), error.reason))
        raise
    return verdict


def _text(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text
