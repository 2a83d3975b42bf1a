"""The meaning of an error of the SDK for a call: whether the call was answered, whether it may have run, whether its session is lost.

The SDK gives only codes and texts, and a server can send any of them. A call counts as not run only if the HTTP response proves it
(see `HttpTransport`); in doubt, it may have run.
"""

from __future__ import annotations

from enum import Enum, auto

from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

from ._http import NO_REASON, NOT_RUN


class CallOutcome(Enum):
    """The outcome of a call."""

    ANSWERED = auto()  # the server refused it, or it failed; the session works
    UNREADABLE = auto()  # the server has answered, but not with a valid result; the session works
    NOT_RUN = auto()  # the server does not know the session any more, or the tool has changed since it was listed
    TIMED_OUT = auto()  # no answer in time; the session may work
    LOST = auto()  # the session was lost; the call may have run


# Starts of the SDK's texts for a response that is not a valid result. Their codes are not distinctive.
_UNREADABLE = ("Failed to parse", "Unexpected content type", "server answered a request with 202")


def outcome_of(error: Exception) -> CallOutcome:
    """Return the outcome of the call that raised this error."""
    if not isinstance(error, MCPError):
        return CallOutcome.UNREADABLE
    if error.message == NOT_RUN:
        return CallOutcome.NOT_RUN
    if error.code == REQUEST_TIMEOUT:
        return CallOutcome.TIMED_OUT
    if error.code == CONNECTION_CLOSED or error.message == NO_REASON:
        return CallOutcome.LOST
    return CallOutcome.UNREADABLE if error.message.startswith(_UNREADABLE) else CallOutcome.ANSWERED
