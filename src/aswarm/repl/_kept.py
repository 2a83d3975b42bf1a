"""Executes the runs of a chat. Its conversation is in memory, or in a store.

With a store, `Conversation` executes the runs and writes them. Other changes of the history (a reset, a removed message, a
stopped answer) are written after the line of the user that caused them. `/save FILE` and `/load FILE` open a store for a chat in
memory. Its conversation has the id `ID`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aswarm._blocking.caller import in_callers_thread
from aswarm._values.errors import ConfigurationError
from aswarm._values.events import CallWaiting
from aswarm._values.text import counted

from ._session import CopyTo, StartRun, StoreAction

if TYPE_CHECKING:
    from aswarm._swarm import AsyncSwarm
    from aswarm.conversations import Conversation, Stored
    from aswarm.conversations._base import SQLStore
    from aswarm.extensions import EventStream

    from ._chat import Chat

ID = "conversation"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """The arguments of each run of a chat. `deltas`: if False, a completion is shown when it is whole; calls are shown live."""

    deltas: bool
    debug: bool
    keywords: Mapping[str, Any]


class _Open(NamedTuple):
    """An open store: its file or URL, and the conversation of the chat in it."""

    place: str
    store: SQLStore
    conversation: Conversation


class KeptChat:
    """A chat, and its conversation in a store; in memory until `open`, `/save` or `/load` opens one. Call `close` at the end."""

    def __init__(self, chat: Chat, swarm: AsyncSwarm, options: ChatOptions) -> None:
        self._chat = chat
        self._session = chat.session
        self._swarm = swarm
        self._options = options
        self._stack = AsyncExitStack()
        self._open: _Open | None = None  # None: the conversation is in memory
        self._known = self._session.history

    async def open(self, place: str, conversation_id: str) -> None:
        """Open the store. Continue its conversation with this id, or start a new one."""
        opened = await self._enter(place, conversation_id)
        stored = await opened.conversation.load()
        self._use(opened)
        if stored.revision:
            self._chat.display.show_text(self._continue_with(stored))

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

    async def perform(self, action: StoreAction) -> None:
        """Save the conversation or continue another one, and show a text about it. Raises the errors of the store."""
        opened, name = self._open, action.name
        if isinstance(action, CopyTo):
            text = await (self._save(action) if opened is None else self._copy(action, opened))
        else:
            text = await (self._load_file(name) if opened is None else self._load(name, opened))
        self._chat.display.show_text(text)

    async def _save(self, copy: CopyTo) -> str:
        history = self._session.history
        if not history:
            return "There are no messages to save."
        opened = await self._enter(copy.name, ID)
        other = (await opened.conversation.load()).messages
        if not (copy.replaces or _is_start(other, history)):
            await self.close()
            return self._chat.question(copy, len(other))
        await self._write(opened.conversation)
        self._use(opened)
        return f"{counted(len(history), 'message')} saved. The chat continues in {copy.name}."

    async def _load_file(self, file: str) -> str:
        _check_file(file)
        opened = await self._enter(file, ID)
        stored = await opened.conversation.load()
        if not stored.revision:
            await self.close()
            raise ConfigurationError(
                f"{file}: the store has no conversation {ID!r}; name one with --store and --conversation"
            )
        self._use(opened)
        return self._continue_with(stored)

    async def _copy(self, copy: CopyTo, opened: _Open) -> str:
        own = await opened.conversation.load()
        if copy.name in (own.id, opened.place):
            return f"This conversation is already in {opened.place} as {own.id!r}, and each run is saved there."
        if not own.messages:
            return "There are no messages to save."
        other = await opened.store.load(copy.name)
        if other is not None:
            if not (copy.replaces or _is_start(other.messages, own.messages)):
                return self._chat.question(copy, len(other.messages))
            await opened.store.delete(copy.name)
        await opened.store.fork(own.id, copy.name)
        return f"{counted(len(own.messages), 'message')} saved as {copy.name!r}. The chat continues as {own.id!r}."

    async def _load(self, conversation_id: str, opened: _Open) -> str:
        stored = await opened.store.load(conversation_id)
        if stored is None:
            return f"{opened.place} has no conversation with the id {conversation_id!r}."
        self._use(opened._replace(conversation=self._conversation_in(opened.store, conversation_id)))
        return self._continue_with(stored)

    # --- runs ---

    async def follow(self, start: StartRun) -> None:
        """Execute the run, and show its events."""
        async with self._stream(start) as run:
            self._chat.run = run
            async for event in run:
                if not isinstance(event, CallWaiting):  # the chat asks about these calls
                    await in_callers_thread(partial(self._chat.display.show_event, event))

    def _stream(self, start: StartRun) -> AbstractAsyncContextManager[EventStream]:
        options = self._options
        arguments: dict[str, Any] = {"deltas": options.deltas, "debug": options.debug, **options.keywords}
        if self._open is None:
            return self._swarm.stream(start.agent, start.messages, start.context, resume=start.resume, **arguments)
        conversation = self._open.conversation
        if start.new_message is None:
            return conversation.resume_stream(start.resume or True, agent=start.agent, **arguments)
        return conversation.stream(start.new_message, agent=start.agent, **arguments)

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


def _is_start(other: list[Any], own: list[Any]) -> bool:
    """Return whether `other` is the start of `own`. Then nothing is lost if `own` replaces it."""
    return own[: len(other)] == other


def _expanded(file: str) -> Path:
    try:
        return Path(file).expanduser()
    except RuntimeError as error:  # "~name" with a name that is not a user
        raise ConfigurationError(f"{file}: {error}") from error
