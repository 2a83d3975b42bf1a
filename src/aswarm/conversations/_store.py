"""The protocol of a store of conversations. This module does no I/O.

A conversation has messages, the name of the active agent, context variables, and the state of its last run. Each write contains
the revision that it expects and the revision that it creates. So a store detects that another writer was faster. It also
detects a repeated write, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aswarm._log.stored import Change, ConversationSummary, Stored


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
