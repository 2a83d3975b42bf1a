"""Conversations that are kept, in memory, in a SQLite file or in PostgreSQL; and what an agent is sent of a long history.

    async with SQLiteStore("chats.sqlite") as store, AsyncSwarm() as swarm:
        chat = store.conversation("user-7", swarm, agent=triage)
        response = await chat.run("Where is my order?")
        async with chat.stream("And when does it come?") as run:
            async for event in run:
                ...
        await chat.resume({"call_1": True})

A `Conversation` is a caller of `run()` and `stream()`; the loop does not know of it. A `Store` keeps the messages, the name
of the active agent, the context variables (JSON) and a revision. This room decides what is written and when, who may
write, and what a later run begins with. It never decides how a run goes, and never changes a message. A database is
imported once a store is opened. The functions for `Agent(history=...)`, such as `last(20)`, do no I/O.

| the process died | what the store has |
|---|---|
| before a function began | its call, open: `resume()` runs it, a new message closes it |
| while a function ran | its call, answered "cancelled; its outcome is unknown" |
| after a function had ended | its result |
"""

from aswarm import _public
from aswarm._blocks import MessageBlock

from ._conversation import Conversation
from ._history import HistoryFunction, last, own_turns, since_handoff, without_tool_results
from ._memory import MemoryStore
from ._postgres import PostgresStore
from ._recorded_run import ConversationStream
from ._sqlite import SQLiteStore
from ._store import Change, Conflict, ConversationSummary, Store, Stored

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
    "SQLiteStore",
    "Store",
    "Stored",
    "last",
    "own_turns",
    "since_handoff",
    "without_tool_results",
]

_public.publish(globals())
