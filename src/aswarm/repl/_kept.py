"""A chat whose conversation is in a store: how the session and the store stay the same.

A run is one of `Conversation`, which writes as it happens. What the session does beside runs (a history that was reset,
a message that was taken back, an answer that was stopped) is written after the line that did it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aswarm._text import counted

from ._session import STOPPED, CopyTo, StartRun, StoreAction

if TYPE_CHECKING:
    from aswarm.conversations import Conversation, ConversationStream, Store, Stored

    from ._chat import Chat
    from ._loop import ChatOptions


class KeptChat:
    """A chat, and its conversation in a store. `conversation_of`: the conversation of an id, written or not."""

    def __init__(
        self, store: Store, conversation_of: Callable[[str], Conversation], conversation_id: str, chat: Chat
    ) -> None:
        self._store = store
        self._conversation_of = conversation_of
        self._conversation = conversation_of(conversation_id)
        self._chat = chat
        self._session = chat.session
        self._session.has_store = True
        self._known = self._session.history

    async def begin(self) -> str:
        """Continue what the store has; returns a text about it, empty for a new conversation."""
        stored = await self._conversation.load()
        return self._continue_with(stored) if stored.revision else ""

    def _continue_with(self, stored: Stored) -> str:
        self._take(stored)
        about = f"{counted(len(stored.messages), 'message')} loaded. The active agent is {self._session.agent.name}."
        return f"{about} {self._session.open_calls_hint}".rstrip()

    def _take(self, stored: Stored) -> None:
        session = self._session
        session.agent = session.agents.get(stored.agent, session.agent)
        session.context = stored.context_variables
        session.history = self._known = stored.messages

    # --- other conversations of the store ---

    async def perform(self, action: StoreAction) -> str:
        """Do what `/save` and `/load` mean in a store; returns a text about it. Raises what the store raises."""
        other = await self._store.load(action.conversation_id)
        if isinstance(action, CopyTo):
            return await self._copy(action, other)
        if other is None:
            return f"The store has no conversation {action.conversation_id!r}."
        self._conversation = self._conversation_of(action.conversation_id)
        self._session.reset()
        return self._continue_with(other)

    async def _copy(self, copy: CopyTo, other: Stored | None) -> str:
        name, own = copy.conversation_id, await self._conversation.load()
        if name == own.id:
            return f"The store has this conversation as {name!r} already, and keeps it as it happens."
        if not own.messages:
            return "There are no messages to save."
        if other is not None:
            is_earlier = own.messages[: len(other.messages)] == other.messages
            if not (copy.replaces or is_earlier):
                return self._chat.question(copy, name, len(other.messages))
            await self._store.delete(name)
        await self._store.fork(own.id, name)
        return f"{counted(len(own.messages), 'message')} saved as {name!r}. The conversation continues as {own.id!r}."

    # --- runs ---

    def stream(self, start: StartRun, options: ChatOptions) -> ConversationStream:
        """The run that the session has decided."""
        conversation, arguments = self._conversation, options.of_any_run
        if start.new_message is None:
            return conversation.resume_stream(start.resume or True, agent=start.agent, **arguments)
        return conversation.stream(start.new_message, agent=start.agent, **arguments)

    async def end_run(self) -> None:
        """Take what a run has left in the store, and write what the session has made of it."""
        session = self._session
        history, stored = session.history, await self._conversation.load()
        self._take(stored)
        if session.failed_message is not None and len(history) < len(stored.messages):  # it was taken back
            session.history = stored.messages[: len(history)]
        elif history and history[-1]["role"] == "assistant" and str(history[-1].get("content")).endswith(STOPPED):
            session.history = [*stored.messages, history[-1]]
        await self.keep()

    async def keep(self) -> None:
        """Write the history of the session, if it is another one than that of the store."""
        session = self._session
        if session.history is not self._known:
            await self._conversation.replace(session.history, agent=session.agent, context_variables=session.context)
            self._known = session.history
