"""The transactions of long results: texts of a conversation, or of a run without one, in parts.

The rows refer to their owner. So the statement that deletes the owner deletes them, and nothing is stored for a deleted owner.
"""
# ruff: noqa: S608 - statements contain only names of this module; all data is passed as parameters

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from aswarm._sql.transactions import Transaction, chunks, marks
from aswarm._values.errors import RunError
from aswarm._values.messages import Message

ADDED_IN_FORMAT_6 = (
    """CREATE TABLE aswarm_result (
        conversation {text} REFERENCES aswarm_conversation ON DELETE CASCADE,
        run {text} REFERENCES aswarm_run (id) ON DELETE CASCADE,
        handle {text} NOT NULL, part INTEGER NOT NULL, data {blob} NOT NULL, created DOUBLE PRECISION NOT NULL,
        UNIQUE (conversation, handle, part), UNIQUE (run, handle, part)
    )""",
)
_ROWS_AT_ONCE = 16  # of at most 256 kB each
_HANDLES_AT_ONCE = 500


def put(owner: str, handle: str, parts: Sequence[str], now: float) -> Transaction[None]:
    """Insert a text. A text that the owner already has stays. Raises RunError if the owner is not in this database."""
    kind, id_ = _column(owner)
    if not (yield f"SELECT 1 FROM aswarm_{kind} WHERE id = ? FOR SHARE", (id_,)):
        raise RunError(
            f"a long result cannot be kept, because the {kind} {id_!r} was deleted, or is not in the database of these results; an "
            "included store has only the results of its own conversations and runs"
        )
    rows = [(id_, handle, number, part.encode(), now) for number, part in enumerate(parts)]
    for some in chunks(rows, _ROWS_AT_ONCE):
        values = ", ".join(["(?, ?, ?, ?, ?)"] * len(some))
        insert = (
            f"INSERT INTO aswarm_result ({kind}, handle, part, data, created) VALUES {values} ON CONFLICT DO NOTHING"
        )
        yield insert, list(chain.from_iterable(some))


def read(owner: str, handle: str, part: int) -> Transaction[str | None]:
    """Return a part of a text, or None."""
    kind, id_ = _column(owner)
    statement = f"SELECT data FROM aswarm_result WHERE {kind} = ? AND handle = ? AND part = ?"
    rows = yield statement, (id_, handle, part)
    return bytes(rows[0][0]).decode() if rows else None


def handles(owner: str) -> Transaction[list[str]]:
    """Return the handles of an owner, the newest first."""
    kind, id_ = _column(owner)
    rows = yield f"SELECT handle FROM aswarm_result WHERE {kind} = ? AND part = 0 ORDER BY created DESC, handle", (id_,)
    return [handle for (handle,) in rows]


def copy(conversation_id: str, new_id: str, messages: Sequence[Message]) -> Transaction[None]:
    """Copy the texts whose handles are in the messages of the new conversation, which is a fork of the other."""
    kept = yield from handles(f"conversation:{conversation_id}")
    shown = set(re.findall("r[0-9a-f]{16}", str(messages))) if kept else ()
    for some in chunks([handle for handle in kept if handle in shown], _HANDLES_AT_ONCE):
        yield (
            f"""INSERT INTO aswarm_result (conversation, handle, part, data, created)
            SELECT ?, handle, part, data, created FROM aswarm_result WHERE conversation = ? AND handle IN ({marks(some)})""",
            (new_id, conversation_id, *some),
        )


def _column(owner: str) -> tuple[str, str]:
    kind, _, id_ = owner.partition(":")
    return kind, id_
