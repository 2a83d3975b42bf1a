"""Stops a run that waits for an answer: no process executes it, so that its end is written again, here.

First the calls are closed in the stored conversation, as a new message would close them, so that no answer fits any more. Then the
run gets its other end in the log. A failure in between can be repeated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from aswarm._messages import Message
from aswarm.conversations import Change, Conflict, Store
from aswarm.conversations._recorded_run import closed
from aswarm.conversations._recorder import common_messages
from aswarm.serve._driving import conversation_key
from aswarm.serve._entries import Entry, as_json
from aswarm.serve._entry_maker import EntryMaker
from aswarm.serve._log import LogRow
from aswarm.serve._log_access import LogAccess
from aswarm.serve._runs import RunRecord

from ._log import DurableLog


async def stop_waiting(log: DurableLog, access: LogAccess, store: Store, record: RunRecord, reason: str) -> None:
    """Stop a run that waits. Nothing happens if it has got its answer."""
    closing: Sequence[Message] = ()
    while await access.call(log.waits, record.id):
        try:
            closing = await _close_calls(store, record)
        except Conflict:  # an answer, or another program, has changed the conversation
            continue
        (row, *_), _ = await access.call(log.entry_rows, record.id, record.last - 1)
        await access.call(log.stop_waiting, record.user, record.id, reason, _stopped(row, reason, closing))


async def _close_calls(store: Store, record: RunRecord) -> Sequence[Message]:
    """Answer the open calls of the conversation. Returns the messages that say so. Raises Conflict."""
    key = None if record.conversation is None else conversation_key(record.user, record.conversation)
    if key is None or (stored := await store.load(key)) is None:
        return ()
    history = closed(stored.messages, stored)
    keep = common_messages(stored.messages, history)
    if closing := history[keep:]:
        change = Change(
            stored.revision, os.urandom(8).hex(), keep, closing, stored.agent, stored.context_variables, "cancelled",
            stored.unknown_calls,
        )  # fmt: skip
        await store.write(key, change)
    return closing


def _stopped(row: LogRow, reason: str, closing: Sequence[Message]) -> LogRow:
    """The last row of the log of a run, with another last entry."""
    *lines, end = row.data.split(b"\n")
    was = Entry.from_dict(json.loads(end))
    (stopped,) = EntryMaker().stopped(reason)
    messages = [*was.response["messages"], *closing]
    response = {**was.response, "messages": messages, "stop": "cancelled", "waiting": []}
    last = Entry(was.seq, was.at, stopped.type, {**stopped.fields, "response": response})
    return LogRow(row.first, row.last, b"\n".join([*lines, as_json(last.to_dict())]))
