"""The request for a run, `NewRun`, with its answers, tools and trace; the limits of runs; and the errors that refuse a request.

Each wire converts the requests of its clients to these values. They have no field for an assistant message. Only the program of
the service sets the result of a function that runs here (`CallAnswer.result`). So a client cannot invent history.

Security: On the native, Vercel and AG-UI wires, a request adds only messages of the user, and answers to calls that are open on
the server.

Security: `Limits` bounds the runs of a user and of the service.

A refused request changes nothing. `ContextEdit` is a change of the context variables of a conversation by its operator, recorded
with a run.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, Literal, Self, TypeAlias

from aswarm._log.stored import DisconnectPolicy, checked_context, is_database_text
from aswarm._values.budget import OF_A_WEB_SERVICE, checked_max_turns
from aswarm._values.errors import AswarmError, ConfigurationError
from aswarm._values.json import is_object, shown
from aswarm._values.messages import Message

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


def trace_headers() -> dict[str, str]:
    """Return the headers of the current span, or an empty dict if there is no span."""
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:  # a program without this module makes no spans
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        TraceContextTextMapPropagator().inject(headers)
    return headers


@contextmanager
def in_trace(headers: Mapping[str, str]) -> Generator[None]:
    """Make the span of the headers the parent of the spans that start in the block.

    A task inherits the trace of the task that started it. Only a queued run and a run in another process need these headers.
    """
    if not headers or "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry.context import attach, detach  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    token = attach(TraceContextTextMapPropagator().extract(headers))
    try:
        yield
    finally:
        detach(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextEdit:
    """A change of the context variables before a run. The first entry of the run has the names of the changed variables.

    Args:
        changes: The new values, which must be JSON.
        removed: The names of the variables to remove.
        revision: The revision of the conversation that the operator has seen; empty for a new conversation. If the conversation
            has changed since, the run is refused with AnswersRefused.

    Raises:
        ConfigurationError: If a value of `changes` is not JSON.
    """

    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    removed: Sequence[str] = ()
    revision: str

    def __post_init__(self) -> None:
        checked_context(self.changes)
        try:
            json.dumps(dict(self.changes), allow_nan=False)
        except ValueError as error:
            raise ConfigurationError(f"the changes of the context must be JSON: {error}") from error

    @property
    def names(self) -> list[str]:
        """The names of all changed and removed variables."""
        return sorted({*self.changes, *self.removed})

    def applied_to(self, context: Mapping[str, Any], revision: str) -> dict[str, Any]:
        """Return the context variables after the change. Raises AnswersRefused if the conversation has another revision."""
        if revision != self.revision:
            text = "the conversation has changed since its context was loaded; load it again, and repeat the change"
            raise AnswersRefused(text, code="conflict")
        gone = {*self.removed}  # the list may be long
        kept = {key: value for key, value in context.items() if key not in gone}
        return {**kept, **checked_context(self.changes)}


WhileRunning: TypeAlias = Literal["refuse", "wait", "replace"]
"""What happens to a new message while a run of its conversation is active. "refuse": it raises RunActive. "wait": it waits for the
end of the active run. "replace": the active run is stopped.
"""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The answer of a client to an open call.

    Args:
        call_id: The public id of the call. With `run_id`, it may also be the id from the model, or the index of the call.
        run_id: The id of the run that waits. Without this id, a repeated answer could answer the next question of the same
            call. The id may be None for the result of an external tool, and is None if the waiting run has no record.
        approve: True or False for an approval; None for an answer in `data`.
        arguments: Arguments that replace the arguments of an approved call.
        expected: The arguments that the user has seen. If the call has other arguments, AnswersRefused is raised.
        reason: The reason of a denial, for the model.
        data: The answer.
        result: The result of the call, instead of running its function. No wire sets it.
    """

    call_id: str
    _: KW_ONLY
    run_id: str | None = None
    approve: bool | None = None
    arguments: Mapping[str, Any] | None = None
    expected: Mapping[str, Any] | None = None
    reason: str = ""
    data: Any = None
    result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool of the client. The run keeps its calls open, and the client answers them."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the tool as JSON data, in the form of a function of Chat Completions."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of runs: their number, their seconds, and their kept logs. None, the default, means no limit.

    Only `LocalRuns` in memory always keep a limited number of runs: without `kept_runs` and `waiting_runs_per_user`, both are
    10,000.

    A run that waits for an answer is kept as long as it waits, whatever the limits for ended runs are. It does not count as a
    kept run. `waiting_runs_per_user` limits the number of such runs.

    Args:
        runs_per_user: Concurrent runs of one user. The same number of messages may wait for these runs.
        runs: Concurrent runs of all users.
        run_seconds: Seconds of one run. If another process continues the run, its seconds start again from 0.
        max_turns: Completions of one run.
        log_bytes: Bytes of the log of one run; a run with a longer log is stopped.
        kept_seconds: Seconds after which the log of an ended run is deleted.
        kept_runs: Number of kept logs of ended runs; the oldest logs are deleted first.
        kept_bytes: Bytes of all kept logs of ended runs; the oldest logs are deleted first.
        waiting_runs_per_user: Number of runs of one user that wait for an answer. The oldest of them are stopped first, and
            their calls are closed: a later answer is refused.

    Raises:
        ConfigurationError: If `max_turns` is not a whole number.
    """

    runs_per_user: float | None = None
    runs: float | None = None
    run_seconds: float | None = None
    max_turns: int | None = None
    log_bytes: float | None = None
    kept_seconds: float | None = None
    kept_runs: float | None = None
    kept_bytes: float | None = None
    waiting_runs_per_user: float | None = None

    def __post_init__(self) -> None:
        checked_max_turns(self.max_turns)

    @classmethod
    def web(cls) -> Self:
        """Return the limits of a web service. To change one: `dataclasses.replace(Limits.web(), max_turns=10)`."""
        return cls(
            runs_per_user=4,
            runs=1_000,
            run_seconds=3600,
            max_turns=OF_A_WEB_SERVICE,
            log_bytes=20_000_000,
            kept_seconds=24 * 3600,
            kept_runs=10_000,
            kept_bytes=1_000_000_000,
            waiting_runs_per_user=1_000,
        )


@dataclass(frozen=True, slots=True)
class NewRun:
    """A request to start a run, with `messages`, `answers`, `regenerate` or `continues`.

    Args:
        user: The id of the user, who owns the run and the conversation.
        conversation: The id of the conversation, or None for a run without a conversation.
        messages: The new messages of the user; for a run without a conversation, the whole history. A str is one message of
            the user.
        answers: The answers to the open calls of the conversation.
        strict: If True, an answer to a call that is not open raises AnswersRefused. If False, such an answer is ignored.
            Messages that the conversation already ends with are ignored too.
        regenerate: Whether to replace the answer to the last message of the user.
        agent: The name of the agent that starts a new conversation; None for the first agent of the service.
        run_id: The id of the run; with None, `start` creates an id.
        key: An idempotency key of the user.
        context_variables: The context variables of a new conversation.
        client_context: Context variables to set before the run.
        context_edit: A change of the context variables before the run, by an operator of the service.
        tools: The tools of the client.
        model: The model of the run, in place of the models of its agents.
        settings: Model settings of the client, for each request of the run, such as `temperature`. They replace the settings of
            the agents; the lower limit of output tokens applies.
        notes: Messages of the client that each request of the run has, and that the conversation does not store. A run that
            answers calls and has no model, no settings or no notes continues with those of the run that waits.
        on_disconnect: See `Service`.
        while_running: See `Service`.
        continues: Whether to call the model without a new message. The history must end with a message of the user or the
            result of a tool.
        open_calls_first: If True, a new message raises AnswersRefused while a call waits for a decision, or if the request
            also has strict `answers`. If a request with strict `answers` repeats old messages, these are ignored.

    Raises:
        ConfigurationError: If the request has no messages, no answers, and neither `regenerate` nor `continues`; or if no
            database accepts `user`.
        InvalidRequest: If no database accepts `run_id` or `key`: each has a NUL character or half a surrogate pair.
    """

    user: str
    conversation: str | None = None
    messages: str | Sequence[Message] = ()
    _: KW_ONLY
    answers: Sequence[CallAnswer] = ()
    strict: bool = True
    regenerate: bool = False
    agent: str | None = None
    run_id: str | None = None
    key: str | None = None
    context_variables: Mapping[str, Any] | None = None
    client_context: Mapping[str, Any] | None = None
    context_edit: ContextEdit | None = None
    tools: Sequence[ClientTool] = ()
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: Sequence[Message] = ()
    on_disconnect: DisconnectPolicy = "finish"
    while_running: WhileRunning = "refuse"
    continues: bool = False
    open_calls_first: bool = False

    def __post_init__(self) -> None:
        if not (self.messages or self.answers or self.regenerate or self.continues):
            raise ConfigurationError("a new run needs a message or an answer to an open call")
        if self.conversation is None and not self.messages:
            raise ConfigurationError("a run without a conversation needs messages")
        if not is_database_text(self.user):
            raise ConfigurationError(f"the id of the user {shown(self.user, 100)} must be text that a database accepts")
        for name, value in (("run_id", self.run_id), ("key", self.key)):
            if not is_database_text(value):
                raise invalid(name, "text that a database accepts", value)

    @property
    def digest(self) -> str:
        """A hash of the request. Two equal requests have the same hash."""
        # The keys of decisions may be ids and indexes, which can be sorted only as texts.
        answers = json.loads(json.dumps([asdict(answer) for answer in self.answers], default=str))
        work: list[Any] = [self.conversation, messages_of(self), answers, self.regenerate, self.continues, self.agent]
        more = {} if self.context_edit is None else asdict(self.context_edit)
        if self.model is not None:
            more["model"] = self.model
        if more:  # the stored hashes of older versions have none
            work.append(more)
        return hashlib.sha256(json.dumps(work, sort_keys=True, default=str).encode()).hexdigest()


def messages_of(new: NewRun) -> list[Message]:
    """Return the new messages of a request, as dicts."""
    return [{"role": "user", "content": new.messages}] if isinstance(new.messages, str) else list(new.messages)
