"""The interface `Runs`, its values and its errors.

The object that implements `Runs` owns a run. A request only reads the log of the run, from a position that the reader keeps.
There is no buffer for each reader, so a slow reader delays nothing. A caller may repeat each method with the same ids; the
repeated call has no further effect.

Each implementation must pass the tests in `tests/runs/contract`. This module does no I/O.

Security: `Limits` bounds the runs of a user and of the service.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, Literal, Protocol, Self, TypeAlias, cast

from aswarm._log.texts import is_database_text
from aswarm._record.entries import Entry
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import shown
from aswarm._values.max_turns import OF_A_WEB_SERVICE, checked_max_turns
from aswarm._values.messages import Message
from aswarm.conversations._base import SQLStore

from ._live import LiveRun
from ._notifier import Notifier
from ._requests import CallAnswer, ClientTool, RequestRefused, invalid

RunStatus: TypeAlias = Literal["running", "waiting", "finished", "failed", "stopped"]
"""The status of a run: "running" until its end."""
DisconnectPolicy: TypeAlias = Literal["finish", "cancel"] | float
"""What happens to a run without readers. "finish": the run continues to its end. "cancel": it is cancelled when its last
reader disconnects. A number: it is cancelled after this number of seconds without a reader.
"""
WhileRunning: TypeAlias = Literal["refuse", "wait", "replace"]
"""What happens to a new message while a run of its conversation is active. "refuse": it raises RunActive. "wait": it waits for the
end of the active run. "replace": the active run is stopped.
"""


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
        tools: The tools of the client.
        settings: Model settings of the client, for each request of the run, such as `temperature`. They replace the settings of
            the agents; the lower limit of output tokens applies.
        notes: Messages of the client that each request of the run has, and that the conversation does not store. A run that
            answers calls and has no settings, or no notes, continues with those of the run that waits.
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
    tools: Sequence[ClientTool] = ()
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
    def _messages(self) -> list[Message]:
        return [{"role": "user", "content": self.messages}] if isinstance(self.messages, str) else list(self.messages)

    @property
    def digest(self) -> str:
        """A hash of the request. Two equal requests have the same hash."""
        # The keys of decisions may be ids and indexes, which can be sorted only as texts.
        answers = json.loads(json.dumps([asdict(answer) for answer in self.answers], default=str))
        work = [self.conversation, self._messages, answers, self.regenerate, self.continues, self.agent]
        return hashlib.sha256(json.dumps(work, sort_keys=True, default=str).encode()).hexdigest()


def status_of(status: str, reason: str | None) -> RunStatus:
    """Return the status of a record from the status and the reason that its log has stored."""
    return cast("RunStatus", "waiting" if status == "finished" and reason == "waiting" else status)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The state of a run when the record was read.

    Args:
        id: The id of the run.
        user: The id of its user.
        conversation: The id of its conversation, or None.
        agent: The name of the agent that starts the run, or None.
        status: "running" or, after the end, "finished", "failed" or "stopped". "waiting": the run has ended, and its calls wait for
            answers; "finished" when the next run of the conversation answers or closes these calls.
        started_ms: The start, in milliseconds since the epoch.
        ended_ms: The end, in milliseconds since the epoch; None for a running run.
        reason: For a stopped run, a code such as "cancelled". For a failed run, the name of the error. For a run that finished
            without an answer, the `stop` of its response, such as "max_turns" or "waiting". When the next run of the
            conversation answers or closes its calls, "waiting" becomes "continued".
        digest: See `NewRun.digest`.
        on_disconnect: See `NewRun`.
        last: The number of its last entry so far, -1 without entries.
        key: Its idempotency key, or None.
        is_new: True if this `start()` created the run.
        is_queued: Whether the run is in the queue, and no process executes it yet. Its `status` is "running".
    """

    id: str
    user: str
    conversation: str | None
    agent: str | None
    status: RunStatus
    started_ms: int
    ended_ms: int | None = None
    reason: str | None = None
    digest: str = ""
    on_disconnect: DisconnectPolicy = "finish"
    last: int = -1
    key: str | None = None
    is_new: bool = field(default=False, compare=False)
    is_queued: bool = field(default=False, compare=False)

    @property
    def log_fields(self) -> dict[str, str | None]:
        """The `extra=` of each `logging` call about this run."""
        return {"run_id": self.id, "agent": self.agent}

    @property
    def state(self) -> str:
        """The status for people, such as "running (queued)", "waiting" or "finished (max_turns)"."""
        more = "queued" if self.is_queued else self.reason
        return self.status if more in (None, self.status) else f"{self.status} ({more})"

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended."""
        return self.status == "running"

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data for clients."""
        hidden = ("user", "digest", "on_disconnect", "key", "is_new", "is_queued")
        queued = {"is_queued": True} if self.is_queued else {}
        names = {"started_ms": "started", "ended_ms": "ended"}  # in the JSON data
        fields = {names.get(key, key): value for key, value in asdict(self).items()}
        return {key: value for key, value in fields.items() if key not in hidden and value is not None} | queued


class Runs(AbstractAsyncContextManager[Any], Protocol):
    """Starts, reads, cancels and lists runs: the type of `LocalRuns` and `DurableRuns`. Use it in an `async with` block.

    This type is for annotations. Do not implement it: it has private members, which any version may change.

    Each run belongs to a user. For a run of another user, the methods raise `RunNotFound`.

    `_logs_requests`: whether the log of a run has an entry for each request to the model. A service with `show=show_everything`
    needs these entries.
    """

    _logs_requests: bool

    @property
    def swarm(self) -> AsyncSwarm:
        """The swarm that runs the agents."""
        ...

    @property
    def agents(self) -> Mapping[str, Agent]:
        """The agents that clients may name, by name. A new conversation starts with the first agent."""
        ...

    @property
    def _known_agents(self) -> Mapping[str, Agent]:
        """`agents`, `_task_agent`, and the agents that they can hand off to, by name."""
        ...

    @property
    def _task_agent(self) -> Agent | None:
        """The agent for titles and similar tasks; its name for clients is "helper"."""
        ...

    @property
    def store(self) -> SQLStore:
        """The conversations of all users."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits for clients."""
        ...

    @property
    def _is_failing(self) -> bool:
        """Whether runs cannot be recorded now."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the `async with` block of these runs is active."""
        ...

    async def start(self, new: NewRun) -> RunRecord:
        """Start a run, and record it with its messages. If a run with this `run_id` or `key` exists, return that run.

        Raises RunActive, TooManyRuns, KeyReused, AnswersRefused, ConversationNotFound, InvalidRequest and ConfigurationError. If
        `start` raises, no run was started.
        """
        ...

    async def get(self, run_id: str, *, user: str) -> RunRecord:
        """Return the current record of a run."""
        ...

    async def list(self, *, user: str, conversation: str | None = None, limit: int = 100) -> list[RunRecord]:
        """Return the runs of a user, or of one conversation of the user: at most `limit`, the newest first."""
        ...

    async def read(self, run_id: str, after: int = -1, *, user: str) -> Sequence[Entry]:
        """Wait for entries with numbers above `after`, and return one or more in order.

        After the last entry, the result is empty. The caller keeps the position, so it may cancel this call and repeat it.
        """
        ...

    async def cancel(self, run_id: str, *, user: str, reason: str = "cancelled") -> RunRecord:
        """Stop a run, in whichever process it is, and wait for its end. Returns its record.

        The calls that the run has left open are closed, and a later answer is refused. A run that waited for an answer then counts
        as stopped; any other end keeps its status and its reason.

        `reason`: a code for the record and the log, such as "cancelled".
        """
        ...

    async def forget(self, conversation: str, *, user: str) -> None:
        """Delete the runs of a conversation. If one of them is running, this raises RunActive and deletes nothing."""
        ...

    async def delete_conversation(self, conversation: str, *, user: str) -> None:
        """Delete a conversation with its runs, in one transaction.

        Raises ConversationNotFound. If a run of the conversation is running, this raises RunActive and deletes nothing. A
        message or an answer that arrives at the same time either starts its run first, or is refused.
        """
        ...

    @property
    def _notifier(self) -> Notifier:
        """Wakes the tasks that wait for runs. It also knows whether these runs drain."""
        ...

    async def drain(self, seconds: float) -> None:
        """Start no more runs, and wait until all runs end. After this number of seconds, stop them."""
        ...

    def _reading(self, record: RunRecord) -> AbstractContextManager[LiveRun | None]:
        """Count a reader of the run during the block. A run without readers may be cancelled: see `on_disconnect`.

        The block gets the live entries if this process executes the run, otherwise None.
        """
        ...

    async def _next(self, run_id: str, after: int, user: str, seconds: float = ...) -> Sequence[Entry] | None:
        """Return entries like `read`. Return None after this number of seconds, or earlier."""
        ...


# --- errors -----------------------------------------------------------------------------------------------------------


class RunNotFound(RequestRefused):
    """The user has no such run, or its log was deleted."""

    code = "run_not_found"
    status_code = 404

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}")


class ConversationNotFound(RequestRefused):
    """The user has no such conversation."""

    code = "conversation_not_found"
    status_code = 404

    def __init__(self, conversation: str) -> None:
        super().__init__(f"there is no conversation {conversation!r}")


class AgentNotFound(RequestRefused):
    """There is no agent of this name."""

    code = "agent_not_found"
    status_code = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no agent {name!r}")


class RunActive(RequestRefused):
    """The conversation has an active run, `run_id`, which a client can read or cancel."""

    code = "run_active"
    status_code = 409

    def __init__(self, run_id: str) -> None:
        super().__init__(f"the conversation has a running run, {run_id!r}; read it, or cancel it")
        self.run_id = run_id


class TooManyRuns(RequestRefused):
    """The user or the service (`whose`) has reached its limit of concurrent runs. `retry_after`: seconds to wait."""

    def __init__(self, whose: Literal["user", "service"], retry_after: float = 5) -> None:
        super().__init__(f"the {whose} has reached the limit of concurrent runs; wait until one of these runs ends")
        self.code: str = "too_many_runs" if whose == "user" else "service_full"
        self.status_code: int = 429 if whose == "user" else 503
        self.retry_after: int = math.ceil(retry_after)


class ShuttingDown(RequestRefused):
    """The service is shutting down and starts no more runs. `retry_after`: seconds to wait."""

    code = "shutting_down"
    status_code = 503
    retry_after: int = 1

    def __init__(self) -> None:
        super().__init__("the service is shutting down; send the request again in a moment")


class KeyReused(RequestRefused):
    """The idempotency key, or the run id, belongs to a run of another request."""

    code = "key_reused"
    status_code = 422

    def __init__(self, run_id: str) -> None:
        super().__init__(f"this key belongs to the run {run_id!r}, which another request started; send a new key")
        self.run_id = run_id


class AnswersRefused(RequestRefused):
    """Answers that do not fit the open calls: 409 for an answer to a call that is not open, otherwise 422."""

    def __init__(self, message: str, *, code: str, status_code: int) -> None:
        super().__init__(message)
        self.code = code
        self.status_code = status_code
