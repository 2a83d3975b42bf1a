"""Executes the runs of a chat. Its conversation is in memory, or in a store.

With a store, `Conversation` executes the runs and writes them. Other changes of the history (a reset, a removed message, a
stopped answer) are written after the line of the user that caused them. `/save FILE` and `/load FILE` open a store for a chat in
memory. Its conversation has the id `ID`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aswarm._values.errors import ConfigurationError
from aswarm._values.messages import Message
from aswarm._values.text import counted

from ._session import Session, StartRun

if TYPE_CHECKING:
    from aswarm._swarm import AsyncSwarm
    from aswarm.conversations import Conversation, Stored
    from aswarm.conversations._base import SQLStore
    from aswarm.extensions import EventStream
    from aswarm.mcp import MCPServer

ID = "conversation"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The arguments of each run of a chat. `deltas`: if False, a completion is shown when it is whole; calls are shown live.

    `prompts`: the MCP servers whose prompts the user may send.
    """

    deltas: bool
    debug: bool
    keywords: Mapping[str, Any]
    prompts: Sequence[MCPServer] = ()


class _Open(NamedTuple):
    """An open store: its file or URL, and the conversation of the chat in it."""

    place: str
    store: SQLStore
    conversation: Conversation


class KeptChat:
    """The runs of a session, and its store; in memory until `open`, `save` or `load` opens a store. Call `close` at the end."""

    def __init__(self, session: Session, swarm: AsyncSwarm, options: ChatOptions) -> None:
        self._session = session
        self._swarm = swarm
        self._options = options
        self.prompts = options.prompts
        self._stack = AsyncExitStack()
        self._open: _Open | None = None  # None: the conversation is in memory
        self._known = session.history
        self._unset: Mapping[str, Any] | None = None  # context variables for the next run

    async def open(self, place: str, conversation_id: str) -> str:
        """Open the store. Continue its conversation with this id, or start a new one. Returns a text for the user.

        The next run sets the context variables of the chat in a conversation that continues.
        """
        opened = await self._enter(place, conversation_id)
        stored = await opened.conversation.load()
        self._use(opened)
        if not stored.revision:
            return ""
        text = self._continue_with(stored)
        self._unset = self._session.starting_context
        self._session.context = {**stored.context_variables, **(self._unset or {})}
        return text

    async def close(self) -> None:
        """Close the store."""
        await self._stack.aclose()

    async def _enter(self, place: str, conversation_id: str) -> _Open:
        store = store_at(place)
        opened = _Open(place, store, self._conversation_in(store, conversation_id))
        await self._stack.enter_async_context(store)
        return opened

    def _conversation_in(self, store: SQLStore, conversation_id: str) -> Conversation:
        agent, context = self._session.starting_agent, self._session.starting_context
        return store.conversation(conversation_id, self._swarm, agent=agent, context_variables=context)

    def _use(self, opened: _Open) -> None:
        self._open = opened
        self._session.has_store = True

    def _continue_with(self, stored: Stored) -> str:
        text = self._session.load(stored)
        self._known = self._session.history
        return text

    # --- /save and /load ---

    async def replaced_by_save(self, name: str) -> int:
        """Return how many messages `save` would replace. If the messages are the start of this conversation, none is lost."""
        history = self._session.history
        if not history:
            return 0
        if self._open is None:
            async with store_at(name) as store:
                other = await store.load(ID)
        else:
            other = await self._open.store.load(name)
        messages = [] if other is None else other.messages
        return 0 if history[: len(messages)] == messages else len(messages)

    async def save(self, name: str) -> str:
        """Save to a file, and continue in it. With a store, copy to this id. Returns a text for the user."""
        session, opened = self._session, self._open
        messages = counted(len(session.history), "message")
        if opened is not None and name in (opened.conversation.id, opened.place):
            return f"This conversation is already in {opened.place} as {opened.conversation.id!r}, and each run is saved there."
        if not session.history:
            return "There are no messages to save."
        if opened is None:
            opened = await self._enter(name, ID)
            await self._write(opened.conversation)
            self._use(opened)
            return f"{messages} saved. The chat continues in {name}."
        own = opened.conversation.id
        await opened.store.delete(name)
        await opened.store.fork(own, name)
        return f"{messages} saved as {name!r}. The chat continues as {own!r}."

    async def load(self, name: str) -> str:
        """Continue the conversation in a file or, with a store, with this id. Returns a text for the user."""
        opened = self._open
        if opened is None:
            _check_file(name)
            opened = await self._enter(name, ID)
        else:
            opened = opened._replace(conversation=self._conversation_in(opened.store, name))
        stored = await opened.conversation.load()
        if stored.revision:
            self._use(opened)
            return self._continue_with(stored)
        if self._open is not None:
            return f"{opened.place} has no conversation with the id {name!r}."
        await self.close()
        raise ConfigurationError(
            f"{name}: the store has no conversation {ID!r}; name one with --store and --conversation"
        )

    # --- runs ---

    async def stream(self, start: StartRun) -> AbstractAsyncContextManager[EventStream]:
        """Return the stream of the run."""
        options = self._options
        arguments: dict[str, Any] = {"deltas": options.deltas, "debug": options.debug, **options.keywords}
        if self._open is None:
            return self._swarm.stream(start.agent, start.messages, start.context, resume=start.resume, **arguments)
        conversation, (context, self._unset) = self._open.conversation, (self._unset, None)
        if start.new_message is not None:
            message: Message = {"role": "user", "content": start.new_message}
            return conversation.stream([message], context, agent=start.agent, **arguments)
        if start.messages != self._known:  # without a stopped answer
            self._session.history = start.messages
            await self.keep()
        return conversation.resume_stream(start.resume or True, context, agent=start.agent, **arguments)

    async def end_run(self) -> None:
        """After a run, load the conversation from the store. Then write the changes of the session."""
        if self._open is None:
            return
        session = self._session
        history, is_stopped = session.history, session.is_stopped
        stored = await self._open.conversation.load()
        session.agent = session.agents.get(stored.agent, session.agent)
        session.context = stored.context_variables
        session.history = self._known = stored.messages
        if session.failed_message is not None and len(history) < len(stored.messages):  # the message was removed
            session.history = stored.messages[: len(history)]
        elif is_stopped:
            session.history = [*stored.messages, history[-1]]
        await self.keep()

    async def keep(self) -> None:
        """Write the history of the session to the store, if it has changed."""
        if self._open is not None and self._session.history is not self._known:
            await self._write(self._open.conversation)

    async def _write(self, conversation: Conversation) -> None:
        session = self._session
        await conversation.replace(session.history, agent=session.agent, context_variables=session.context)
        self._known = session.history


def store_at(place: str) -> SQLStore:
    """Return the store in this file or at this URL. Open it with `async with`."""
    from aswarm.conversations import PostgresStore, SQLiteStore  # noqa: PLC0415 - slow, and few chats need it

    return PostgresStore(place) if "://" in place else SQLiteStore(_expanded(place))


def _check_file(place: str) -> None:
    """Raise ConfigurationError if there is no such file. So `/load` never creates a file."""
    path = _expanded(place)
    if "://" not in place and not path.is_file():  # a pipe or a device may have no end
        reason = "not a regular file" if path.exists() else "No such file or directory"
        raise ConfigurationError(f"{place}: {reason}")


def _expanded(file: str) -> Path:
    try:
        return Path(file).expanduser()
    except RuntimeError as error:  # "~name" with a name that is not a user
        raise ConfigurationError(f"{file}: {error}") from error
