"""The owner of a run, and the protocol of a store for its long results. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class ResultStore(Protocol):
    """Protocol of a place for long results of tools, see `aswarm.middleware.spill_results`. Each text has an owner and a handle.

    The owner is "conversation:" and the id of the conversation in its store, or "run:" and the id of a run without a conversation.
    The included stores of conversations copy the texts when a conversation is forked, and delete them with it, in the same
    transaction. For a place of your own, your program does both: aswarm only calls these three methods. Texts that are not deleted
    belong to the next conversation with the same id.
    """

    async def put(self, owner: str, handle: str, parts: Sequence[str], /) -> None:
        """Store a text in parts, all or none of them. If the owner has this handle already, do nothing.

        When it returns, the text is stored as safely as the history that will have the handle.
        """
        ...

    async def read(self, owner: str, handle: str, part: int, /) -> str | None:
        """Return a part of a text, by its number from 0; None if the owner has no such text, or the text has no such part."""
        ...

    async def handles(self, owner: str, /) -> Sequence[str]:
        """Return the handles of the owner, the newest first."""
        ...


@dataclass(frozen=True, slots=True)
class RunOwner:
    """The owner of a run. `key`: as a `ResultStore` gets it. `results`: the place for results in the store of its conversation."""

    key: str
    user: str | None = None
    conversation: str | None = None
    results: ResultStore | None = None
