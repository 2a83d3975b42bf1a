"""The meaning of an error of the SDK: whether the call was answered, whether it may have run, and whether the session is lost.

The errors of the SDK have only codes and texts, and a server can send each of these. So only an HTTP response proves that a call
has not run (see `_http`). Without this proof, the call may have run.
"""

from __future__ import annotations

from enum import Enum, auto

from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

from ._http import NO_REASON, NOT_RUN


class CallOutcome(Enum):
    """The outcome of a call."""

    ANSWERED = auto()  # the server refused the call, or the call failed; the session works
    UNREADABLE = auto()  # the server answered with an invalid result; the session works
    NOT_RUN = auto()  # the server no longer knows the session, or the tool has changed since the server listed it
    TIMED_OUT = auto()  # no answer in time; the session may work
    LOST = auto()  # the session was lost; the call may have run


# How the SDK's texts for an invalid result start. Other errors have the same codes.
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
