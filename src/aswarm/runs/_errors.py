"""The errors of `Runs`: requests that were refused, and changed nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from aswarm._values.errors import AswarmError
from aswarm._values.json import is_object, shown

_SHOWN = 100


class RequestRefused(AswarmError):  # noqa: N818 - named after the event
    """Base class of the errors of `Runs`: a request that was refused, and changed nothing.

    `code`: the name of the error for clients.
    """

    code: str = "refused"


class InvalidRequest(RequestRefused):
    """A request that cannot be served.

    Args:
        message: The text for people.
        code: The name of the error for programs.
        param: The field of the body with the fault, or None.
    """

    def __init__(self, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class RunNotFound(RequestRefused):
    """The user has no such run, or its log was deleted."""

    code = "run_not_found"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}")


class ConversationNotFound(RequestRefused):
    """The user has no such conversation."""

    code = "conversation_not_found"

    def __init__(self, conversation: str) -> None:
        super().__init__(f"there is no conversation {conversation!r}")


class AgentNotFound(RequestRefused):
    """There is no agent of this name."""

    code = "agent_not_found"

    def __init__(self, name: str, near: str = "") -> None:
        super().__init__(f"there is no agent {name!r}" + (f"; did you mean {near!r}?" if near else ""))


class RunActive(RequestRefused):
    """The conversation has an active run, `run_id`, which a client can read or cancel."""

    code = "run_active"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"the conversation has a running run, {run_id!r}; read it, or cancel it")
        self.run_id = run_id


class TooManyRuns(RequestRefused):
    """The user or the service (`whose`) has reached its limit of concurrent runs. `retry_after`: seconds to wait."""

    def __init__(self, whose: Literal["user", "service"], retry_after: float = 5) -> None:
        super().__init__(f"the {whose} has reached the limit of concurrent runs; wait until one of these runs ends")
        self.code: str = "too_many_runs" if whose == "user" else "service_full"
        self.retry_after: int = math.ceil(retry_after)


class ShuttingDown(RequestRefused):
    """The service is shutting down and starts no more runs. `retry_after`: seconds to wait."""

    code = "shutting_down"
    retry_after: int = 1

    def __init__(self) -> None:
        super().__init__("the service is shutting down; send the request again in a moment")


class KeyReused(RequestRefused):
    """The idempotency key, or the run id, belongs to a run of another request."""

    code = "key_reused"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"this key belongs to the run {run_id!r}, which another request started; send a new key")
        self.run_id = run_id


class AnswersRefused(RequestRefused):
    """Answers that do not fit the open calls, for example an answer to a call that is not open."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


# --- values of clients ---


def invalid(param: str, expected: str, value: object) -> InvalidRequest:
    """Return the error for a value of the wrong form."""
    return fault_at(param, f"{param} must be {expected}, not {shown(value, _SHOWN)}")


def fault_at(param: str, message: str) -> InvalidRequest:
    """Return the error for a fault in this field of the body."""
    return InvalidRequest(message, code="invalid_request", param=param)


def an_object(value: object, param: str) -> Mapping[str, Any]:
    """Return the value if it is a JSON object. Raises InvalidRequest."""
    if not is_object(value):
        raise invalid(param, "an object", value)
    return value
