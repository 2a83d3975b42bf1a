"""Guards of tool calls and of answers, as middleware.

A call is checked before its function runs, and its result before the model reads it. No part of a completion is shown before the
check of its whole text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeAlias

from aswarm._values.errors import ConfigurationError, Hold, ToolArgumentsError, ToolError
from aswarm._values.json import is_json, is_object
from aswarm._values.messages import SENT_INPUT
from aswarm.extensions import (
    Accumulator,
    Completion,
    CompletionRequest,
    Handlers,
    Middleware,
    Started,
    ToolCall,
    ToolOutcome,
)

from ._check import Check, CheckFunction, Guard, OnError
from ._checked import (
    Block,
    Blocked,
    CheckedAnswer,
    CheckedCall,
    CheckedResult,
    Chunk,
    Chunks,
    Halt,
    Replace,
    Say,
    Verdict,
    is_content,
    refusal,
    text_completion,
    texts_of,
    with_reason,
)

_AnswerVerdict: TypeAlias = Block | Say | Replace | None


def guard_answer(
    check: CheckFunction[CheckedAnswer, _AnswerVerdict | Awaitable[_AnswerVerdict]],
    *,
    on_error: OnError = "block",
) -> Middleware:
    """Return middleware that delays each completion until a check has judged its text, its refusal and its reasoning.

    If the check returns None, the chunks are passed on. `Block(reason)` ends the run with `Blocked`: the completion is not
    shown and not in the history, and its calls do not run. `Say(text)` and `Replace(text)` replace all judged texts. The
    tokens of the completion count in any case.

    If a completion has a text and calls, the text is judged too, because it is shown, and may be the last text of the run.
    Calls are not judged: see `guard_tool`. They run even if the text was replaced. A completion that has only calls is not
    judged. For structured output, use `Output(check=...)`, because a call of `final_answer` is not judged either.

    With `on_error="pass"`, an error of the check is logged, and the answer passes. By default, the run ends with `Blocked`. A
    plain check is called on the event loop and must not block it. Raises ConfigurationError for a wrong argument. If the check
    returns a value that is not listed here, the run raises ConfigurationError.
    """
    judged = Check(check, "an answer", (Block, Say, Replace), lambda value: isinstance(value, str), on_error)

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> Chunks:
            messages, held, accumulator = [*request.body["messages"]], list[Chunk](), Accumulator()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    held.append(chunk)
                    accumulator.feed(chunk)
            completion = accumulator.finish()
            text, replacement = texts_of(completion.message), None
            if text or not completion.message["tool_calls"]:
                checked = CheckedAnswer(text, completion.message, messages, request.agent, handlers.run)
                try:
                    replacement = await _replacement(judged, checked)
                except Blocked:
                    handlers.run.add_usage(completion.usage, request.body["model"])
                    raise
            for each in held if replacement is None else [_with_text(replacement, completion)]:
                yield each

        return replace(handlers, complete=complete)

    return Guard(wrap, (judged,))


async def _replacement(check: Check, checked: CheckedAnswer) -> str | None:
    """Return the text that replaces the answer; None if the answer passes. Raises Blocked."""
    match await check.judge(checked):
        case Block(reason):
            raise refusal(check.name, reason)
        case Say(text) | Replace(text):
            return str(text)
        case _:
            return None


def _with_text(text: str, completion: Completion) -> Chunk:
    """Return the completion with this text in place of all texts of the model. Its calls stay."""
    kept = {key: value for key, value in completion.message.items() if key in ("tool_calls", SENT_INPUT)}
    return text_completion(text, completion.usage, kept)


_CallVerdict: TypeAlias = Block | Say | Replace | Halt | Hold | None
_ResultVerdict: TypeAlias = Block | Say | Replace | Halt | None
NOT_RUN = "not run"
WITHHELD = "the result is withheld"


def guard_tool(
    before: CheckFunction[CheckedCall, _CallVerdict | Awaitable[_CallVerdict]] | None = None,
    after: CheckFunction[CheckedResult, _ResultVerdict | Awaitable[_ResultVerdict]] | None = None,
    *,
    on_error: OnError = "block",
    may_wait: bool = False,
) -> Middleware:
    """Return middleware that checks each call with `before`, before its function runs, and each result with `after`.

    A check returns None to let the call or the result pass, or a verdict:

    - `Block(reason)` of `before`: the function does not run. `Block(reason)` of `after`: the model gets the reason instead of
      the result, and a handoff of the function does not happen.
    - `Say(text)`: the text is the result.
    - `Replace(value)`: the value replaces the arguments (a dict) or the result (a text or content parts). A user who decides
      on a call sees the new arguments. If a check later replaces them again, the call waits for another decision.
    - `Halt(reason)`: the run ends with `Blocked`.
    - `Hold(reason)`, returned or raised by `before`: the call waits for a decision. After an approval, the check may return the
      Hold again, and the call passes. Such a guard declares it with `may_wait=True`: then two calls that may use the same
      data do not run together.

    `after` cannot undo the effects of a function. Handoffs are judged too, because they are calls. A call of `final_answer`
    is not judged: use `Output(check=...)`. If the arguments do not fit the function, the model gets the error; neither the
    check nor `AsyncSwarm(tool_error=...)` is called. Put the guard last in the list, because inner middleware could change a
    call after `before`.

    With `on_error="pass"`, an error of a check is logged, and the call passes. By default, the run ends with `Blocked`. A
    plain check is called on the event loop and must not block it. Raises ConfigurationError without a check, and for a wrong
    argument. If a check returns a value that is not listed here, or a `Hold` without `may_wait` for a call that may run
    together with other calls, the run raises ConfigurationError.
    """
    if before is None and after is None:
        raise ConfigurationError("guard_tool needs a check: before=..., after=..., or both")
    kinds = (Block, Say, Replace, Halt)
    # New arguments must be JSON, because the history stores them if the call waits for a decision.
    first = (
        None
        if before is None
        else Check(before, "a call", (*kinds, Hold), lambda value: is_object(value) and is_json(dict(value)), on_error)
    )
    last = None if after is None else Check(after, "a result", kinds, is_content, on_error)

    def wrap(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            if first is not None and (answered := await _before(first, call, handlers)) is not None:
                return answered
            outcome = await handlers.call_tool(call, context, started)
            return outcome if last is None else await _after(last, call, outcome, handlers)

        return dataclasses.replace(handlers, call_tool=call_tool, may_hold=handlers.may_hold or may_wait)

    return Guard(wrap, tuple(filter(None, (first, last))))


async def _before(check: Check, call: ToolCall, handlers: Handlers) -> ToolOutcome | None:
    """Return the outcome of a call that must not run, or None if it may run. Raises Hold and Blocked."""
    try:
        arguments = call.valid_arguments()
    except ToolArgumentsError as error:  # a check cannot judge such a call
        return call.refusal(f"Error: {error}", error)
    is_approved = call.is_approved
    checked = CheckedCall(call.name, arguments, call.id, is_approved, call.agent, handlers.run)
    match await _judged(check, checked, call):
        case Block(reason):
            return call.refusal(with_reason(NOT_RUN, reason))
        case Say(text):
            return ToolOutcome(text, unknown=call.has_started_inside)
        case Replace(value):
            call.replace_arguments(dict(value))
        case Hold() as hold if not is_approved:
            raise hold
        case _:
            pass
    return None


async def _after(check: Check, call: ToolCall, outcome: ToolOutcome, handlers: Handlers) -> ToolOutcome:
    """Return the outcome for the model. Raises Blocked."""
    checked = CheckedResult(
        call.name, call.arguments, outcome.content, outcome.error, call.id, call.agent, handlers.run
    )
    withheld = dataclasses.replace(outcome, content=WITHHELD, result=None)
    match await _judged(check, checked, call, withheld):
        case Block(reason):
            text = with_reason(WITHHELD, reason)
            # Code needs an error, because it would take the text for the data of the function.
            error = outcome.error or (None if call.parent is None else ToolError(text))
            return dataclasses.replace(withheld, content=text, error=error)
        case Say(content) | Replace(content):
            return dataclasses.replace(outcome, content=content if isinstance(content, str) else [*content])
        case _:
            return outcome


async def _judged(
    check: Check, checked: CheckedCall | CheckedResult, call: ToolCall, withheld: ToolOutcome | None = None
) -> Verdict:
    """Return the verdict. If the run ends now, the history gets the reason as the result of the call.

    `withheld`: the outcome of a call that has run, without its result.
    """
    try:
        verdict = await check.judge(checked)
        if isinstance(verdict, Halt):
            raise refusal(check.name, verdict.reason)
    except Blocked as error:
        # Without a result, the call would run when the history is resumed, or its outcome would be unknown.
        refused = call.refusal(NOT_RUN) if withheld is None else withheld
        call.finish(dataclasses.replace(refused, content=with_reason(str(refused.content), error.reason)))
        raise
    return verdict
