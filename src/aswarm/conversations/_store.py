"""The protocol of a store of conversations, and its values. This module does no I/O.

A conversation has messages, the name of the active agent, context variables, and the state of its last run. Each write contains
the revision that it expects and the revision that it creates. So a store detects that another writer was faster. It also
detects a repeated write, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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


class Store(Protocol):
    """A store of conversations. Each method is one transaction.

    An id is a text that is not empty. Every method may raise RunError if the store cannot be reached. After a RunError or a
    cancellation, the write may or may not be in the store; repeat it with the same revision.
    """

    async def load(self, conversation_id: str, /, *, until: int | None = None) -> Stored | None:
        """Return the conversation, or None. `until=n`: return its state after the first n messages."""
        ...

    async def write(self, conversation_id: str, change: Change, /) -> None:
        """Write a change. Raises `Conflict` if the store has neither the revision `change.base` nor `change.revision`."""
        ...

    async def fork(self, conversation_id: str, new_id: str, /, *, until: int | None = None) -> None:
        """Copy the conversation, or its first `until` messages. Raises `Conflict` if `new_id` exists.

        Raises ConfigurationError for an unknown `conversation_id`.
        """
        ...

    async def list(
        self, *, prefix: str = "", limit: int = 100, before: float | None = None
    ) -> Sequence[ConversationSummary]:
        """Return conversations with ids that start with `prefix`: at most `limit`, the last updated first.

        `before`: only conversations that were updated before this time, in seconds since the epoch.
        """
        ...

    async def delete(self, conversation_id: str, /) -> bool:
        """Delete the conversation. Returns whether it existed."""
        ...

    async def purge(self, *, older_than_seconds: float) -> int:
        """Delete the conversations whose last write is more than `older_than_seconds` ago. Returns their number."""
        ...
