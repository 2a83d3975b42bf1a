"""A chat whose conversation is in a store: how the session and the store stay the same.

A run is one of `Conversation`, which writes as it happens. What the session does beside runs (a history that was reset or
loaded, a message that was taken back, an answer that was stopped) is written after the line that did it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aswarm._text import counted

from ._session import STOPPED, Session, StartRun

if TYPE_CHECKING:
    from aswarm.conversations import Conversation, ConversationStream, Stored

    from ._loop import ChatOptions


class KeptChat:
    """The session of a chat, and its conversation in a store."""

    def __init__(self, conversation: Conversation, session: Session) -> None:
        self._conversation = conversation
        self._session = session
        self._known = session.history

    async def begin(self) -> str:
        """Continue what the store has; returns a text about it, empty for a new conversation."""
        stored = await self._conversation.load()
        if not stored.revision:
            return ""
        self._take(stored)
        about = f"{counted(len(stored.messages), 'message')} loaded. The active agent is {self._session.agent.name}."
        return f"{about} {self._session.open_calls_hint}".rstrip()

    def _take(self, stored: Stored) -> None:
        session = self._session
        session.agent = session.agents.get(stored.agent, session.agent)
        session.context = stored.context_variables
        session.history = self._known = stored.messages

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
