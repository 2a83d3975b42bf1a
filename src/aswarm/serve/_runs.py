"""What serving needs of runs: the interface `Runs`, its values and its errors.

A run belongs to the object that implements `Runs`. A request is a reader of a run: it has a position in the log of the run
and no queue, so a reader costs nothing while it waits, and a slow one holds nothing up. Every method may be called again
with the same ids, and does its work once.

`LocalRuns` implements the interface on one machine. Another implementation passes the same tests,
`tests/serve/test_runs_contract.py`. No I/O here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from aswarm._errors import AswarmError, ConfigurationError
from aswarm._messages import Message

from ._entries import Entry
from ._requests import CallAnswer, ClientTool
from ._shutdown import Draining

RunStatus: TypeAlias = Literal["running", "finished", "failed", "stopped"]
DisconnectPolicy: TypeAlias = Literal["finish", "cancel"] | float
"""What happens to a run that nothing reads. "finish": it ends by itself, with or without readers.

"cancel": it is cancelled when its last reader has gone. A number: it is cancelled after so many seconds without a reader.
"""
WhileRunning: TypeAlias = Literal["refuse", "wait", "replace"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much clients may use.

    `body`: bytes of a request. `text`: characters of one message. `runs_per_user`, `runs`: how many runs a user, and the
    service, may have at once. As many further messages of a user may wait for an active run. `seconds`: how long one run
    may take. `max_turns`: completions of one run. `log_bytes`: bytes of the log of one run; a run that writes more is
    stopped.

    The logs of ended runs can be read for `kept_seconds`. Of them stay the newest, at most `kept_runs` with at most
    `kept_bytes` together.
    """

    body: int = 1_000_000
    runs_per_user: int = 4
    runs: int = 1_000
    seconds: float = 3600
    max_turns: float = 50
    log_bytes: int = 20_000_000
    kept_seconds: float = 24 * 3600
    kept_runs: int = 10_000
    kept_bytes: int = 1_000_000_000
    text: int = 100_000


@dataclass(frozen=True, slots=True)
class NewRun:
    """What a run begins with: `messages`, `answers`, or one of `regenerate` and `continues`.

    `user`: the id of the user, who owns the run and the conversation. `conversation`: the id of the conversation, or None
    for a run without one. `messages`: the new messages of the user; for a run without a conversation the whole history.
    `answers`: what the user says about the calls that the conversation has left open. `must_fit`: True refuses an answer
    about a call that is not open. False leaves such an answer out, and also messages that the conversation ends with
    already. `regenerate`: the answer to the last message of the user is made again. `continues`: the model is asked with
    the history as it is, which ends with a message of the user or with the answer of a tool. `open_calls_first`: a new
    message is refused while a call waits for a decision, and also beside `answers` that must fit. Beside those, messages
    that the conversation has already are left out.

    `agent`: the name of the agent that a new conversation begins with, or None for the first one of the service.
    `run_id`: the id of the run, or None for a new one. `key`: an idempotency key of the user. `context_variables`: those of
    a new conversation. `client_context`: context variables that are set before the run. `tools`: the tools of the client.
    `on_disconnect` and `while_running`: as of `Service`.

    Raises `ConfigurationError` for a combination that says nothing to do.
    """

    user: str
    conversation: str | None = None
    messages: Sequence[Message] = ()
    answers: Sequence[CallAnswer] = ()
    must_fit: bool = True
    regenerate: bool = False
    agent: str | None = None
    run_id: str | None = None
    key: str | None = None
    context_variables: Mapping[str, Any] | None = None
    client_context: Mapping[str, Any] | None = None
    tools: Sequence[ClientTool] = ()
    on_disconnect: DisconnectPolicy = "finish"
    while_running: WhileRunning = "refuse"
    continues: bool = False
    open_calls_first: bool = False

    def __post_init__(self) -> None:
        if not (self.messages or self.answers or self.regenerate or self.continues):
            raise ConfigurationError("a new run needs a message or an answer to an open call")
        if self.conversation is None and not self.messages:
            raise ConfigurationError("a run without a conversation needs messages")

    @property
    def digest(self) -> str:
        """A hash of what the run is asked to do: equal for a request that is sent again."""
        answers = [asdict(answer) for answer in self.answers]
        asked = [self.conversation, list(self.messages), answers, self.regenerate, self.continues, self.agent]
        return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is known about a run.

    `conversation`: the id of its conversation, or None. `agent`: the name of the agent that was asked for, or None.
    `status`: whether it runs, and how it ended. `started`, `ended`: milliseconds since the epoch; `ended` is None while it
    runs. `reason`: why a stopped run was stopped, as a code such as "cancelled"; of a run that has failed, the name of the
    error; of one that has finished without an answer, the `stop` of its response, such as "waiting". `last`: the number of
    its last entry so far, -1 if it has none yet. `digest`: the hash of what it was asked to do, see `NewRun.digest`. `key`:
    the idempotency key that it was started with. `is_new`: True in the answer to the call of `start` that has begun it.
    """

    id: str
    user: str
    conversation: str | None
    agent: str | None
    status: RunStatus
    started: int
    ended: int | None = None
    reason: str | None = None
    digest: str = ""
    on_disconnect: DisconnectPolicy = "finish"
    last: int = -1
    key: str | None = None
    is_new: bool = field(default=False, compare=False)

    @property
    def log_fields(self) -> dict[str, str | None]:
        """What each log record about this run has beside its text."""
        return {"run_id": self.id, "agent": self.agent}

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended."""
        return self.status == "running"

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON data, as a client sees it."""
        hidden = ("user", "digest", "on_disconnect", "key", "is_new")
        return {key: value for key, value in asdict(self).items() if key not in hidden and value is not None}


class Runs(Protocol):
    """Starts runs, and lets requests read, cancel and list them. Everything belongs to a user.

    A run of another user is unknown: the methods raise `RunNotFound` for it.
    """

    async def start(self, new: NewRun) -> RunRecord:
        """Start a run, or return the record of the run that has this `run_id` or `key` already.

        When this returns, the run and its messages are recorded. Raises RunActive, RunLimit, KeyReused, AnswersRefused,
        ConversationNotFound, RequestError and ConfigurationError; then nothing has begun.
        """
        ...

    async def get(self, run_id: str, *, user: str) -> RunRecord:
        """The record of a run as it is now."""
        ...

    async def list(self, *, user: str, conversation: str | None = None, limit: int = 100) -> list[RunRecord]:
        """The runs of a user, or of one conversation of the user: at most `limit`, the newest first."""
        ...

    async def read(self, run_id: str, after: int = -1, *, user: str) -> Sequence[Entry]:
        """Some entries of the log with numbers above `after`, in order. Waits until there is one; empty after the last one.

        May be cancelled and called again: the position is the caller's.
        """
        ...

    async def cancel(self, run_id: str, *, user: str, reason: str = "cancelled") -> RunRecord:
        """Stop a run, and return once it has ended. A run that has ended stays as it is.

        `reason`: a code that the record and the log have, such as "cancelled".
        """
        ...

    async def forget(self, conversation: str, *, user: str) -> None:
        """Delete the runs of a conversation. Raises RunActive if one has not ended."""
        ...

    @property
    def draining(self) -> Draining:
        """Set once no run is started any more, because the service ends."""
        ...

    async def drain(self, seconds: float) -> None:
        """Start no more runs, and return once all have ended; those that run after so many seconds are stopped."""
        ...

    def reading(self, record: RunRecord) -> AbstractContextManager[None]:
        """Count a reader of the run while the block lasts. `on_disconnect` says what happens when no reader is left."""
        ...


class Run:
    """A run of `Runs`, for one user: its log, its result, and what can be done to it."""

    def __init__(self, runs: Runs, record: RunRecord) -> None:
        """`record`: what is known of the run at some time."""
        self._runs = runs
        self.record = record

    @property
    def draining(self) -> Draining:
        """What tells readers that the service ends."""
        return self._runs.draining

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.record.id

    @property
    def conversation(self) -> str | None:
        """The id of its conversation; None for a run that has none."""
        return self.record.conversation

    async def read(self, after: int = -1) -> Sequence[Entry]:
        """Some entries with numbers above `after`, once there is one; empty after the last one."""
        return await self._runs.read(self.id, after, user=self.record.user)

    async def entries(self, after: int = -1) -> AsyncGenerator[Entry, None]:
        """All entries with numbers above `after`: those that are there, then the live ones, until the run has ended."""
        while batch := await self.read(after):
            for entry in batch:
                yield entry
            if batch[-1].is_last:
                return
            after = batch[-1].seq

    async def result(self) -> Entry:
        """Wait for the end. Returns the last entry: RunFinished, RunFailed or RunStopped.

        Raises RunNotFound if the log has been deleted.
        """
        known = (await self._runs.get(self.id, user=self.record.user)).last
        while True:
            after = max(-1, known - 1)
            while batch := await self.read(after):
                if batch[-1].is_last:
                    return batch[-1]
                after = batch[-1].seq
            # An execution that has lost the run may have shown numbers that the log never gets.
            last = (await self._runs.get(self.id, user=self.record.user)).last
            if last == known:
                raise RunNotFound(self.id)
            known = last

    async def cancel(self, reason: str = "cancelled") -> Entry:
        """Stop the run, wait until its tools have ended, and return the last entry, which says what has happened."""
        self.record = await self._runs.cancel(self.id, user=self.record.user, reason=reason)
        return await self.result()

    async def answer(self, *answers: CallAnswer, key: str | None = None) -> Run:
        """Decide on the calls that this run has left open, on all of them: a new run of the conversation, which resumes them."""
        policy = self.record.on_disconnect
        new = NewRun(self.record.user, self.conversation, answers=answers, key=key, on_disconnect=policy)
        return Run(self._runs, await self._runs.start(new))

    def reading(self) -> AbstractContextManager[None]:
        """Count a reader while the block lasts."""
        return self._runs.reading(self.record)


# --- errors -----------------------------------------------------------------------------------------------------------


class RunsError(AswarmError):
    """Base of what `Runs` refuses. `code` is its name for clients, and `status` the HTTP status that a service answers with."""

    code = "refused"
    status = 400


class RunNotFound(RunsError):  # noqa: N818 - reads as what happened
    """There is no such run of this user, or its log has been deleted."""

    code = "run_not_found"
    status = 404

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}")


class ConversationNotFound(RunsError):  # noqa: N818 - as above
    """There is no such conversation of this user."""

    code = "conversation_not_found"
    status = 404

    def __init__(self, conversation: str) -> None:
        super().__init__(f"there is no conversation {conversation!r}")


class AgentNotFound(RunsError):  # noqa: N818 - as above
    """There is no agent of this name."""

    code = "agent_not_found"
    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no agent {name!r}")


class RunActive(RunsError):  # noqa: N818 - as above
    """Another run of the conversation has not ended. `run_id` names it: a client can read it, or cancel it."""

    code = "run_active"
    status = 409

    def __init__(self, run_id: str) -> None:
        super().__init__(f"the conversation has a run that has not ended, {run_id!r}; read it, or cancel it")
        self.run_id = run_id


class RunLimit(RunsError):  # noqa: N818 - as above
    """The user, or the service (`whose`), has as many runs as `Limits` allows. `retry_after`: seconds to wait."""

    def __init__(self, whose: Literal["user", "service"], retry_after: float = 5) -> None:
        super().__init__(f"the {whose} has as many runs at once as the service allows; wait until one has ended")
        self.code = "too_many_runs" if whose == "user" else "service_full"
        self.status = 429 if whose == "user" else 503
        self.retry_after = math.ceil(retry_after)


class ShuttingDown(RunsError):  # noqa: N818 - as above
    """The service is about to end and starts no run. `retry_after`: seconds to wait."""

    code = "shutting_down"
    status = 503
    retry_after = 1

    def __init__(self) -> None:
        super().__init__("the service is shutting down; send the request again in a moment")


class KeyReused(RunsError):  # noqa: N818 - as above
    """The idempotency key, or the run id, belongs to a run that was asked for something else."""

    code = "key_reused"
    status = 422

    def __init__(self, run_id: str) -> None:
        super().__init__(f"this key belongs to the run {run_id!r}, which was asked for something else; send a new key")
        self.run_id = run_id


class AnswersRefused(RunsError):  # noqa: N818 - as above
    """Answers that do not fit the calls that are open: 409 for one that is about no open call, else 422."""

    def __init__(self, message: str, code: str, status: int) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
