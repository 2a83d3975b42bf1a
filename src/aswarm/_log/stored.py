"""The values of a stored conversation: its state, a write to it, and the errors of a write. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._values.agent import StopReason, UnknownCall
from aswarm._values.decisions import OpenCall, waiting
from aswarm._values.errors import ConfigurationError, RunError
from aswarm._values.messages import Message


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
    def waiting(self) -> list[OpenCall]:
        """The open calls at the end of the history, for the decisions of `Conversation.resume`."""
        return waiting(self.messages)


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


class UnknownConversation(ConfigurationError):  # noqa: N818 - named after the event
    """The store has no conversation with this id, for example because another program has just deleted it."""
