"""`aswarm serve --open FILE`: shows the runs of a file in the playground, such as the file of a failed simulation.

Each line of the file is an entry of a log, as JSON, with the id of its run in `run`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from aswarm._record import log
from aswarm._record.entries import Entry, now
from aswarm._record.entry_maker import EntryMaker
from aswarm._record.fold import fold
from aswarm._record.log import LogRow, RunToStart
from aswarm._sql.transactions import Transaction
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm._values.messages import Message
from aswarm.conversations import Change
from aswarm.runs._prepared import conversation_key
from aswarm.runs._starting import ending_of
from aswarm.testing import ScriptedModel

from ._exits import SetupError

if TYPE_CHECKING:
    from aswarm.runs import Runs

Logs: TypeAlias = Mapping[str, Sequence[Entry]]
_ANSWER = "This page shows the runs of a file, and no model answers. To continue with your agents: aswarm serve AGENT --open FILE"


def read_logs(path: str) -> Logs:
    """Return the entries of a file by run. Their times are moved so that the last entry is from now. Raises SetupError."""
    logs: dict[str, list[Entry]] = defaultdict(list)
    try:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            fields = json.loads(line)
            logs[fields.pop("run")].append(Entry.from_dict(fields))
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SetupError(f"{path} has no runs: each line must be an entry of a log, with the id of its run") from error
    if any(entries[0].type != "RunStarted" for entries in logs.values()):
        raise SetupError(f"{path} has a run without its first entry, RunStarted")
    later = now() - max((entry.at_ms for entries in logs.values() for entry in entries), default=0)
    return {
        run: [replace(entry, at_ms=entry.at_ms + later) for entry in _ended(entries)] for run, entries in logs.items()
    }


def _ended(entries: Sequence[Entry]) -> Sequence[Entry]:
    if entries[-1].is_last:
        return entries
    last = entries[-1]
    (end,) = EntryMaker().stopped("process_died")
    return [*entries, replace(end, seq=last.seq + 1, at_ms=last.at_ms)]


def shown_swarm() -> AsyncSwarm:
    """Return the swarm of a page without agents of the user. Its answers say that there is no model."""
    return AsyncSwarm(ScriptedModel(lambda _: _ANSWER).client())


def shown_agents(logs: Logs) -> list[Agent]:
    """Return an agent for each name in the entries."""
    names = (entry.fields.get("agent") for entries in logs.values() for entry in entries)
    return [Agent(name=name) for name in dict.fromkeys(names) if isinstance(name, str)]


async def show_logs(runs: Runs, user: str, logs: Logs) -> None:
    """Write the runs and their conversations to the database of `runs`, for a user."""
    conversations: dict[str, dict[str, Sequence[Entry]]] = defaultdict(dict)
    for run, entries in sorted(logs.items(), key=lambda item: item[1][0].at_ms):
        conversations[entries[0].fields["conversation"] or run][run] = entries
    for conversation, its_runs in conversations.items():
        await runs.store.write(conversation_key(user, conversation), _change(list(its_runs.values())))
        for run, entries in its_runs.items():
            await runs.store._database.run(_insert, RunToStart(run, user, "", conversation), entries)


def _change(logs: Iterable[Sequence[Entry]]) -> Change:
    messages: list[Message] = []
    state: Any = None
    for entries in logs:
        state = fold(entries)
        messages = [*messages[: entries[0].fields["before"]], *state.messages]
    stop = state._ending.response.get("stop", "cancelled")
    return Change("", "opened", 0, messages, state.active_agent or "", state.context, stop)


def _insert(run: RunToStart, entries: Sequence[Entry]) -> Transaction[None]:
    first, *more = entries
    run = run._replace(agent=first.fields["agent"], owner="opened#")
    yield from log.insert(run, first.at_ms, LogRow(0, first.seq, first.to_log()))
    row = LogRow(first.seq + 1, more[-1].seq, b"\n".join(entry.to_log() for entry in more))
    yield from log.end(run.id, 1, row, ending_of(more[-1]), more[-1].at_ms)
