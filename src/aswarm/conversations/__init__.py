"""Conversations in a store (memory, a SQLite file, PostgreSQL), and functions that shorten a long history for an agent.

    async with SQLiteStore("chats.sqlite") as store, AsyncSwarm() as swarm:
        chat = store.conversation("user-7", swarm, agent=triage)
        response = await chat.run("Where is my order?")
        async with chat.stream("And when does it come?") as run:
            async for event in run:
                ...
        await chat.resume({"call_1": True})

A `Conversation` calls `run()` and `stream()`, and the loop knows nothing about conversations. A `Store` keeps the messages, the
name of the active agent, the context variables (JSON) and a revision. This package decides what to write and when, which run
may write, and when the next run starts. It never changes a message. Opening a store imports the driver of its database. The
functions for `Agent(history=...)`, such as `last(20)`, do no I/O.

| the process died | the store has |
|---|---|
| before a function started | the open call: `resume()` runs it if it needs no approval, a new message closes it |
| while a function was running | the call, answered "cancelled; its outcome is unknown" |
| after a function finished | the result of the function |
"""

from aswarm._log.stored import Change, Conflict, ConversationSummary, Stored
from aswarm._values import public_names as _public
from aswarm._values.messages import MessageBlock

from ._base import MemoryStore, PostgresStore, SQLiteStore, SQLStore
from ._conversation import Conversation, ConversationStream
from ._history import HistoryFunction, last, own_turns, since_handoff, without_tool_results
from ._store import Store

__all__ = [
    "Change",
    "Conflict",
    "Conversation",
    "ConversationStream",
    "ConversationSummary",
    "HistoryFunction",
    "MemoryStore",
    "MessageBlock",
    "PostgresStore",
    "SQLStore",
    "SQLiteStore",
    "Store",
    "Stored",
    "last",
    "own_turns",
    "since_handoff",
    "without_tool_results",
]

_public.publish(globals())
