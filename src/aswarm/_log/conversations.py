"""The transactions of conversations, for both SQLite and PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from pydantic_core import from_json

from aswarm._sql.transactions import Schema, Statement, Transaction, chunks, marks
from aswarm._values.agent import UnknownCall
from aswarm._values.content import described
from aswarm._values.json import from_fields
from aswarm._values.messages import Message, text_of

from . import results
from .results import ADDED_IN_FORMAT_6
from .runs import ADDED_IN_FORMAT_4
from .runs import TABLES as RUN_TABLES
from .stored import Change, Conflict, ConversationSummary, Stored, UnknownConversation, encode, message_text

# A row of a conversation has its current agent and context, and the agent and context before its first message. If a write
# changes the agent or the context, the row of the last written message has the new values. So a fork can restore them.
TABLES = (
    """CREATE TABLE aswarm_conversation (
        id {text} PRIMARY KEY, revision TEXT NOT NULL, agent TEXT NOT NULL, context TEXT NOT NULL, length INTEGER NOT NULL,
        stop TEXT, unknown_calls TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, updated DOUBLE PRECISION NOT NULL,
        first_agent TEXT NOT NULL, first_context TEXT NOT NULL, title TEXT NOT NULL
    )""",
    "CREATE INDEX aswarm_conversation_updated ON aswarm_conversation (updated)",
    """CREATE TABLE aswarm_message (
        conversation {text} NOT NULL REFERENCES aswarm_conversation ON DELETE CASCADE,
        position INTEGER NOT NULL, data TEXT NOT NULL, agent TEXT, context TEXT, PRIMARY KEY (conversation, position)
    )""",
)


def _to_format_4() -> Transaction[None]:
    yield from ((statement, ()) for statement in ADDED_IN_FORMAT_4)


def _to_format_5() -> Transaction[None]:
    """Change nothing: `fold` reads a log without TurnFinished too. An older version must not read a log that needs this entry."""
    yield from ()


def _to_format_6() -> Transaction[None]:
    yield from ((statement, ()) for statement in ADDED_IN_FORMAT_6)


# The store also has the tables of the runs, so that one transaction can write to a run and to its conversation.
SCHEMA = Schema(
    0x61737763,
    6,
    "the store",
    (*TABLES, *RUN_TABLES, *ADDED_IN_FORMAT_4, *ADDED_IN_FORMAT_6),
    {3: _to_format_4, 4: _to_format_5, 5: _to_format_6},
)

_LAST, _BEFORE_SURROGATES, _AFTER_SURROGATES = "\U0010ffff", "\ud7ff", "\ue000"
_ROWS_AT_ONCE = 150  # of five values each: before 3.32, SQLite allowed only 999 values (https://sqlite.org/limits.html)
_OF_USER = '%"role":"user"%'
_OF_ASSISTANT = '%"role":"assistant"%'
_TITLE_LENGTH = 80
_CONVERSATIONS_AT_ONCE = 100  # that the first query of a search reads
_USUAL = 0.05  # a usual word is in more of the conversations than this
_MOST_VALUES = 800  # of one statement, see above


def load(conversation_id: str, until: int | None = None) -> Transaction[Stored | None]:
    """Return the conversation, or None."""
    rows = yield (
        """SELECT revision, length, stop, unknown_calls, created, updated, agent, context, first_agent, first_context
        FROM aswarm_conversation WHERE id = ?""",
        (conversation_id,),
    )
    if not rows:
        return None
    revision, length, stop, unknown_calls, created, updated, agent, context, first_agent, first_context = rows[0]
    end = length if until is None else min(until, length)
    is_whole = end == length
    rows = yield (
        """SELECT data, message.agent, message.context, revision FROM aswarm_conversation
        LEFT JOIN aswarm_message message ON conversation = id AND position < ? WHERE id = ? ORDER BY position""",
        (end, conversation_id),
    )
    if not rows or rows[0][3] != revision:  # on a server, another process may write between the two queries
        return (yield from load(conversation_id, until))
    if rows[0][0] is None:  # a conversation without messages has one row of the join
        rows = rows[1:]
    if not is_whole:
        states = [(row[1], row[2]) for row in rows if row[1] is not None]
        agent, context = states[-1] if states else (first_agent, first_context)
        agent = (yield from _agent_at(conversation_id, end)) or agent
    return Stored(
        conversation_id,
        revision,
        [json.loads(row[0]) for row in rows],
        agent,
        json.loads(context),
        stop if is_whole else None,
        [from_fields(UnknownCall, call) for call in json.loads(unknown_calls)] if is_whole else [],
        created,
        updated,
    )


def _agent_at(conversation_id: str, position: int) -> Transaction[str | None]:
    """Return the agent that wrote the next answer after this position, or None.

    A run writes its agent only at its end. Before its end, only the senders of its answers show the agent.
    """
    rows = yield (
        """SELECT data FROM aswarm_message WHERE conversation = ? AND position >= ? AND (data LIKE ? OR data LIKE ?)
        ORDER BY position LIMIT 1""",
        (conversation_id, position, _OF_ASSISTANT, _OF_USER),
    )
    return json.loads(rows[0][0]).get("sender") if rows else None  # a message of the user has no sender


def write(conversation_id: str, change: Change, now: float) -> Transaction[None]:
    """Write a change. Raises Conflict if the base has changed. A change that is already written has no effect."""
    state = (change.agent, encode(change.context_variables))
    end = (change.stop, encode(list(change.unknown_calls)))
    if not change.base:
        values = (conversation_id, change.revision, *state, len(change.messages), *end, now, now, *state, "")
        inserted = yield (
            f"INSERT INTO aswarm_conversation VALUES ({marks(values)}) ON CONFLICT (id) DO NOTHING",  # noqa: S608 - of placeholders
            values,
        )
        if inserted[0][0]:
            for insert in _inserts(conversation_id, 0, change.messages, None):
                yield insert
            return
    rows = yield (
        "SELECT revision, length, agent, context FROM aswarm_conversation WHERE id = ? FOR UPDATE",
        (conversation_id,),
    )
    revision, length, *stored_state = rows[0] if rows else (None, 0)
    if revision == change.revision:
        return
    if revision is None or revision != change.base:
        raise Conflict(conversation_id, (yield from load(conversation_id)))
    keep = min(change.keep, length)
    if keep < length:
        yield "DELETE FROM aswarm_message WHERE conversation = ? AND position >= ?", (conversation_id, keep)
    has_changed = keep < length or list(state) != stored_state
    for insert in _inserts(conversation_id, keep, change.messages, state if has_changed else None):
        yield insert
    if has_changed and not change.messages and keep:
        statement = "UPDATE aswarm_message SET agent = ?, context = ? WHERE conversation = ? AND position = ?"
        yield statement, (*state, conversation_id, keep - 1)
    elif has_changed and not change.messages:
        statement = "UPDATE aswarm_conversation SET first_agent = ?, first_context = ? WHERE id = ?"
        yield statement, (*state, conversation_id)
    yield (
        """UPDATE aswarm_conversation SET revision = ?, agent = ?, context = ?, length = ?, stop = ?, unknown_calls = ?,
        updated = ? WHERE id = ?""",
        (change.revision, *state, keep + len(change.messages), *end, now, conversation_id),
    )


def _inserts(
    conversation_id: str, start: int, messages: Sequence[Message], state: tuple[str, str] | None
) -> list[Statement]:
    """Return statements that insert messages at a position. `state`: the new agent and context, or None if they did not change."""
    values = [[conversation_id, at, message_text(message), None, None] for at, message in enumerate(messages, start)]
    if values and state is not None:
        values[-1][3:] = state
    statements: list[Statement] = []
    for rows in chunks(values, _ROWS_AT_ONCE):  # many rows in one statement, because each statement costs a round trip
        placeholders = ", ".join(["(?, ?, ?, ?, ?)"] * len(rows))
        statements.append((f"INSERT INTO aswarm_message VALUES {placeholders}", list(chain.from_iterable(rows))))  # noqa: S608 - as above
    return statements


def fork(conversation_id: str, new_id: str, until: int | None, revision: str, now: float) -> Transaction[None]:
    """Copy a conversation. Raises Conflict, or UnknownConversation."""
    yield "SELECT id FROM aswarm_conversation WHERE id = ? FOR UPDATE", (conversation_id,)
    source = yield from load(conversation_id, until)
    if source is None:
        raise UnknownConversation(f"there is no conversation {conversation_id!r} to fork")
    end = len(source.messages)
    inserted = yield (
        """INSERT INTO aswarm_conversation SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, first_agent, first_context, title
        FROM aswarm_conversation WHERE id = ? ON CONFLICT (id) DO NOTHING""",
        (
            new_id, revision, source.agent, encode(source.context_variables), end, source.stop,
            encode(source.unknown_calls), now, now, conversation_id,
        ),
    )  # fmt: skip
    if not inserted[0][0]:
        rows = yield "SELECT revision FROM aswarm_conversation WHERE id = ?", (new_id,)
        if rows == [(revision,)]:  # a retry: the first transaction was committed
            return
        raise Conflict(new_id, (yield from load(new_id)))
    yield (
        """INSERT INTO aswarm_message SELECT ?, position, data, agent, context FROM aswarm_message
        WHERE conversation = ? AND position < ?""",
        (new_id, conversation_id, end),
    )
    yield from results.copy(conversation_id, new_id, source.messages)


class Wanted(NamedTuple):
    """The wanted page of a list of conversations; see `Store.list`."""

    prefix: str
    limit: int
    before: float | None
    stop: str | None

    def where(self) -> tuple[str, list[object]]:
        """Return the WHERE of the conversations and its values."""
        return _where(_with_prefix("id", self.prefix) | {"updated < ?": self.before, "stop = ?": self.stop})

    def has(self, summary: ConversationSummary) -> bool:
        """Return whether a conversation with this prefix is wanted."""
        is_earlier = self.before is None or summary.updated < self.before
        return is_earlier and self.stop in (None, summary.stop)


def summaries(wanted: Wanted) -> Transaction[list[ConversationSummary]]:
    """Return conversations, the last updated first.

    A page ends with all conversations of one time, so that the next page, which starts before this time, leaves none out.
    """
    where, values = wanted.where()
    last = f"SELECT updated FROM aswarm_conversation {where} ORDER BY updated DESC LIMIT 1 OFFSET ?"  # noqa: S608 - as below
    oldest = yield last, (*values, wanted.limit - 1)
    # A query of its own for the ids, because SQLite would read the first message of each row before it sorts the rows.
    ids = f"SELECT id FROM aswarm_conversation {where} AND updated >= ?"  # noqa: S608 - there is no data in it
    since = oldest[0][0] if oldest else 0.0
    return (yield from _summaries(f"WHERE id IN ({ids}) ORDER BY updated DESC, id", (*values, since)))


def _where(conditions: Mapping[str, object]) -> tuple[str, list[object]]:
    """Return the WHERE of the conditions whose value is not None, and these values."""
    used = {condition: value for condition, value in conditions.items() if value is not None}
    return f"WHERE {' AND '.join(used) or 'TRUE'}", list(used.values())


def _with_prefix(column: str, prefix: str) -> dict[str, object]:
    return {f"{column} >= ?": prefix or None, f"{column} < ?": _after(prefix)}


def _summaries(clauses: str, values: Sequence[object]) -> Transaction[list[ConversationSummary]]:
    # `substr`, because the first user message may have a large image, and a title needs only its first characters.
    rows = yield (
        f"""SELECT id, revision, agent, length, stop, created, updated, title,
        (SELECT substr(data, 1, 1000) FROM aswarm_message WHERE conversation = id AND data LIKE ? ORDER BY position LIMIT 1)
        FROM aswarm_conversation {clauses}""",  # noqa: S608 - there is no data in it
        (_OF_USER, *values),
    )
    return [replace(ConversationSummary(*row[:8]), title=row[7] or _title_of(row[8])) for row in rows]


def _title_of(first: str | None) -> str:
    """Return a title from the JSON text of a message. The text may be truncated."""
    try:
        message = from_json(first or "{}", allow_partial="trailing-strings")
    except ValueError:  # the text was truncated inside of a surrogate pair, or has only half a pair
        return ""
    return " ".join(described(message.get("content") or "").split())[:_TITLE_LENGTH]


def search(wanted: Wanted, words: str) -> Transaction[list[ConversationSummary]]:
    """Return the last updated conversations with this text in the title, or in a message of the user or of an agent.

    There is no index: a trigram index has half the size of its texts, and SQLite before 3.42 keeps deleted texts in it. A usual
    word is in enough of the last updated conversations. For a rare word, one query reads all messages.
    """
    sought, matches, start, size = _folded(words), set[str](), 0, _CONVERSATIONS_AT_ONCE
    where, values = wanted.where()
    newest = f"SELECT id, title, updated FROM aswarm_conversation {where} ORDER BY updated DESC, id LIMIT ? OFFSET ?"  # noqa: S608 - as above
    # The matches of the last time are not complete before the rows have reached an earlier time.
    times, oldest = dict[str, float](), float("inf")
    while sum(times[match] > oldest for match in matches) < wanted.limit:
        rows = yield newest, (*values, size, start)
        times |= {row[0]: row[2] for row in rows}
        oldest = rows[-1][2] if rows else oldest
        ids = [row[0] for row in rows]
        some = (yield from _with_text(sought, f"WHERE conversation IN ({marks(ids)})", ids)) | _titled(sought, rows)
        matches |= some
        if len(ids) < size:
            break
        if len(some) < size * _USUAL:
            rows = yield f"SELECT id, title FROM aswarm_conversation {where} AND title <> ''", values  # noqa: S608 - as above
            texts = yield from _with_text(sought, *_where(_with_prefix("conversation", wanted.prefix)))
            matches = texts | _titled(sought, rows)
            break
        start, size = start + size, min(2 * size, _MOST_VALUES)
    listed: list[ConversationSummary] = []
    for part in chunks(sorted(matches), _MOST_VALUES):
        listed += yield from _summaries(f"WHERE id IN ({marks(part)})", part)
    fitting = sorted(filter(wanted.has, listed), key=lambda summary: (-summary.updated, summary.id))
    last = fitting[wanted.limit - 1].updated if wanted.limit <= len(fitting) else 0.0
    return [summary for summary in fitting if summary.updated >= last]


def _folded(text: str) -> str:
    """Return a text for comparison: in lower case, and with single spaces, as in a title."""
    return " ".join(text.lower().split())


def _titled(sought: str, rows: Sequence[tuple[Any, ...]]) -> set[str]:
    return {conversation for conversation, title, *_ in rows if sought in _folded(title)}


def _with_text(sought: str, where: str, values: Sequence[object]) -> Transaction[set[str]]:
    """Return the conversations with this text in a message of the user or of an agent."""
    # The query may return too many rows, because the name of a field or the data of an image may contain the text. So each
    # message is checked again.
    rows = yield (
        f"""SELECT conversation, data FROM aswarm_message {where}
        AND data COLLATE "C" ILIKE ? AND (data LIKE ? OR data LIKE ?)""",  # noqa: S608 - as above
        (*values, f"%{''.join(map(_pattern_of, sought))}%", _OF_USER, _OF_ASSISTANT),
    )
    messages = [(conversation, json.loads(data)) for conversation, data in rows]
    return {
        conversation
        for conversation, message in messages
        if message["role"] in ("user", "assistant") and sought in _folded(text_of(message.get("content")))
    }


def _pattern_of(character: str) -> str:
    """Return the LIKE pattern of a character in the ASCII JSON of a message: its JSON text, with `_` for each character that LIKE would treat differently."""
    escaped = re.sub(r"[\\%_]", "_", encode(character)[1:-1])
    if character == " ":
        return "%"  # any spaces, which JSON may escape
    if character.isascii() or character.upper() == character.lower():
        return escaped
    return "_u____" if len(escaped) == len("_u____") else "%"  # LIKE does not know the other case of an escape


def _after(prefix: str) -> str | None:
    """Return the smallest text that sorts after all texts with the prefix, by code points; None if there is no such text."""
    kept = prefix.rstrip(_LAST)
    if not kept:
        return None
    # The code points between these two are surrogates, which databases do not accept.
    following = _AFTER_SURROGATES if kept[-1] == _BEFORE_SURROGATES else chr(ord(kept[-1]) + 1)
    return kept[:-1] + following
