"""The exceptions of aswarm.

    AswarmError
    ├── ConfigurationError      the caller's mistake, raised before any request if possible
    └── RunError                the run ended early; `.response` is the partial response
        ├── StoreError          a database cannot be used now; `.retry_after`
        ├── BudgetError         a limit of `Budget(..., then="raise")` was reached
        ├── OutputError         the run has no answer of the requested type
        └── CompletionError     the provider refused or failed; `.status_code`, `.retryable`, `.retry_after`
            └── StreamInterrupted   the stream failed, or ended before the answer was complete

    ToolError                   raised in a tool: the model reads its text, and the run continues
    ├── ToolNotFound            the model called a tool that the agent does not have
    ├── ToolArgumentsError      the model's arguments do not fit the tool
    └── ToolTimeout             the tool did not finish in time; `.still_running`

    Hold                        raised in a tool: the call stays open until a decision comes

Every `AswarmError` of a run has `.response`: the valid partial `Response`, so that the results before the error are not lost.
The provider's own exception is the `__cause__`.

For retries, the module also gives the kind of a failure of a completion, the wait before a retry, and the last attempt. It
reads a finished `CompletionError`, which may come from a user's own source. It never waits and never sends.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from .json import is_json, sendable_data, shown, whole_characters
from .text import shortened

if TYPE_CHECKING:
    from .agent import Response


E = TypeVar("E", bound=Exception)


class AswarmError(Exception):
    """Base class of the exceptions of aswarm.

    `response`: the partial `Response` of the run, or None if no run had started.
    """

    response: Response | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise ConfigurationError for an argument that is not a whole number from `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} must be a whole number from {least}, not {value!r}")


def reduced(error: Exception) -> tuple[Any, ...]:
    """Pickle and copy an error without a call of its constructor, which may need other arguments than `args`."""
    return _restored, (getattr(type(error), "_public", type(error)), *error.args), vars(error)


def _restored(kind: type[Exception], *args: object) -> Exception:
    return kind.__new__(kind, *args)


def named_as_base(kind: type[E]) -> type[E]:
    """Decorate an internal class: tracebacks, logs and records have the name of its public base, and a pickle has the base."""
    base: Any = kind.__base__
    kind.__module__, kind.__name__, kind.__qualname__ = "aswarm", base.__name__, base.__name__
    kind._public = getattr(base, "_public", base)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    return kind


class ConfigurationError(AswarmError):
    """A mistake of the caller: an unusable message, function, agent or setting. The text contains the remedy.

    If possible, it is raised before any request. But the target of a handoff is checked at the handoff. Then the error has the
    partial `response`.
    """


@named_as_base
class MissingKeyError(ConfigurationError):
    """The environment has no API key. The command line catches this error, and names its options in its own error text."""


class NotEncodable(ConfigurationError):  # noqa: N818 - the name is never shown
    """A ConfigurationError for a schema that JSON in UTF-8 cannot hold (internal)."""


@named_as_base
class CallerMistake(ConfigurationError):  # noqa: N818 - named after the event
    """A ConfigurationError that a tool of aswarm itself raises. It ends the run, and the model does not get it (internal).

    `has_started`: whether a function of an inner run has started, so that the outcome of the call is unknown.
    """

    def __init__(self, text: str, *, has_started: bool = False) -> None:
        super().__init__(text)
        self.has_started = has_started


@named_as_base
class UndeclaredHold(CallerMistake):
    """A call has raised Hold, and nothing declares that it may wait. The other calls of its group finish first (internal)."""


class FailedInside(Exception):  # noqa: N818 - only a wrapper
    """Wraps an error that ends the run, raised by a call that the function of another call made (internal).

    `has_started`: whether a function has started inside, so that the outcome of the outer call is unknown.
    """

    def __init__(self, error: Exception, *, has_started: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.has_started = has_started


class RunError(AswarmError):
    """The run ended early. `response`: the partial response. `partial`: the text of the unfinished completion."""

    partial: str = ""


class RunRefused(RunError):  # noqa: N818 - named after the event
    """A guard has refused the messages or the answer of a run (internal).

    A conversation then removes the last messages of the user if no other message follows them. Otherwise the next run would
    send the same messages, and the guard would refuse them again.
    """


class StoreError(RunError):
    """A database cannot be used: it is locked, full, or its server cannot be reached. The text contains the reason.

    `retry_after`: the seconds to wait before a retry. A write that raises this error may have succeeded nevertheless.
    """

    retry_after: float = 5.0


class BudgetError(RunError):
    """A limit of `Budget(..., then="raise")` was reached. `response.spent` names the limit."""


class OutputError(RunError):
    """The run has no answer of the requested type: all answers were invalid, or the run stopped before an answer.

    The text contains the faults of the last answer, or the reason of the stop. `.response` contains all answers.
    """


class CompletionError(RunError):
    """The provider refused the request, failed, or returned something that is not a completion.

    Args:
        message: The text of the error.
        status_code: The HTTP status (or the provider's numeric error code inside a stream), or None.
        retryable: Whether the same request may succeed later: after 429, 408, 409, 5xx, or a lost connection.
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
    """The answer started but did not finish: the stream failed, stalled, or ended without a finish reason.

    `status_code` and `retryable`: as for `CompletionError`.
    """

    def __init__(self, message: str, *, status_code: int | None = None, retryable: bool = True) -> None:
        super().__init__(message, status_code=status_code, retryable=retryable)


class ToolError(Exception):
    """A failure of a tool, with a text for the model. Raise it in a tool: `ToolError("No such order.")`.

    The model gets exactly this text, and the run continues. The error is logged at INFO without a traceback, because the tool
    expects such a failure. Events and `tool_error=` get it as `error`. It is not an `AswarmError`. Do not raise it in a
    middleware: return `ToolOutcome("text")` instead.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


class ToolNotFound(ToolError):  # noqa: N818 - named after the event
    """The model called a tool that the agent does not have."""


class ToolArgumentsError(ToolError):
    """The model's arguments are not a JSON object, or do not match the schema. The text has one line for each fault."""


class ToolTimeout(ToolError):  # noqa: N818 - named after the event
    """The tool did not finish within its timeout.

    `still_running`: True for a plain function, which cannot be stopped and may still be running in its thread.
    """

    def __init__(self, text: str, *, still_running: bool = False) -> None:
        super().__init__(text)
        self.still_running = still_running


class CallLost(ToolError):  # noqa: N818 - named after the event
    """The connection to the program that executes the call was lost, so the outcome of the call is unknown (internal)."""

    still_running = True


class Hold(Exception):  # noqa: N818 - not a failure
    """Makes a tool call wait for a decision of a user. Raise it in a tool or in a middleware.

    The run stops with `stop="waiting"`. `reason` is the question to the user. `data` is JSON data for the program that asks
    the user. Both are in `response.waiting` and in the stored history, and are never sent to the model.

    `run(..., resume={id: decision})` runs the function again from its start. So raise `Hold` before the function has any
    effect. In the second run, `aswarm.current_call()` has the decision.

        @tool(may_wait=True)
        async def refund(order: int, amount: int) -> str:
            if amount > 100 and not current_call().is_approved:
                raise Hold("more than 100 euros")
            return await pay(order, amount)

    Test `current_call().is_approved`, not the answer, because an answer may be None.

    An async function that cannot write to the context variables, and a function with `@tool(concurrent=True)`, run together with
    other calls. They declare `@tool(may_wait=True)`, and a middleware declares `Handlers.may_hold`. Without it, the run raises
    ConfigurationError after the other calls have finished. With `AsyncSwarm(concurrent_tools=False)`, no declaration is needed.

    Raises TypeError if the reason is not a
    str, or the data is not JSON.
    """

    def __init__(self, reason: str, *, data: object = None) -> None:
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the reason of a Hold must be a str, not {type(reason).__name__}")
        if not is_json(data):
            raise TypeError(
                f"the data of a Hold must be JSON: None, bool, int, float, str, list and dict, not {shown(data, 200)}"
            )
        self.reason: str = whole_characters(reason)
        self.data: object = sendable_data(data)
        super().__init__(self.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


def error_of_run(error: Exception) -> RunError:
    """Return the RunError that ends a run because of an exception from other code, or from another run.

    A CompletionError is copied; its cause stays the exception of the provider. Any other exception becomes the cause.
    """
    # Copy, because a source may raise one exception object in many runs, and each run sets its own response on it.
    if isinstance(error, CompletionError):
        copied = copy.copy(error)
        copied.__cause__ = error.__cause__ or error
        return copied
    wrapped = RunError(named(error))
    wrapped.__cause__ = error
    return wrapped


_LEAVES, _LEAF = 10, 500  # the number of errors of a group that a text has, and the length of each


def named(error: BaseException) -> str:
    """Return the class and the text of an error. A group also has the classes and texts of the errors inside of it.

    The text of a group itself is only a number, such as "1 sub-exception". If `str()` of an error raises, the text is its class.
    """
    name = type(error).__name__
    try:
        if not isinstance(error, BaseExceptionGroup):
            return f"{name}: {error}"
        leaves = leaves_of(cast("BaseException", error))
        shown = "; ".join(shortened(named(leaf), _LEAF) for leaf in leaves[:_LEAVES])
        more = f"; and {len(leaves) - _LEAVES} more" if len(leaves) > _LEAVES else ""
        return f"{name}: {shortened(error.message, _LEAF)} ({shown}{more})"
    except Exception:  # noqa: BLE001 - of the class of a user
        return name


def leaves_of(error: BaseException) -> list[BaseException]:
    """Return the error, or the errors in a group, in order, at any depth."""
    leaves, inside = list[BaseException](), [iter((error,))]
    while inside:
        child = next(inside[-1], None)
        if child is None:
            inside.pop()
        elif isinstance(child, BaseExceptionGroup):
            inside.append(iter(cast("BaseExceptionGroup[BaseException]", child).exceptions))
        else:
            leaves.append(child)
    return leaves


def is_exit(error: BaseException) -> bool:
    """Return whether the error is a SystemExit, or a group with one and otherwise only such exits and Exceptions.

    The group of a task group has the SystemExit of a task in trio, and that of its own block in asyncio.
    """
    leaves = leaves_of(error)
    is_only_exits = all(isinstance(leaf, Exception | SystemExit) for leaf in leaves)
    return is_only_exits and any(isinstance(leaf, SystemExit) for leaf in leaves)


def error_and_causes(error: BaseException) -> list[BaseException]:
    """Return the error, its causes, and the errors in groups. A connection raises a group if a host has several addresses."""
    errors, visited = [error], {id(error)}
    for current in errors:  # the list grows during the loop
        parts = (
            cast("BaseExceptionGroup[BaseException]", current).exceptions
            if isinstance(current, BaseExceptionGroup)
            else ()
        )
        for inner in (*parts, current.__cause__, current.__context__):
            if inner is not None and id(inner) not in visited:
                visited.add(id(inner))
                errors.append(inner)
    return errors


def set_attribute(error: BaseException, name: str, value: object) -> None:
    """Set an attribute on an exception of other code. Do nothing if its class does not allow it."""
    with suppress(Exception):
        setattr(error, name, value)


# permanent: the same request would fail again.
# rate_limited: the provider has rejected the request, and accepts no more requests for now.
# overloaded: the provider has too much load: a 5xx status, a timeout, or no connection.
# transient: any other temporary failure: 408, 409, a malformed tool call of the model, an interrupted stream.
FailureKind: TypeAlias = Literal["permanent", "rate_limited", "overloaded", "transient"]

TOO_MANY_REQUESTS = 429
SERVER_ERRORS = 500  # the first status of the server's own failures
# A longer Retry-After is ignored. It must be a mistake, such as a timestamp instead of seconds.
_LONGEST_WAIT = 86_400.0


def classify(error: CompletionError) -> FailureKind:
    """Return the kind of a failure. Reads only the public attributes of the error."""
    if not error.retryable:
        return "permanent"
    if isinstance(error, StreamInterrupted):
        return "transient"
    if error.status_code == TOO_MANY_REQUESTS or error.retry_after is not None:
        return "rate_limited"
    if error.status_code is None or error.status_code >= SERVER_ERRORS:
        return "overloaded"
    return "transient"


def requested_wait(seconds: float | None) -> float:
    """Return the seconds of a Retry-After; 0 for None, and for more than a day, which must be a mistake."""
    return seconds if seconds is not None and seconds <= _LONGEST_WAIT else 0.0


def give_up(error: CompletionError, run_id: str) -> None:
    """Mark an error after the last retry (of the rate limiter or `retry`). Then no outer `retry` of this run retries it."""
    set_attribute(error, "_given_up_in", run_id)  # the id of the run, because a source may raise one error in many runs


def is_given_up(error: CompletionError, run_id: str) -> bool:
    return getattr(error, "_given_up_in", None) == run_id


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter. The wait doubles with each failure in a row.

    `first`: the seconds after the first failure.
    `longest`: the maximum of the seconds, before the jitter.
    `jitter`: the largest share by which a wait is shortened at random. So requests that failed together are not all retried
    at the same moment.
    """

    first: float
    longest: float
    jitter: float

    def seconds(self, failures: int, chance: float) -> float:
        """Return the seconds to wait. `failures`: the failures in a row, from 1. `chance`: a random number from 0 to 1."""
        doubled = self.first * 2.0 ** min(failures - 1, 30)
        return min(self.longest, doubled) * (1 - self.jitter * chance)


# The waits of the openai SDK, for the rate limiter and `HTTPSource`, which retry instead of the SDK.
SDK_BACKOFF = Backoff(0.5, 8.0, 0.25)
# The waits between the attempts of a completion, in a batch and in `aswarm.middleware.retry`.
ATTEMPT_BACKOFF = Backoff(1.0, 60.0, 0.5)
