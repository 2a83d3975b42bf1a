"""`SQLResults`: long results in a database. They are texts of a conversation, or of a run without one, in parts.

The rows refer to their owner. So the statement that deletes the owner deletes them, and nothing is stored for a deleted owner.
"""
# ruff: noqa: S608 - statements contain only names of this module; all data is passed as parameters

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import chain

from aswarm._runtime import clocks
from aswarm._sql.database import Database
from aswarm._sql.transactions import Transaction, chunks, marks
from aswarm._values.errors import RunError
from aswarm._values.messages import WAITING, Message, normalize

ADDED_IN_FORMAT_6 = (
    """CREATE TABLE aswarm_result (
        conversation {text} REFERENCES aswarm_conversation ON DELETE CASCADE,
        run {text} REFERENCES aswarm_run (id) ON DELETE CASCADE,
        handle {text} NOT NULL, part INTEGER NOT NULL, data {blob} NOT NULL, created DOUBLE PRECISION NOT NULL,
        UNIQUE (conversation, handle, part), UNIQUE (run, handle, part)
    )""",
)
# A journal has runs without conversations. An item that continues another item looks for the texts by their handles.
TABLES_OF_RUNS = (
    """CREATE TABLE aswarm_result (
        run {text} NOT NULL REFERENCES aswarm_run (id) ON DELETE CASCADE,
        handle {text} NOT NULL, part INTEGER NOT NULL, data {blob} NOT NULL, created DOUBLE PRECISION NOT NULL,
        UNIQUE (run, handle, part)
    )""",
    "CREATE INDEX aswarm_result_handle ON aswarm_result (handle)",
)
_ROWS_AT_ONCE = 16  # of at most 256 kB each
_HANDLES_AT_ONCE = 500
_FIRST_LINE = re.compile(r"[\"']\[result (r[0-9a-f]{16}): ")  # in the `repr` of a message


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


def copy_to_run(run_id: str, messages: object) -> Transaction[None]:
    """Copy the texts of other runs whose first lines are in the messages of a new run.

    A text of a user or a model may repeat the handle of another run, so only the results of functions count.
    """
    if not (yield "SELECT 1 FROM aswarm_result LIMIT 1", ()):
        return
    shown = str([message if message["role"] == "tool" else message.get(WAITING) for message in normalize(messages)])
    for some in chunks(sorted(set(_FIRST_LINE.findall(shown))), _HANDLES_AT_ONCE):
        yield (
            f"""INSERT INTO aswarm_result (run, handle, part, data, created)
            SELECT ?, handle, part, data, created FROM aswarm_result WHERE handle IN ({marks(some)}) ON CONFLICT DO NOTHING""",
            (run_id, *some),
        )


def _column(owner: str) -> tuple[str, str]:
    kind, _, id_ = owner.partition(":")
    return kind, id_


class SQLResults:
    """The long results in a database, see `ResultStore`. `owner`: replaces the owner of each call."""

    def __init__(self, database: Database, owner: str | None = None) -> None:
        self._database = database
        self._owner = owner

    async def put(self, owner: str, handle: str, parts: Sequence[str], /) -> None:
        # The history with the handle is committed later, and a later commit is never on the disk without the earlier ones.
        await self._database.run(put, self._owner or owner, handle, parts, clocks.time())

    async def read(self, owner: str, handle: str, part: int, /) -> str | None:
        return await self._database.submit(partial(read, self._owner or owner, handle, part), reads_only=True)

    async def handles(self, owner: str, /) -> list[str]:
        return await self._database.submit(partial(handles, self._owner or owner), reads_only=True)
