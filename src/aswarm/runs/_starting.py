"""The transactions that start, take over and end a run. They change its row, its entries and its conversation together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Unpack

from aswarm._log import conversations as _statements
from aswarm._log import runs as log
from aswarm._log.runs import Ending, LogRow, Takeover
from aswarm._log.stored import Change, Conflict, RunRecord, Stored, checked_context, revisions_of
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
from aswarm.conversations._sink import closed, common_messages

from ._live import LiveLog
from ._prepared import PreparedRun, Setup, conversation_key
from ._requests import AnswersRefused, Limits, NewRun, RunActive, TooManyRuns


class StartAgain(Exception):  # noqa: N818 - it is no error
    """A concurrent start was faster. The caller repeats its start, and finds the other run."""


class Found(NamedTuple):
    """The data in the database for a new run.

    `same`: the existing run with the id or key of the new run. `active`: the id of the active run of the conversation. `last`:
    the newest run of the conversation. `stored`: the conversation, None if it is new. `asked`: the fields of the first entry of
    `last`, if the new run answers its calls. `askers`: the ids of the runs whose calls a new answer may name, the newest first.
    """

    same: RunRecord | None
    active: str | None = None
    last: RunRecord | None = None
    stored: Stored | None = None
    asked: Mapping[str, Any] = MappingProxyType({})
    askers: Sequence[str] = ()


def look_up(new: NewRun, run_id: str, key: str) -> Transaction[Found]:
    """Look up the run with the same id or key, the active run of the conversation, and the conversation."""
    digest = new.digest if new.answers else ""  # answers may be sent twice, while the first run is running
    same = yield from log.existing(new.user, digest, run_id, new.key, new.conversation)
    if same is not None or not key:
        return Found(same)
    newest = yield from log.of_user(new.user, new.conversation, 1)
    last = newest[0] if newest else None
    if last is not None and last.is_running and digest and last.digest == digest:
        return Found(last)  # the run was started between the two queries
    if last is not None and last.is_running:
        return Found(None, last.id, last)
    stored = yield from _statements.load(key)
    if new.regenerate and stored is not None:
        stored = yield from _without_answer(stored)
    if last is None or not new.answers:
        return Found(None, None, last, stored)
    entries = entries_of((yield from log.first(last.id, 3)))
    asked: Mapping[str, Any] = entries[0].fields if entries else {}
    return Found(None, None, last, stored, asked, (yield from _askers(last, entries)))


def _askers(last: RunRecord, entries: list[Entry]) -> Transaction[Sequence[str]]:
    """Return the ids of the runs whose calls an answer may name. `last`: the newest run. `entries`: its first entries."""
    if last.status in ("failed", "stopped"):
        match entries:
            case [first, *turn, end] if end.is_last and all(map(_changes_nothing, turn)):
                # The run ended before it did anything, so the calls of earlier runs are as they were: an answer may come again.
                return (last.id, *first.fields.get("_askers", ()))
            case [_, _, *_] if not entries_of((yield from log.last(last.id)))[-1].response:
                return ()  # its process died and its record cannot be replayed: a call may have run
            case _:
                pass
    return (last.id,)


def _changes_nothing(entry: Entry) -> bool:
    """Return whether this is the end of a turn in which all calls still wait, for example because a middleware has failed."""
    fields = entry.fields
    return entry.type == "TurnFinished" and not any(map(fields.get, ("answers", "unknown", "_marks")))


def _without_answer(stored: Stored) -> Transaction[Stored]:
    """Return the conversation as it was after the last message of the user."""
    users = [at for at, message in enumerate(stored.messages) if message["role"] == "user"]
    before = (yield from _statements.load(stored.id, users[-1] + 1)) if users else None
    if before is None:
        text = "the conversation has no message of the user, so there is no answer to regenerate"
        raise AnswersRefused(text, code="nothing_new")
    return replace(before, revision=stored.revision)


def prepare(setup: Setup, run_id: str, new: NewRun, found: Found, *, has_changed: bool) -> PreparedRun | RunRecord:
    """Prepare a new run. Returns the record of an existing run if the request was sent before.

    `has_changed`: whether another program has changed the conversation since the first try.
    """
    if found.same is not None:
        return found.same
    if found.active is not None:
        raise RunActive(found.active)
    key = "" if new.conversation is None else conversation_key(new.user, new.conversation)
    stored = found.stored or Stored(
        key, agent=setup.agent(new.agent).name, context_variables=checked_context(new.context_variables)
    )
    try:
        if has_changed and new.answers:  # the open calls may be different now
            text = "another program has just changed the conversation; load its open calls again, and answer these"
            raise AnswersRefused(text, code="conflict")
        return PreparedRun.of_request(setup, run_id, new, stored, found.askers, found.asked)
    except AnswersRefused:
        if found.last is not None and new.answers and found.last.digest == new.digest:
            return found.last  # the request was sent twice
        raise


def take(
    run_id: str, owner: str, token: str, **options: Unpack[log.TakeOptions]
) -> Transaction[tuple[Takeover, list[Entry], Stored] | None]:
    """Start the next attempt of a run. Returns it with the entries and the conversation; None for an ended run.

    For the parameters, see `log.take`.
    """
    taken = yield from log.take(run_id, owner, token, **options)
    if taken is None:
        return None
    record, entries = taken.record, entries_of((yield from log.entries(run_id)))
    key = "" if record.conversation is None else conversation_key(record.user, record.conversation)
    stored = (yield from _statements.load(key)) if key else None
    return taken, entries, stored or Stored(key)


def insert(
    record: RunRecord,
    run: PreparedRun,
    owner: str | None,
    version: str,
    enqueue: Callable[[str], Transaction[None] | None],
) -> Transaction[None]:
    """Record a run: its row, its first entry and its new messages.

    `owner`: the attempt that executes it; None for a queued run. `enqueue`: see `Runs.enqueue`.

    Raises TooManyRuns; Conflict if the conversation has changed since it was loaded; StartAgain if the id, the key or the
    conversation is in use.
    """
    yield from _check_limits(record.user, run.setup.limits)
    if run.key:
        yield from _statements.write(run.key, run.first_change(), clocks.time())
    if not (yield from log.insert(record, version, owner, LogRow(0, 0, run.first.to_log()))):
        raise StartAgain
    if (statements := enqueue(record.id)) is not None:
        yield from statements


def _check_limits(user: str, limits: Limits) -> Transaction[None]:
    if (most := limits.runs_per_user) is not None and (yield from log.count(user, most)) >= most:
        raise TooManyRuns("user")
    if (most := limits.runs) is not None and (yield from log.count(None, most)) >= most:
        raise TooManyRuns("service")


def finish(live: LiveLog, last: Entry, run: PreparedRun, change: Change | None) -> Transaction[bool]:
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
    response = last.response
    waits = bool(response.get("waiting"))
    match last.type:
        case "RunFinished":
            stop = response.get("stop", "answer")
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
