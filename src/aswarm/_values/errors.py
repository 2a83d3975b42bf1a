"""The exceptions of aswarm.

    AswarmError
    ├── ConfigurationError      the caller's mistake, raised before any request if possible
    └── RunError                the run ended early; `.response` is the partial response
        ├── StoreError          a database cannot be used now; `.retry_after`
        ├── BudgetError         a limit of `Budget(..., then="raise")` was reached
        ├── OutputError         the run has no answer of the requested type
        └── CompletionError     the provider refused or failed; `.status_code`, `.retryable`, `.retry_after`
            └── StreamInterrupted   a stream that broke, or ended without a finish

    ToolError                   raised in a tool: the model reads its text, and the run continues
    ├── ToolNotFound            the model called a tool that the agent does not have
    ├── ToolArgumentsError      the model's arguments do not fit the tool
    └── ToolTimeout             the tool did not finish in time; `.still_running`

    Hold                        raised in a tool: the call stays open until a decision comes

Every `AswarmError` of a run has `.response`, the same valid partial `Response` as `run.response`, so that nothing is lost with
the exception. The provider's own exception is the `__cause__`.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from .json import is_json, shown

if TYPE_CHECKING:
    from .agent import Response


class AswarmError(Exception):
    """Base class of the exceptions of aswarm.

    `response`: the partial `Response` of the run, or None if no run had started.
    """

    response: Response | None = None


class ConfigurationError(AswarmError):
    """A mistake of the caller: an unusable message, function, agent or setting. The text contains the remedy.

    It is raised before any request if possible. The target of a handoff is checked at the handoff; the error then has the
    partial `response`.
    """


class CallerMistake(ConfigurationError):  # noqa: N818 - named after the event
    """A ConfigurationError that a tool of aswarm raises. It ends the run, and is not sent to the model (internal).

    `has_started`: whether a function has started inside the call, so that the outcome of the call is unknown.
    """

    def __init__(self, text: str, *, has_started: bool = False) -> None:
        super().__init__(text)
        self.has_started = has_started


class RunError(AswarmError):
    """The run ended early. `response`: the partial response. `partial`: the text of the unfinished completion."""

    partial: str = ""


class RunRefused(RunError):  # noqa: N818 - named after the event
    """A guard has refused the messages or the answer of a run (internal).

    A conversation then drops the last messages of the user if nothing follows them: otherwise the next run would send them
    again, and would be refused again.
    """


class StoreError(RunError):
    """A database cannot be used: it is locked, full, or its server cannot be reached. The text contains the reason.

    `retry_after`: seconds until a retry makes sense. A write that raises this error may have succeeded.
    """

    retry_after: float = 5.0


class BudgetError(RunError):
    """A limit of `Budget(..., then="raise")` was reached. `response.spent` names the limit."""


class OutputError(RunError):
    """The run has no answer of the requested type: no attempt had the type, or the run stopped before an answer.

    The text contains the faults of the last attempt, or the reason of the stop. All attempts are in `.response`.
    """


class CompletionError(RunError):
    """The provider refused the request, failed, or returned something that is not a completion.

    Args:
        message: The text of the error.
        status_code: The HTTP status (or the provider's numeric error code inside a stream), or None.
        retryable: Whether the same request may succeed later (429, 408, 409, 5xx, a lost connection).
        retry_after: The seconds until a retry, as the provider requested, or None.
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


class StreamInterrupted(CompletionError):  # noqa: N818 - named after the event
    """The answer started but did not finish: the stream broke, stalled, or closed without a finish reason.

    `status_code` and `retryable`: as for `CompletionError`.
    """

    def __init__(self, message: str, *, status_code: int | None = None, retryable: bool = True) -> None:
        super().__init__(message, status_code=status_code, retryable=retryable)


class ToolError(Exception):
    """A tool call failed, with a text for the model. Raise it in a tool: `ToolError("No such order.")`.

    The model gets exactly this text. The error is logged at INFO without a traceback, because the tool expected this failure.
    It is not an `AswarmError` and does not end the run. Events and `tool_error=` get it as `error`. A middleware returns
    `ToolOutcome("text")` instead of raising it.
    """


class ToolNotFound(ToolError):  # noqa: N818 - named after the event
    """The model called a tool that the agent does not have."""


class ToolArgumentsError(ToolError):
    """The model's arguments are not a JSON object, or do not fit the tool. The text has one line for each fault."""


class ToolTimeout(ToolError):  # noqa: N818 - named after the event
    """The tool did not finish within its timeout.

    `still_running`: True for a plain function, which cannot be stopped and may still be running in its thread.
    """

    def __init__(self, text: str, *, still_running: bool = False) -> None:
        super().__init__(text)
        self.still_running = still_running


class CallLost(ToolError):  # noqa: N818 - named after the event
    """The connection to the program that runs the call was lost; the outcome of the call is unknown (internal)."""

    still_running = True


class Hold(Exception):  # noqa: N818 - not a failure
    """Keeps a tool call open for a decision of a user. Raise it in a tool or in a middleware.

    The run stops with `stop="waiting"`. `reason` is the question to the user, `data` is JSON data for the program that asks
    the user. Both are in `response.waiting` and in the stored history, and are never sent to the model.
    `run(..., resume={id: decision})` runs the function again from the start; `aswarm.current_call()` has the decision. So
    raise `Hold` before the function has any effect.

        async def refund(order: int, amount: int) -> str:
            if amount > 100 and not current_call().is_approved:
                raise Hold("more than 100 euros")
            return await pay(order, amount)

    Test `current_call().is_approved`, not the answer, because an answer may be None. Raises TypeError for a reason that is not
    a str, and for data with other types than JSON has.
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
    """Return the error that ends a run because of an error of other code, or of another run.

    A CompletionError is copied, with its cause, the exception of the provider. Any other error becomes the cause.
    """
    # A source may raise one exception object in many runs, and each run needs its own response.
    if isinstance(error, CompletionError):
        with suppress(Exception):  # a subclass may need other arguments
            copied = copy.copy(error)
            copied.__cause__ = error.__cause__ or error
            return copied
    wrapped = RunError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def with_causes(error: BaseException) -> list[BaseException]:
    """Return the error, its causes, and the parts of groups: a host with several addresses fails once for each of them."""
    errors, seen = [error], {id(error)}
    for each in errors:  # the list grows during the loop
        parts = (
            cast("BaseExceptionGroup[BaseException]", each).exceptions if isinstance(each, BaseExceptionGroup) else ()
        )
        for inner in (*parts, each.__cause__, each.__context__):
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                errors.append(inner)
    return errors


def set_attribute(error: BaseException, name: str, value: object) -> None:
    """Set an attribute on an exception of other code, if it can have one."""
    with suppress(Exception):
        setattr(error, name, value)
