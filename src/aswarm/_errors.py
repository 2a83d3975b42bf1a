"""The exceptions of aswarm, and what each one means.

    AswarmError
    ├── ConfigurationError      the caller's mistake, found before any request where possible
    └── RunError                the run ended early; `.response` is what happened until then
        └── CompletionError     the provider refused or failed; `.status_code`, `.retryable`, `.retry_after`
            └── StreamInterrupted   a stream that broke, or ended without a finish

Every error that leaves a run carries `.response`, the same valid partial `Response` that `run.response` gives, so that
nothing that happened is lost with the exception. The provider's own exception is the `__cause__`.

This module holds words only: it never decides when to raise.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._agent import Response


class AswarmError(Exception):
    """Base of everything that aswarm raises on purpose.

    `response` is the partial `Response` of the run that raised it, or None where no run had begun.
    """

    response: Response | None = None


class ConfigurationError(AswarmError):
    """The caller's mistake: a message, a function, an agent or a setting that cannot be used. The text says what to do.

    Found before any request where that is possible. An agent that is first met in a handoff is checked when it gets
    the conversation; the error then carries the partial `response`.
    """


class RunError(AswarmError):
    """The run could not go on. `response` is what had happened, `partial` the text of the unfinished completion."""

    partial: str = ""


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
    """The answer began and did not end: the stream broke, stalled, or closed without a finish reason."""

    def __init__(self, message: str, *, status_code: int | None = None, retryable: bool = True) -> None:
        super().__init__(message, status_code=status_code, retryable=retryable)


def is_retryable_status(status: int | None) -> bool:
    """Whether an HTTP status says "later, maybe": 408, 409, 429 and every 5xx (the openai SDK's own rule)."""
    return status is not None and (status in (408, 409, 429) or 500 <= status < 600)  # noqa: PLR2004 - HTTP's own numbers


def set_attribute(error: BaseException, name: str, value: object) -> None:
    """Give somebody else's exception an attribute, where it takes one."""
    with suppress(Exception):
        setattr(error, name, value)
