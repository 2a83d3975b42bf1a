"""What an error of the SDK means for a call: whether the call was answered, whether it can have run, and whether its session is lost.

Decides from codes and texts, because the SDK gives no other sign. In a case of doubt, the call may have run.
"""

from __future__ import annotations

from enum import Enum, auto

from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, HEADER_MISMATCH, INVALID_REQUEST, REQUEST_TIMEOUT

from ._http import NO_REASON


class CallOutcome(Enum):
    """What became of a call."""

    ANSWERED = auto()  # the server refused it, or its result is not valid; the session works
    NOT_RUN = auto()  # the server does not know the session any more, or the tool as it was listed
    TIMED_OUT = auto()  # no answer in time; the session may work
    LOST = auto()  # the session was lost while the server may have been at work


_OF_SESSIONS = (CONNECTION_CLOSED, REQUEST_TIMEOUT, INVALID_REQUEST)


def outcome_of(error: Exception) -> CallOutcome:
    """What became of the call that raised this."""
    if not isinstance(error, MCPError):
        return CallOutcome.ANSWERED
    code, message = error.code, error.message.lower()
    # "Session terminated" of the SDK for 404, "Session not found" and "No valid session ID" of servers that were restarted.
    if code == HEADER_MISMATCH or (code in _OF_SESSIONS and "session" in message):
        return CallOutcome.NOT_RUN
    if code == REQUEST_TIMEOUT:
        return CallOutcome.TIMED_OUT
    return CallOutcome.LOST if code == CONNECTION_CLOSED or error.message == NO_REASON else CallOutcome.ANSWERED
