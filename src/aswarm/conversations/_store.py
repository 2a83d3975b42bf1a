"""The base class of a store of conversations.

A conversation has messages, the name of the active agent, context variables, and the state of its last run. Each write contains
the revision that it expects and the revision that it creates. So a store detects that another writer was faster. It also
detects a repeated write, which changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from aswarm._log.stored import Change, ConversationSummary, Stored
from aswarm._run.options import ResultStore
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent, StopReason

from ._queue import wait_for_runs

# When a server stops, it cancels its requests and ends the lifespan at once. Closing a store waits at most this time until the
# cancelled runs have written their ends.
CLOSING_SECONDS = 5.0


class Store(ABC):
    """Base class of all stores of conversations, and the type of a parameter that accepts any store: `store: Store`.

    A store of your own implements the six abstract methods, each as one transaction. An id is a text that is not empty. Every
    method may raise RunError if the store cannot be reached. After a RunError or a cancellation, the write may or may not be in
    the store; repeat it with the same revision.
    """

    def conversation(
        self,
        conversation_id: str,
        swarm: AsyncSwarm,
        *,
        agent: Agent,
        agents: Iterable[Agent] = (),
        context_variables: Mapping[str, Any] | None = None,
    ) -> Conversation:
        """Return a new or existing conversation of this store; see `Conversation`. This does no I/O."""
        return Conversation(
            self, conversation_id, swarm, agent=agent, agents=agents, context_variables=context_variables
        )

    @property
    def results(self) -> ResultStore | None:
        """The place for long results of tools, see `aswarm.middleware.spill_results`. A store of your own has none by default."""
        return None

    @abstractmethod
    async def load(self, conversation_id: str, /, *, until: int | None = None) -> Stored | None:
        """Return the conversation, or None. `until=n`: return its state after the first n messages."""

    @abstractmethod
    async def write(self, conversation_id: str, change: Change, /) -> None:
        """Write a change. Raises `Conflict` if the store has neither the revision `change.base` nor `change.revision`."""

    @abstractmethod
    async def fork(self, conversation_id: str, new_id: str, /, *, until: int | None = None) -> None:
        """Copy the conversation, or its first `until` messages. Raises `Conflict` if `new_id` exists.

        Raises ConfigurationError for an unknown `conversation_id`.
        """

    @abstractmethod
    async def list(
        self, *, prefix: str = "", limit: int = 100, before: float | None = None, stop: StopReason | None = None
    ) -> Sequence[ConversationSummary]:
        """Return a page of conversations, the last updated first: without arguments, only the newest 100.

        Args:
            prefix: Only conversations with ids that start with this text.
            limit: The maximum of conversations. A page may be longer by conversations with equal `updated`, which must not be
                divided, so that `before` leaves none out.
            before: Only conversations that were updated before this time, in seconds since the epoch. For the next page, pass
                the `updated` of the last conversation.
            stop: Only conversations whose last run stopped for this reason. `stop="waiting"`: a call waits for a decision.
        """

    @abstractmethod
    async def delete(self, conversation_id: str, /) -> bool:
        """Delete the conversation. Returns whether it existed."""

    @abstractmethod
    async def purge(self, *, older_than_seconds: float) -> int:
        """Delete the conversations whose last write is more than `older_than_seconds` ago. Returns their number."""

    async def aclose(self) -> None:  # noqa: B027 - most stores have nothing to close
        """Close the store. A store that has nothing to close need not override this method.

        The end of an `async with` block first waits for the runs of this event loop, at most five seconds.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await wait_for_runs(self, CLOSING_SECONDS)
        await self.aclose()


# Last, because a conversation has a store: both hints can be read only if both names are known at run time.
from ._conversation import Conversation  # noqa: E402
