"""The values of a stored conversation and of a run, the errors of a write, and the JSON texts that a store can keep. No I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from pydantic_core import PydanticSerializationError, to_jsonable_python

from aswarm._values.agent import StopReason, UnknownCall
from aswarm._values.context import check_context, context_error, context_faults, copy_containers
from aswarm._values.decisions import OpenCall, open_calls, waiting_calls
from aswarm._values.errors import ConfigurationError, RunError, named_as_base
from aswarm._values.json import shown, whole_characters
from aswarm._values.messages import Message

_MAX_ID_LENGTH = 500
_DATABASE_TEXT = re.compile("[^\\0\ud800-\udfff]*")
_SHOWN = 80
# ASCII, because a model may send half a surrogate pair, which neither UTF-8 nor PostgreSQL accepts. `to_jsonable_python`,
# because the client of a provider may put objects into a message.
encode = json.JSONEncoder(separators=(",", ":"), default=to_jsonable_python).encode


def checked_id(conversation_id: object) -> str:
    """Return the id. Raises ConfigurationError if no store can keep it."""
    if not (isinstance(conversation_id, str) and 0 < len(conversation_id) <= _MAX_ID_LENGTH):
        raise ConfigurationError(
            f"the id of a conversation must be a str of 1 to {_MAX_ID_LENGTH} characters, not {shown(conversation_id, _SHOWN)}"
        )
    try:
        conversation_id.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"the id {shown(conversation_id, _SHOWN)} cannot be stored: {error.reason}. Use text that UTF-8 can encode"
        ) from error
    if "\0" in conversation_id:
        raise ConfigurationError(
            f"the id {shown(conversation_id, _SHOWN)} has a NUL character, which no database accepts; remove it"
        )
    return conversation_id


def database_text(text: str) -> str:
    """Return the text with U+FFFD for halves of surrogate pairs and for NUL, which not every database accepts."""
    return whole_characters(text).replace("\0", "\ufffd")


def is_database_text(*texts: str | None) -> bool:
    """Return whether every database accepts the texts. None is accepted."""
    return all(map(_DATABASE_TEXT.fullmatch, filter(None, texts)))


def message_text(message: Message) -> str:
    """Return a message as JSON text. Raises ConfigurationError if the message is not JSON."""
    try:
        return encode(message)
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
        raise ConfigurationError(
            f"a message of the role {message.get('role')!r} cannot be stored, because it is not JSON: {error}"
        ) from error


def checked_context(context: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the context variables. Raises ConfigurationError if they are not JSON."""
    if context is None:
        return {}
    check_context(context)
    copied: dict[str, Any] = copy_containers(context)
    for _, fault in context_faults(copied):
        raise ConfigurationError(context_error(fault))
    return copied


@dataclass(frozen=True, slots=True)
class Stored:
    """A conversation in a store: its history, its active agent and its context variables.

    Args:
        id: The id of the conversation.
        revision: Changes with each write; empty for a conversation that was never written.
        messages: The history.
        agent: The name of the active agent.
        context_variables: The context variables.
        stop: The `Response.stop` of the last run; None while this run is running, or if its process died.
        unknown_calls: The `Response.unknown_calls` of the last run.
        created: The time of the first write, in seconds since the epoch.
        updated: The time of the last write, in seconds since the epoch.
    """

    id: str
    revision: str = ""
    messages: list[Message] = field(default_factory=list[Message])
    agent: str = ""
    context_variables: dict[str, Any] = field(default_factory=dict[str, Any])
    stop: StopReason | None = None
    unknown_calls: list[UnknownCall] = field(default_factory=list[UnknownCall])
    created: float = 0.0
    updated: float = 0.0

    @property
    def open_calls(self) -> list[OpenCall]:
        """The open calls at the end of the history, for the decisions of `Conversation.resume`."""
        return open_calls(self.messages)

    @property
    def waiting(self) -> list[OpenCall]:
        """The open calls that wait for a person or another program: those with a `reason`."""
        return waiting_calls(self.open_calls)


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """An item in a list of conversations. For the fields that are not listed here, see `Stored`.

    `length`: the number of messages. `title`: the title from `rename`, otherwise the start of the first user message. A store
    of your own need not have titles.
    """

    id: str
    revision: str
    agent: str
    length: int
    stop: StopReason | None
    created: float
    updated: float
    title: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A write to a conversation. The fields that are not listed here replace the fields of `Stored` with the same names.

    If the store already has `revision`, the write succeeds again and changes nothing.

    Args:
        base: The revision that the conversation must have; empty if the conversation must not exist yet.
        revision: The new revision, a unique text.
        keep: The number of messages at the start of the history that stay. The later messages are deleted.
        messages: The new messages, which follow the kept messages.
    """

    base: str
    revision: str
    keep: int
    messages: Sequence[Message]
    agent: str
    context_variables: dict[str, Any]
    stop: StopReason | None = None
    unknown_calls: Sequence[UnknownCall] = ()


class Conflict(RunError):  # noqa: N818 - named after the event
    """Another writer has changed the conversation. This write was not stored, and nothing was merged.

    `stored`: the conversation that is now in the store, or None if it was deleted. `messages`: the whole history, including the
    run that could not be written. `response`: the response of this run.
    """

    def __init__(self, conversation_id: str, stored: Stored | None) -> None:
        now = f"it has {len(stored.messages)} messages now" if stored is not None else "it was deleted"
        super().__init__(
            f"the conversation {conversation_id!r} was changed by another writer: {now}. Nothing was merged: `.stored` is the "
            "conversation in the store, `.messages` is the history of this run. Run again to continue from the store"
        )
        self.stored = stored
        self.messages: list[Message] = []


@named_as_base
class UnknownConversation(ConfigurationError):  # noqa: N818 - named after the event
    """The store has no conversation with this id, for example because another program has just deleted it."""


# --- runs ---

RunStatus: TypeAlias = Literal["running", "waiting", "finished", "failed", "stopped"]
"""The status of a run: "running" until its end."""
DisconnectPolicy: TypeAlias = Literal["finish", "cancel"] | float
"""What happens to a run without readers. "finish": the run continues to its end. "cancel": it is cancelled when its last
reader disconnects. A number: it is cancelled after this number of seconds without a reader.
"""


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


def revision_of(run_id: str, number: int) -> str:
    """Return the revision of a conversation after the start (0) or the end (1) of a run."""
    return hashlib.blake2b(f"{run_id}/{number}".encode(), digest_size=8).hexdigest()


def revisions_of(run_id: str) -> tuple[str, str]:
    """Return the revisions of a conversation after the start and after the end of a run."""
    return revision_of(run_id, 0), revision_of(run_id, 1)


def asker(stored: Stored, last_run: str | None) -> str | None:
    """Return the id of the run that has left the open calls of the conversation.

    None if no run has left them: another program has changed the conversation since, or it is a copy of another conversation.
    `last_run`: the id of the last run of the conversation, or None.
    """
    return last_run if last_run is not None and stored.revision in revisions_of(last_run) else None
