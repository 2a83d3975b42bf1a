"""The transactions of a store as SQL, without a database: generators that yield statements and get rows.

SQLite and PostgreSQL run the same ones. A statement has `?` for its parameters. A driver sends back the rows of a query,
and for any other statement one row with the number of rows that it has changed. `FOR UPDATE` is for PostgreSQL; SQLite
locks the whole file.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from aswarm._errors import ConfigurationError
from aswarm._messages import Message

from ._records import calls_in, calls_text, context_text, message_text
from ._store import Change, Conflict, ConversationSummary, Stored

T = TypeVar("T")
Statement: TypeAlias = tuple[str, Sequence[object]]
Transaction: TypeAlias = Generator[Statement, Any, T]

FORMAT = 1
# `aswarm_state` has the agent and the context variables after the first `position` messages, where they have changed.
TABLES = """
CREATE TABLE aswarm_conversation (
    id {text} PRIMARY KEY, revision TEXT NOT NULL, agent TEXT NOT NULL, length INTEGER NOT NULL, stop TEXT,
    unknown_calls TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, updated DOUBLE PRECISION NOT NULL
);
CREATE INDEX aswarm_conversation_updated ON aswarm_conversation (updated);
CREATE TABLE aswarm_message (
    conversation {text} NOT NULL REFERENCES aswarm_conversation ON DELETE CASCADE,
    position INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY (conversation, position)
);
CREATE TABLE aswarm_state (
    conversation {text} NOT NULL REFERENCES aswarm_conversation ON DELETE CASCADE,
    position INTEGER NOT NULL, agent TEXT NOT NULL, context TEXT NOT NULL, PRIMARY KEY (conversation, position)
)
"""

_LAST, _BEFORE_SURROGATES, _AFTER_SURROGATES = "\U0010ffff", "\ud7ff", "\ue000"


def load(conversation_id: str, until: int | None = None) -> Transaction[Stored | None]:
    """The conversation, or None."""
    rows = yield (
        "SELECT revision, length, stop, unknown_calls, created, updated FROM aswarm_conversation WHERE id = ?",
        (conversation_id,),
    )
    if not rows:
        return None
    revision, length, stop, unknown_calls, created, updated = rows[0]
    end = length if until is None else min(until, length)
    is_whole = end == length
    messages = yield from _messages(conversation_id, end)
    agent, context = yield from _state(conversation_id, end)
    return Stored(
        conversation_id,
        revision,
        messages,
        agent,
        json.loads(context),
        stop if is_whole else None,
        calls_in(unknown_calls) if is_whole else [],
        created,
        updated,
    )


def _messages(conversation_id: str, end: int) -> Transaction[list[Message]]:
    rows = yield (
        "SELECT data FROM aswarm_message WHERE conversation = ? AND position < ? ORDER BY position",
        (conversation_id, end),
    )
    return [json.loads(data) for (data,) in rows]


def _state(conversation_id: str, end: int) -> Transaction[tuple[str, str]]:
    rows = yield (
        "SELECT agent, context FROM aswarm_state WHERE conversation = ? AND position <= ? ORDER BY position DESC LIMIT 1",
        (conversation_id, end),
    )
    return rows[0] if rows else ("", "{}")


def write(conversation_id: str, change: Change, now: float) -> Transaction[None]:
    """Write a change. Raises Conflict."""
    if not change.base:
        yield (
            "INSERT INTO aswarm_conversation VALUES (?, ?, '', 0, NULL, '[]', ?, ?) ON CONFLICT (id) DO NOTHING",
            (conversation_id, change.revision, now, now),
        )
    rows = yield (
        "SELECT revision, length FROM aswarm_conversation WHERE id = ? FOR UPDATE",
        (conversation_id,),
    )
    # A write that is repeated finds its own revision; what it writes is then there already, and is written again.
    if not rows or rows[0][0] not in ((change.revision, change.base) if change.base else (change.revision,)):
        raise Conflict(conversation_id, (yield from load(conversation_id)))
    keep = min(change.keep, rows[0][1])
    yield from _write_messages(conversation_id, keep, change.messages)
    yield from _write_state(conversation_id, keep, change)
    yield (
        "UPDATE aswarm_conversation SET revision = ?, agent = ?, length = ?, stop = ?, unknown_calls = ?, updated = ? WHERE id = ?",
        (
            change.revision,
            change.agent,
            keep + len(change.messages),
            change.stop,
            calls_text(change.unknown_calls),
            now,
            conversation_id,
        ),
    )


def _write_messages(conversation_id: str, keep: int, messages: Sequence[Message]) -> Transaction[None]:
    yield "DELETE FROM aswarm_message WHERE conversation = ? AND position >= ?", (conversation_id, keep)
    for position, message in enumerate(messages, start=keep):
        yield "INSERT INTO aswarm_message VALUES (?, ?, ?)", (conversation_id, position, message_text(message))


def _write_state(conversation_id: str, keep: int, change: Change) -> Transaction[None]:
    # The first write begins a conversation: its state is that from before the first message.
    position = keep + len(change.messages) if change.base else 0
    yield "DELETE FROM aswarm_state WHERE conversation = ? AND position > ?", (conversation_id, keep)
    state = (change.agent, context_text(change.context_variables))
    if (yield from _state(conversation_id, position)) != state or position == 0:
        yield "DELETE FROM aswarm_state WHERE conversation = ? AND position = ?", (conversation_id, position)
        yield "INSERT INTO aswarm_state VALUES (?, ?, ?, ?)", (conversation_id, position, *state)


def fork(conversation_id: str, new_id: str, until: int | None, revision: str, now: float) -> Transaction[None]:
    """Copy a conversation. Raises Conflict, or ConfigurationError for an unknown id."""
    yield "SELECT id FROM aswarm_conversation WHERE id = ? FOR UPDATE", (conversation_id,)
    source = yield from load(conversation_id, until)
    if source is None:
        raise ConfigurationError(f"there is no conversation {conversation_id!r} to fork")
    end = len(source.messages)
    inserted = yield (
        "INSERT INTO aswarm_conversation VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        (new_id, revision, source.agent, end, source.stop, calls_text(source.unknown_calls), now, now),
    )
    if not inserted[0][0]:
        raise Conflict(new_id, (yield from load(new_id)))
    yield (
        "INSERT INTO aswarm_message SELECT ?, position, data FROM aswarm_message WHERE conversation = ? AND position < ?",
        (new_id, conversation_id, end),
    )
    yield (
        "INSERT INTO aswarm_state SELECT ?, position, agent, context FROM aswarm_state WHERE conversation = ? AND position <= ?",
        (new_id, conversation_id, end),
    )


def summaries(prefix: str, limit: int, before: float | None) -> Transaction[list[ConversationSummary]]:
    """Conversations, the last updated first."""
    limits = {"id >= ?": prefix or None, "id < ?": _after(prefix), "updated < ?": before}
    used = {condition: value for condition, value in limits.items() if value is not None}
    where = f"WHERE {' AND '.join(used)}" if used else ""
    rows = yield (
        f"""SELECT id, revision, agent, length, stop, created, updated FROM aswarm_conversation
        {where} ORDER BY updated DESC, id LIMIT ?""",  # noqa: S608 - there is no data in it
        (*used.values(), limit),
    )
    return [ConversationSummary(*row) for row in rows]


def _after(prefix: str) -> str | None:
    """The first text, by code points, after all that begin with the prefix; None if there is none."""
    kept = prefix.rstrip(_LAST)
    if not kept:
        return None
    # Halves of surrogate pairs are no characters, and no database takes one.
    following = _AFTER_SURROGATES if kept[-1] == _BEFORE_SURROGATES else chr(ord(kept[-1]) + 1)
    return kept[:-1] + following


def delete(conversation_id: str) -> Transaction[bool]:
    """Delete a conversation."""
    rows = yield "DELETE FROM aswarm_conversation WHERE id = ?", (conversation_id,)
    return bool(rows[0][0])


def purge(before: float) -> Transaction[int]:
    """Delete the conversations that were last updated before this time."""
    rows = yield "DELETE FROM aswarm_conversation WHERE updated < ?", (before,)
    return int(rows[0][0])
