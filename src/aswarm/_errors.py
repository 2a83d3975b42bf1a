"""The exceptions of aswarm, and what each one means.

    AswarmError
    ├── ConfigurationError      the caller's mistake, found before any request where possible
    └── RunError                the run ended early; `.response` is what happened until then
        ├── BudgetError         a limit of `Budget(..., then="raise")` was reached
        ├── OutputError         the run has no answer of the type that was asked for
        └── CompletionError     the provider refused or failed; `.status_code`, `.retryable`, `.retry_after`
            └── StreamInterrupted   a stream that broke, or ended without a finish

    ToolError                   raised in a tool: the model reads its text, and the run continues
    ├── ToolNotFound            the model called a tool that the agent does not have
    ├── ToolArgumentsError      the model's arguments do not fit the tool
    └── ToolTimeout             the tool did not end in time; `.still_running`

    Hold                        raised in a tool: the call stays open until a decision comes

Every `AswarmError` that leaves a run carries `.response`, the same valid partial `Response` that `run.response` gives, so that
nothing that happened is lost with the exception. The provider's own exception is the `__cause__`.

This module defines the exceptions. It never decides when to raise one.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from ._json import is_json, shown

if TYPE_CHECKING:
    from ._agent import Response


class AswarmError(Exception):
    """Base of everything that aswarm raises on purpose.

    `response` is the partial `Response` of the run that raised it, or None where no run had begun.
    """

    response: Response | None = None


class ConfigurationError(AswarmError):
    """A mistake of the caller: a message, a function, an agent or a setting that cannot be used. The text says what to do.

    Raised before any request where that is possible. An agent that is reached by a handoff is checked when it gets the
    conversation; the error then carries the partial `response`.
    """


class CallerMistake(ConfigurationError):  # noqa: N818 - reads as what happened
    """A ConfigurationError that a tool of aswarm raises. It ends the run, and the model does not see it (internal)."""


class RunError(AswarmError):
    """The run ended early. `response`: what had happened until then. `partial`: the text of the unfinished completion."""

    partial: str = ""


class RunRefused(RunError):  # noqa: N818 - reads as what happened
    """A guard has refused the messages or the answer of a run (internal).

    A conversation then does not keep the messages of the user that nothing follows: the next run would send them again,
    and would be refused for them again.
    """


class BudgetError(RunError):
    """A limit of `Budget(..., then="raise")` was reached.

    `response.spent` names the limit. `response` is a valid partial response, as with every RunError.
    """


class OutputError(RunError):
    """The run has no answer of the requested type: no attempt fitted it, or the run stopped before an answer.

    The text has what was wrong with the last attempt, or why the run stopped. All attempts are in `.response`.
    """


class CompletionError(RunError):
    """The provider refused the request, failed, or answered with something that is not a completion.

    `status_code`: the HTTP status (or the provider's numeric error code inside a stream), None where there was none.
    `retryable`: whether the same request may well succeed later (429, 408, 409, 5xx, a lost connection).
    `retry_after`: the seconds after which the provider asks to try again, None where it did not say.
    """

    def __init__(
        self,
        message: str,
        *,
        status_code: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.retryable = retryable
        self.retry_after = retry_after


class StreamInterrupted(CompletionError):  # noqa: N818 - reads as what happened
    """The answer began and did not end: the stream broke, stalled, or closed without a finish reason.

    `status_code` and `retryable`: as of `CompletionError`.
    """

    def __init__(self, message: str, *, status_code: int | None = None, retryable: bool = True) -> None:
        super().__init__(message, status_code=status_code, retryable=retryable)


class ToolError(Exception):
    """A tool call failed, and the text is written for the model. Raise it in a tool: `ToolError("No such order.")`.

    The model is told the text as it is. It is logged at INFO without a traceback, because the tool expected this failure.
    It is not an `AswarmError` and does not end the run. Events and `tool_error=` get it as `error`. A middleware does not
    raise it, but returns `ToolOutcome("text")`.
    """


class ToolNotFound(ToolError):  # noqa: N818 - reads as what happened
    """The model called a tool that the agent does not have."""


class ToolArgumentsError(ToolError):
    """The model's arguments are not a JSON object, or do not fit the tool. The text has one line for each fault."""


class ToolTimeout(ToolError):  # noqa: N818 - reads as what happened
    """The tool did not end within its timeout.

    `still_running`: True for a plain function, which cannot be stopped and may still be at work in its thread.
    """

    def __init__(self, text: str, *, still_running: bool = False) -> None:
        super().__init__(text)
        self.still_running = still_running


class CallLost(ToolError):  # noqa: N818 - reads as what happened
    """The connection to the program that runs the call was lost; the outcome of the call is unknown (internal)."""

    still_running = True


class Hold(Exception):  # noqa: N818 - it is no failure
    """Raise it in a tool or in a middleware: the call stays open, and the run stops with `stop="waiting"`.

    `reason` is what a user is asked, `data` is JSON data for the program that asks; both are in `response.waiting` and in the
    stored history, never in what the model reads. `run(..., resume={id: decision})` runs the function again, from its
    beginning; `aswarm.current_call()` tells it the decision. So raise it before the function has done anything.

        async def refund(order: int, amount: int) -> str:
            if amount > 100 and not current_call().is_approved:
                raise Hold("more than 100 euros")
            return await pay(order, amount)

    Test `current_call().is_approved`, not the answer: an answer may be None. Raises TypeError for a reason that is not a
    str, and for data that is not of JSON's own types.
    """

    def __init__(self, reason: str, *, data: object = None) -> None:
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the reason of a Hold must be a str, not {type(reason).__name__}")
        if not is_json(data):
            raise TypeError(
                f"the data of a Hold must be JSON: None, bool, int, float, str, list and dict, not {shown(data, 200)}"
            )
        super().__init__(reason)
        self.reason = reason
        self.data = data


def error_of_run(error: Exception) -> RunError:
    """The error that ends a run because of an error of other code, or one that another run has raised before.

    A copy has the cause of its original: the exception of the provider. Any other error is the cause itself.
    """
    # A source may raise one object in many runs, and each run needs its own response.
    if isinstance(error, CompletionError):
        with suppress(Exception):  # a subclass may need other arguments
            copied = copy.copy(error)
            copied.__cause__ = error.__cause__ or error
            return copied
    wrapped = RunError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def with_causes(error: BaseException) -> list[BaseException]:
    """The error, its causes, and the parts of groups: a name with several addresses fails once for each."""
    found, known = [error], {id(error)}
    for each in found:  # the list grows
        parts = (
            cast("BaseExceptionGroup[BaseException]", each).exceptions if isinstance(each, BaseExceptionGroup) else ()
        )
        for inner in (*parts, each.__cause__, each.__context__):
            if inner is not None and id(inner) not in known:
                known.add(id(inner))
                found.append(inner)
    return found


def set_attribute(error: BaseException, name: str, value: object) -> None:
    """Set an attribute on an exception of other code, if it can have one."""
    with suppress(Exception):
        setattr(error, name, value)
