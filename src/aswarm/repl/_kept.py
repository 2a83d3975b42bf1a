"""Executes the runs of a chat. Its conversation is in memory or in a store.

With a store, `Conversation` executes the runs and writes them. Other changes of the history (a reset, a removed message, a
stopped answer) are written after the line of the user that caused them. `/save FILE` and `--save FILE` write the conversation
to a SQLite store, with the id `ID`. So `--store FILE` can continue it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aswarm._blocking.caller import in_callers_thread
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import counted

from ._session import CopyTo, StartRun, StoreAction

if TYPE_CHECKING:
    from aswarm._swarm import AsyncSwarm
    from aswarm.conversations import Conversation, Store, Stored
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


class KeptChat:
    """A chat, and its conversation in a store; in memory if `store` is None."""

    def __init__(
        self,
        chat: Chat,
        swarm: AsyncSwarm,
        options: ChatOptions,
        store: SQLStore | None = None,
        conversation_id: str = ID,
    ) -> None:
        self._chat = chat
        self._session = chat.session
        self._swarm = swarm
        self._options = options
        self._store = store
        self._session.has_store = store is not None
        self._conversation = self._named(conversation_id)
        self._known = self._session.history

    def _named(self, conversation_id: str) -> Conversation | None:
        if self._store is None:
            return None
        agent, context = self._session.starting_agent, self._session.starting_context
        return self._store.conversation(conversation_id, self._swarm, agent=agent, context_variables=context)

    async def start(self) -> None:
        """Load the conversation from the store, if it exists, and continue it."""
        stored = None if self._conversation is None else await self._conversation.load()
        if stored is not None and stored.revision:
            self._chat.display.show_text(self._continue_with(stored))

    def _continue_with(self, stored: Stored) -> str:
        text = self._session.load(stored)
        self._known = self._session.history
        return text

    # --- other conversations: of the store, or in files ---

    async def perform(self, action: StoreAction) -> None:
        """Save a copy or load another conversation, and show a text about it. Raises the errors of the store."""
        text = await (self._copy(action) if isinstance(action, CopyTo) else self._load(action.name))
        self._chat.display.show_text(text)

    async def _load(self, name: str) -> str:
        if self._store is None:
            stored = await conversation_in(name)
            context = {**(self._session.starting_context or {}), **stored.context_variables}
            return self._continue_with(replace(stored, context_variables=context))
        other = await self._store.load(name)
        if other is None:
            return f"The store has no conversation {name!r}."
        self._conversation = self._named(name)
        return self._continue_with(other)

    async def _copy(self, copy: CopyTo) -> str:
        own, note = await self._own(copy.name)
        if copy.name == own.id:
            return f"This conversation is already in the store as {own.id!r}, and each run is saved there."
        if not own.messages:
            return "There are no messages to save."
        async with store_at(copy.name) if self._store is None else nullcontext(self._store) as store:
            conversation_id = copy.name if own.id else ID
            other = await store.load(conversation_id)
            if other is not None and not (copy.replaces or is_earlier(other, own)):
                return self._chat.question(copy, len(other.messages))
            await write_copy(store, conversation_id, own, other)
        return f"{counted(len(own.messages), 'message')} saved{note}"

    async def _own(self, name: str) -> tuple[Stored, str]:
        """Return the conversation to save under this name, and the end of the text for the user.

        If the chat has no store, the id of the conversation is empty.
        """
        if self._conversation is not None:
            own = await self._conversation.load()
            return own, f" as {name!r}. The conversation continues as {own.id!r}."
        from aswarm._log.texts import faults  # noqa: PLC0415 - as above
        from aswarm.conversations import Stored  # noqa: PLC0415 - slow, and few chats need it

        session = self._session
        left_out = [key for key, _ in faults(session.context)]
        context = {key: value for key, value in session.context.items() if key not in left_out}
        names = ", ".join(map(str, left_out))
        note = f", without the context variables that are not JSON: {names}." if names else "."
        return Stored("", messages=session.history, agent=session.agent.name, context_variables=context), note

    # --- runs ---

    async def follow(self, start: StartRun) -> None:
        """Execute the run, and show its events."""
        async with self._stream(start) as run:
            self._chat.run = run
            async for event in run:
                await in_callers_thread(partial(self._chat.display.show_event, event))

    def _stream(self, start: StartRun) -> AbstractAsyncContextManager[EventStream]:
        conversation, options = self._conversation, self._options
        arguments: dict[str, Any] = {"deltas": options.deltas, "debug": options.debug, **options.keywords}
        if conversation is None:
            return self._swarm.stream(start.agent, start.messages, start.context, resume=start.resume, **arguments)
        if start.new_message is None:
            return conversation.resume_stream(start.resume or True, agent=start.agent, **arguments)
        return conversation.stream(start.new_message, agent=start.agent, **arguments)

    async def end_run(self) -> None:
        """After a run, load the conversation from the store. Then write the changes of the session."""
        if self._conversation is None:
            return
        session = self._session
        history, is_stopped = session.history, session.is_stopped
        stored = await self._conversation.load()
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
        session = self._session
        if self._conversation is not None and session.history is not self._known:
            await self._conversation.replace(session.history, agent=session.agent, context_variables=session.context)
        self._known = session.history


def store_at(place: str) -> SQLStore:
    """Return the store in this file or at this URL. Open it with `async with`."""
    from aswarm.conversations import PostgresStore, SQLiteStore  # noqa: PLC0415 - slow, and few chats need it

    return PostgresStore(place) if "://" in place else SQLiteStore(_expanded(place))


async def conversation_in(file: str) -> Stored:
    """Return the conversation in a file. Raises ConfigurationError if there is none, and never creates a file."""
    path = _expanded(file)
    if not path.is_file():  # a pipe or a device may have no end
        reason = "not a regular file" if path.exists() else "No such file or directory"
        raise ConfigurationError(f"{file}: {reason}")
    async with store_at(file) as store:
        stored = await store.load(ID)
    if stored is None:
        raise ConfigurationError(
            f"{file}: the store has no conversation {ID!r}; name one with --store and --conversation"
        )
    return stored


def is_earlier(other: Stored, own: Stored) -> bool:
    """Return whether `other` is an earlier state of `own`. Then nothing is lost if `own` replaces it."""
    return own.messages[: len(other.messages)] == other.messages


async def write_copy(store: Store, conversation_id: str, own: Stored, other: Stored | None) -> None:
    """Write `own` under this id. It replaces `other`, the conversation that now has this id."""
    from aswarm.conversations import Change  # noqa: PLC0415 - as above

    base = "" if other is None else other.revision
    change = Change(
        base, os.urandom(8).hex(), 0, own.messages, own.agent, own.context_variables, own.stop, own.unknown_calls
    )
    await store.write(conversation_id, change)


def _expanded(file: str) -> Path:
    try:
        return Path(file).expanduser()
    except RuntimeError as error:  # "~name" with a name that is not a user
        raise ConfigurationError(f"{file}: {error}") from error
