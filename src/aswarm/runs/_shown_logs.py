"""Recorded runs of a file in the database of `Runs`, for a page that shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from aswarm._log import runs as log
from aswarm._log.runs import LogRow
from aswarm._log.stored import RunRecord
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import EntryMaker
from aswarm._record.fold import fold
from aswarm._sql.transactions import Transaction
from aswarm._values.messages import Message
from aswarm.conversations import Change

from ._base import Runs
from ._prepared import conversation_key
from ._starting import ending_of

# The entries of runs, by the id of the run.
Logs: TypeAlias = Mapping[str, Sequence[Entry]]


def ended(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the entries of a run. A run without an end gets the end of a run whose process died."""
    if entries[-1].is_last:
        return entries
    last = entries[-1]
    (end,) = EntryMaker().stopped("process_died")
    return [*entries, replace(end, seq=last.seq + 1, at_ms=last.at_ms)]


async def show_logs(runs: Runs, user: str, logs: Logs) -> None:
    """Write the runs and their conversations to the database of `runs`, for a user."""
    conversations: dict[str, dict[str, Sequence[Entry]]] = defaultdict(dict)
    for run, entries in sorted(logs.items(), key=lambda item: item[1][0].at_ms):
        conversations[entries[0].fields["conversation"] or run][run] = entries
    for conversation, its_runs in conversations.items():
        await runs.store.write(conversation_key(user, conversation), _change(list(its_runs.values())))
        for run, entries in its_runs.items():
            await runs.store._database.run(_insert, run, user, conversation, entries)  # noqa: SLF001 - it writes what no run has written


def _change(logs: Iterable[Sequence[Entry]]) -> Change:
    messages: list[Message] = []
    state: Any = None
    for entries in logs:
        state = fold(entries)
        messages = [*messages[: entries[0].fields["before"]], *state.messages]
    stop = state._ending.response.get("stop", "cancelled")  # noqa: SLF001 - it writes what no run has written
    return Change("", "opened", 0, messages, state.active_agent or "", state.context, stop)


def _insert(run_id: str, user: str, conversation: str, entries: Sequence[Entry]) -> Transaction[None]:
    first, *more = entries
    record = RunRecord(
        id=run_id, user=user, conversation=conversation, agent=first.fields["agent"], status="running", started_ms=first.at_ms
    )  # fmt: skip
    yield from log.insert(record, "", "opened#", LogRow(0, first.seq, first.to_log()))
    row = LogRow(first.seq + 1, more[-1].seq, b"\n".join(entry.to_log() for entry in more))
    yield from log.end(run_id, 1, row, ending_of(more[-1]), more[-1].at_ms)
