"""What the ready-made stores share: the methods of `Store` as transactions in SQL, and `conversation`."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._swarm import AsyncSwarm

from . import _statements
from ._conversation import Conversation
from ._queue import wait_for_runs
from ._records import checked_id
from ._statements import Transaction
from ._store import Change, ConversationSummary, Store, Stored

T = TypeVar("T")
# A server that stops cancels its requests, and ends the lifespan in the same moment.
CLOSING_SECONDS = 5.0  # for runs that are about to write what they leave


class SQLStore(Store):
    """A store in a database. A subclass says how a transaction reaches it."""

    @abstractmethod
    async def _transact(self, transaction: Transaction[T], *, reads_only: bool = False) -> T:
        """Run a transaction whole or not at all, and return its value. Raises what it raises, or RunError."""

    def conversation(
        self,
        conversation_id: str,
        swarm: AsyncSwarm,
        *,
        agent: Agent,
        agents: Iterable[Agent] = (),
        context_variables: Mapping[str, Any] | None = None,
    ) -> Conversation:
        """A conversation of this store, new or not; see `Conversation`. Nothing is read or written yet."""
        return Conversation(
            self, conversation_id, swarm, agent=agent, agents=agents, context_variables=context_variables
        )

    async def load(self, conversation_id: str, /, *, until: int | None = None) -> Stored | None:
        """See `Store`."""
        return await self._transact(_statements.load(checked_id(conversation_id), until), reads_only=True)

    async def write(self, conversation_id: str, change: Change, /) -> None:
        """See `Store`."""
        await self._transact(_statements.write(checked_id(conversation_id), change, time.time()))

    async def fork(self, conversation_id: str, new_id: str, /, *, until: int | None = None) -> None:
        """See `Store`."""
        revision = os.urandom(8).hex()
        await self._transact(
            _statements.fork(checked_id(conversation_id), checked_id(new_id), until, revision, time.time())
        )

    async def list(
        self, *, prefix: str = "", limit: int = 100, before: float | None = None
    ) -> Sequence[ConversationSummary]:
        """See `Store`."""
        return await self._transact(_statements.summaries(prefix, limit, before), reads_only=True)

    async def delete(self, conversation_id: str, /) -> bool:
        """See `Store`."""
        return await self._transact(_statements.delete(checked_id(conversation_id)))

    async def purge(self, older_than: float) -> int:
        """See `Store`."""
        if not older_than >= 0:
            raise ConfigurationError(f"older_than is a number of seconds from 0, not {older_than!r}")
        return await self._transact(_statements.purge(time.time() - older_than))

    async def aclose(self) -> None:
        """Close the store at once. Nothing can be read or written after it.

        The end of `async with` waits before it, up to five seconds, for runs of this event loop that have not ended.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await wait_for_runs(self, CLOSING_SECONDS)
        await self.aclose()
