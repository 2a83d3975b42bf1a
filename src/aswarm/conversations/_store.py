"""What a store of conversations keeps, and what it promises: values and the protocol. No I/O.

A conversation is a list of messages, the name of the active agent, context variables, and what its last run has left.
Each write names the revision that it was made for, and the one that it makes. So a store can tell a writer that another
one was there first, and a write that is repeated changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aswarm._agent import StopReason, UnknownCall
from aswarm._decisions import OpenCall, waiting
from aswarm._errors import RunError
from aswarm._messages import Message


@dataclass(frozen=True, slots=True)
class Stored:
    """A conversation as a store has it.

    `revision` changes with each write; it is empty for a conversation that was never written. `agent`: the name of the
    active agent. `stop`: how the last run ended, as in `Response.stop`; None while it runs, and if its process has ended.
    `unknown_calls`: those of the last run, as in `Response.unknown_calls`. `created`, `updated`: seconds since the epoch.
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
        """The calls at the end that have no answer; `Conversation.resume` decides on them."""
        return waiting(self.messages)


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """A line in a list of conversations. `length` counts messages; the other fields are those of `Stored`."""

    id: str
    revision: str
    agent: str
    length: int
    stop: StopReason | None
    created: float
    updated: float


@dataclass(frozen=True, slots=True)
class Change:
    """One write: the first `keep` messages stay, `messages` follow them, and the other fields are replaced.

    `base`: the revision that the store must have, empty for a conversation that it must not have. `revision`: the one that
    the write makes, a text that no other write has. A store that has this revision already takes the write again, with
    the same effect.
    """

    base: str
    revision: str
    keep: int
    messages: Sequence[Message]
    agent: str
    context_variables: dict[str, Any]
    stop: StopReason | None = None
    unknown_calls: Sequence[UnknownCall] = ()


class Conflict(RunError):  # noqa: N818 - reads as what happened
    """Another writer has changed the conversation. Nothing was merged, and nothing of this write is in the store.

    `stored`: what the store has now, None if the conversation was deleted. `messages`: the history of the run that could
    not be written, with the messages from before it; `response` is what the run had done.
    """

    def __init__(self, conversation_id: str, stored: Stored | None) -> None:
        now = f"it has {len(stored.messages)} messages now" if stored is not None else "it was deleted"
        super().__init__(
            f"the conversation {conversation_id!r} was changed by another writer: {now}. Nothing was merged: `.stored` is what "
            "the store has, `.messages` is the history of this run. Run again to continue with what the store has"
        )
        self.stored = stored
        self.messages: list[Message] = []


class Store(Protocol):
    """Where conversations are kept. Each method is one transaction.

    An id is a text that is not empty. Every method may raise RunError if the store cannot be reached. A write that raised
    RunError or was cancelled may have been done; repeat it with the same revision.
    """

    async def load(self, conversation_id: str, /, *, until: int | None = None) -> Stored | None:
        """The conversation, or None. `until=n`: as it was when it had its first n messages, as nearly as was written."""
        ...

    async def write(self, conversation_id: str, change: Change, /) -> None:
        """Write a change. Raises `Conflict` if the store has neither the revision `change.base` nor `change.revision`."""
        ...

    async def fork(self, conversation_id: str, new_id: str, /, *, until: int | None = None) -> None:
        """Copy the conversation, or its first messages. Raises `Conflict` if `new_id` exists, ConfigurationError for an unknown id."""
        ...

    async def list(
        self, *, prefix: str = "", limit: int = 100, before: float | None = None
    ) -> Sequence[ConversationSummary]:
        """Conversations whose id begins with `prefix`: at most `limit`, the last updated first.

        `before`: seconds since the epoch; only those that were updated earlier.
        """
        ...

    async def delete(self, conversation_id: str, /) -> bool:
        """Delete the conversation. Returns whether there was one."""
        ...

    async def purge(self, older_than: float) -> int:
        """Delete all conversations without a write for this many seconds. Returns how many."""
        ...
