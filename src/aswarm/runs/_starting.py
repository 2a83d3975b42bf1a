"""The transactions that start, take over and end a run. They change its row, its entries and its conversation together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

from aswarm._log import conversations as _statements
from aswarm._log import runs as log
from aswarm._log.runs import Ending, LogRow, RunRow, RunToStart
from aswarm._log.stored import Change, Conflict, Stored
from aswarm._record.entries import Entry, entries_of
from aswarm._record.entry_maker import EntryMaker
from aswarm._record.fold import Folded, fold
from aswarm._runtime import clocks
from aswarm._sql.database import Database
from aswarm._sql.transactions import Transaction
from aswarm._values.agent import UnknownCall
from aswarm._values.decisions import OpenCall
from aswarm._values.json import from_fields
from aswarm._values.messages import INTERRUPTED, OUTCOME_UNKNOWN, Message, has_started_inside, tool_message
from aswarm.conversations._recorded_run import closed
from aswarm.conversations._recorder import common_messages

from ._live import LiveRun
from ._prepared import PreparedRun, conversation_key, revisions_of
from ._runs import AnswersRefused, ConversationNotFound, Limits, NewRun, RunRecord, TooManyRuns


class StartAgain(Exception):  # noqa: N818 - it is no error
    """A concurrent start was faster. The caller repeats its start, and finds the other run."""


class Found(NamedTuple):
    """The data in the database for a new run.

    `same`: the existing run with the id or key of the new run. `active`: the id of the active run of the conversation. `last`:
    the newest run of the conversation. `stored`: the conversation, None if it is new. `asked`: the fields of the first entry of
    `last`, if the new run answers its calls.
    """

    same: RunRow | None
    active: str | None = None
    last: RunRow | None = None
    stored: Stored | None = None
    asked: Mapping[str, Any] = MappingProxyType({})


@dataclass
class Tries:
    """The tries to start one run. `has_changed`: whether another program has changed the conversation meanwhile."""

    has_changed: bool = False
    has_existed: bool = False

    def note(self, new: NewRun, found: Found) -> None:
        """Raise ConversationNotFound if the conversation was deleted since an earlier try. Then nothing may start in it."""
        exists = found.stored is not None or found.active is not None
        if self.has_existed and not exists:
            raise ConversationNotFound(str(new.conversation))
        self.has_existed = exists


def look_up(new: NewRun, run_id: str, key: str) -> Transaction[Found]:
    """Look up the run with the same id or key, the active run of the conversation, and the conversation."""
    digest = new.digest if new.answers else ""  # answers may be sent twice, while the first run is running
    same = yield from log.existing(new.user, digest, run_id, new.key, new.conversation)
    if same is not None or not key:
        return Found(same)
    newest = yield from log.of_user(new.user, new.conversation, 1)
    last = newest[0] if newest else None
    if last is not None and last.ended is None and digest and last.digest == digest:
        return Found(last)  # the run was started between the two queries
    if last is not None and last.ended is None:
        return Found(None, last.id, last)
    stored = yield from _statements.load(key)
    if new.regenerate and stored is not None:
        stored = yield from _without_answer(stored)
    rows = (yield from log.first(last.id)) if last is not None and new.answers else []
    return Found(None, None, last, stored, entries_of(rows)[0].fields if rows else {})


def _without_answer(stored: Stored) -> Transaction[Stored]:
    """Return the conversation as it was after the last message of the user."""
    users = [at for at, message in enumerate(stored.messages) if message["role"] == "user"]
    before = (yield from _statements.load(stored.id, users[-1] + 1)) if users else None
    if before is None:
        text = "the conversation has no message of the user, so there is no answer to regenerate"
        raise AnswersRefused(text, code="nothing_new", status_code=409)
    return replace(before, revision=stored.revision)


class Taken(NamedTuple):
    """A run: its row, its entries, its conversation, and whether its next attempt has started."""

    row: RunRow
    entries: list[Entry]
    stored: Stored
    has_started: bool


def take(run_id: str, owner: str, token: str, **options: Unpack[log.TakeOptions]) -> Transaction[Taken | None]:
    """Start the next attempt of a run. Returns None for an ended run. For the parameters, see `log.take`."""
    row = yield from log.take(run_id, owner, token, **options)
    if row is None:
        return None
    entries = entries_of((yield from log.entries(run_id)))
    key = "" if row.conversation is None else conversation_key(row.user, row.conversation)
    stored = (yield from _statements.load(key)) if key else None
    return Taken(row, entries, stored or Stored(key), row.owner == f"{owner}#{token}")


@dataclass(frozen=True, slots=True)
class Start:
    """A prepared run to start. `stored`: its conversation. `owner`: the attempt that executes it; None for a queued run."""

    record: RunRecord
    run: PreparedRun
    stored: Stored
    version: str
    owner: str | None
    limits: Limits


def insert(start: Start, enqueue: Callable[[str], Transaction[None]]) -> Transaction[None]:
    """Record a run: its row, its first entry and its new messages. `enqueue`: puts the run into the queue.

    Raises TooManyRuns; Conflict if the conversation has changed since it was loaded; StartAgain if the id, the key or the
    conversation is in use.
    """
    record, run = start.record, start.run
    yield from _check_limits(record.user, start.limits)
    if run.key:
        yield from _statements.write(run.key, run.first_change(start.stored), clocks.time())
    row = RunToStart(
        record.id, record.user, record.digest, record.conversation, record.agent, record.key, str(record.on_disconnect),
        start.version, start.owner,
    )  # fmt: skip
    if not (yield from log.insert(row, record.started_ms, LogRow(0, 0, run.first.to_log()))):
        raise StartAgain
    yield from enqueue(record.id)


def _check_limits(user: str, limits: Limits) -> Transaction[None]:
    if (most := limits.runs_per_user) is not None and (yield from log.count(user, most)) >= most:
        raise TooManyRuns("user")
    if (most := limits.runs) is not None and (yield from log.count(None, most)) >= most:
        raise TooManyRuns("service")


def finish(live: LiveRun, last: Entry, run: PreparedRun, change: Change | None) -> Transaction[bool]:
    """Record the end of a run: its last entries, its row, and its messages in the conversation.

    Returns False if another attempt has taken over the run. Raises Conflict if another program has changed the conversation.
    """
    row = live.unwritten(last)
    assert row is not None  # noqa: S101 - the row has at least the last entry
    ending = ending_of(last)
    if not last.response:  # the run has not started, so the open calls of its conversation are still open
        ending = ending._replace(waits=bool(run.first.fields["calls"]))
    if not (yield from log.end(live.record.id, live.attempt, row, ending, last.at_ms)):
        return False
    if change is not None:
        yield from _statements.write(run.key, change, clocks.time())
    return True


def ending_of(last: Entry) -> Ending:
    """Return the end of a run with this last entry."""
    waits = bool(last.response.get("waiting"))
    match last.type:
        case "RunFinished":
            stop = last.response["stop"] if last.response else "answer"
            return Ending("finished", None if stop == "answer" else stop, waits)
        case "RunFailed":
            return Ending("failed", last.fields["error"]["type"], waits)
        case _:
            return Ending("stopped", last.fields["reason"], waits)


# --- open calls of an ended run ---


async def close_open_calls(database: Database, record: RunRecord, reason: str) -> None:
    """Close the calls that an ended run has left open, so that no answer can continue them. A finished run counts as stopped.

    No process executes this run, so this changes its recorded end and its conversation. If the conversation has changed since,
    for example because another program has sent an answer, nothing changes.
    """
    revision = clocks.urandom(8).hex()
    while True:
        try:
            await database.submit(lambda: _close_open_calls(record, reason, revision), durable=True, notifies=True)
        except Conflict:  # an answer or another program was faster
            continue
        return


def _close_open_calls(record: RunRecord, reason: str, revision: str) -> Transaction[None]:
    if not (yield from log.is_newest(record.id)):
        return
    rows = yield from log.facts(record.id)
    entries = entries_of(rows)
    if not entries or not entries[-1].response.get("waiting", True):  # deleted, or another process has closed the calls
        return
    folded, before = fold(entries[:-1]), fold(entries)
    last = _without_open_calls(folded, entries[-1], reason)
    after = fold([*entries[:-1], last])
    if record.conversation is not None:
        key = conversation_key(record.user, record.conversation)
        of_run = before.response_messages, after.response_messages
        if not (yield from _close_in_conversation(key, record.id, revision, last.response, *of_run)):
            return
    lines = [*rows[-1].data.split(b"\n")[:-1], last.to_log()]
    yield from log.replace_last(record.id, LogRow(rows[-1].first, rows[-1].last, b"\n".join(lines)), ending_of(last))


def _without_open_calls(folded: Folded, last: Entry, reason: str) -> Entry:
    """Return the last entry of a run with an answer for each open call. A finished run is stopped for this reason.

    `folded`: the state of the run before this entry.
    """
    if not last.response:
        return last
    waiting = [from_fields(OpenCall, fields) for fields in last.response["waiting"]]
    inside = {call.index for call in waiting if has_started_inside(call.data)}
    unknown = set(folded.turn["unknown"]) if folded.calls else inside  # without calls: in some logs of older versions
    closing = [
        tool_message(
            {"id": call.id, "function": {"name": call.name}}, OUTCOME_UNKNOWN if call.index in unknown else INTERRUPTED
        )
        for call in waiting
    ]
    calls = {call.index: UnknownCall(call.id, call.name, call.arguments, call.agent) for call in waiting}
    listed = last.response["unknown_calls"]
    # A call whose own function has started is listed already, but not a call that waits for a run inside.
    new = [asdict(calls[index]) for index in sorted(unknown & inside)]
    response = {**last.response, "waiting": [], "unknown_calls": [*listed, *new]}
    stopped = last
    if last.type == "RunFinished":
        (stopped,), response["stop"] = EntryMaker().stopped(reason), "cancelled"
    return Entry(last.seq, last.at_ms, stopped.type, {**stopped.fields, "response": response, "_closing": closing})


def _close_in_conversation(
    key: str, run_id: str, revision: str, response: Mapping[str, Any], before: list[Message], after: list[Message]
) -> Transaction[bool]:
    """Close the open calls of a conversation. Returns False if it has changed since the run. Raises Conflict.

    `response`: the response of the run without open calls; empty if the run has none. `before`, `after`: the messages of the
    run with and without open calls.
    """
    stored = yield from _statements.load(key)
    if stored is None:  # it was deleted
        return True
    if stored.revision not in revisions_of(run_id):
        return False
    kept = len(stored.messages) - len(before)
    history = [*stored.messages[:kept], *after] if response else closed(stored.messages, stored)
    if history == stored.messages:  # the run has ended without a response, and left nothing open
        return True
    keep = common_messages(stored.messages, history)
    unknown_calls = [from_fields(UnknownCall, fields) for fields in response.get("unknown_calls", ())]
    new = [call for call in unknown_calls if call not in stored.unknown_calls]
    change = Change(
        stored.revision, revision, keep, history[keep:], stored.agent, stored.context_variables,
        response.get("stop", "cancelled"), [*stored.unknown_calls, *new],
    )  # fmt: skip
    yield from _statements.write(key, change, clocks.time())
    return True
