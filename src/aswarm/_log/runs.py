"""The log of runs: transactions of two tables, with a row for each run and rows for its entries.

An execution of a run is an attempt with a number. Each write contains the number of its attempt. A write changes nothing after
the start of the next attempt, or after the end of the run: the number is a fencing token
(https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html). A process that takes over a run first increments
the number, and then reads the entries. In this module, entries are bytes, one per line. A row contains the entries that were
written together.
"""
# ruff: noqa: S608 - statements contain only names of this module; all data is passed as parameters

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from aswarm._record.entries import DELTAS, now
from aswarm._sql.transactions import Transaction, chunks, marks

from .stored import RunRecord, RunStatus

ACTIVE = "status IN ('queued', 'running')"
TABLES = (
    """CREATE TABLE aswarm_run (
        number {number}, id {text} NOT NULL UNIQUE, "user" {text} NOT NULL, conversation {text}, agent TEXT, key TEXT,
        digest TEXT NOT NULL, status TEXT NOT NULL, reason TEXT, started {big} NOT NULL, ended {big},
        on_disconnect TEXT NOT NULL, version TEXT NOT NULL, owner TEXT, attempt INTEGER NOT NULL, deaths INTEGER NOT NULL,
        cancel TEXT, last_read {big} NOT NULL DEFAULT 0
    )""",
    'CREATE UNIQUE INDEX aswarm_run_key ON aswarm_run ("user", key) WHERE key IS NOT NULL',
    f"""CREATE UNIQUE INDEX aswarm_run_active ON aswarm_run ("user", conversation)
        WHERE {ACTIVE} AND conversation IS NOT NULL""",
    'CREATE INDEX aswarm_run_of_user ON aswarm_run ("user", conversation, number)',
    f"CREATE INDEX aswarm_run_unended ON aswarm_run (owner) WHERE {ACTIVE}",
    "CREATE INDEX aswarm_run_waiting ON aswarm_run (number) WHERE reason = 'waiting'",
    """CREATE TABLE aswarm_entry (
        run {text} NOT NULL, first {big} NOT NULL, last {big} NOT NULL, data {blob} NOT NULL, PRIMARY KEY (run, first)
    )""",
)
# The store has these statements after its first tables, and as the migration of its format 3. A journal does not need them.
# `waits`: whether the run left calls open when it ended. `has_facts`: whether a row has entries other than deltas.
ADDED_IN_FORMAT_4 = (
    "ALTER TABLE aswarm_run ADD COLUMN waits INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE aswarm_entry ADD COLUMN has_facts INTEGER NOT NULL DEFAULT 1",
    "UPDATE aswarm_run SET waits = 1 WHERE status = 'finished' AND reason = 'waiting'",
    'CREATE INDEX aswarm_run_newest ON aswarm_run ("user", number)',
    "CREATE INDEX aswarm_run_open ON aswarm_run (number) WHERE waits = 1",
    "CREATE INDEX aswarm_entry_facts ON aswarm_entry (run, first) WHERE has_facts = 1",
)
# The entry numbers of an attempt start at a multiple of this number. Readers may have got entries of an earlier attempt that
# were never written, so the next attempt must not use the same numbers.
ATTEMPT_NUMBERS = 1_000_000

# An owner is the name of a process, "#" and the token of an attempt. All owners of a process are between "name#" and "name$",
# because "$" is the next character after "#" in ASCII.
_OF_OWNER = "owner >= ? AND owner < ?"
_ROW = "aswarm_entry (run, first, last, data, has_facts)"
_OR_REPLACE = (
    "ON CONFLICT (run, first) DO UPDATE SET last = excluded.last, data = excluded.data, has_facts = excluded.has_facts"
)
_A_FACT = re.compile(rb'^(?!\{"seq":\d+,"at":\d+,"type":"(?:%b)")' % "|".join(sorted(DELTAS)).encode(), re.MULTILINE)
_DEATHS = "deaths + CASE status WHEN 'running' THEN 1 ELSE 0 END"
_RELEASE = "UPDATE aswarm_run SET status = 'queued', owner = NULL"
ROWS_AT_ONCE = 200
_IDS_AT_ONCE = 500
_BYTES_AT_ONCE = 256_000
HAS_LATER_RUN = (
    'EXISTS (SELECT 1 FROM aswarm_run later WHERE later."user" = aswarm_run."user" '
    "AND later.conversation = aswarm_run.conversation AND later.number > aswarm_run.number)"
)
_COLUMNS = (
    'id, "user", conversation, agent, status, started, ended, '
    f"CASE WHEN status = 'finished' AND reason = 'waiting' AND {HAS_LATER_RUN} THEN 'continued' ELSE reason END, digest, on_disconnect, "
    "coalesce((SELECT last FROM aswarm_entry WHERE run = id ORDER BY first DESC LIMIT 1), -1), key"
)


class LogRow(NamedTuple):
    """Entries that are written together: the first and the last number, and the bytes, one entry per line."""

    first: int
    last: int
    data: bytes

    @property
    def has_facts(self) -> int:
        """1 if the row has entries other than deltas, otherwise 0."""
        return int(_A_FACT.search(self.data) is not None)


# The row that was written; None without entries; False if another attempt has started.
Written: TypeAlias = LogRow | Literal[False] | None


class Ending(NamedTuple):
    """The end of a run: its status and the reason, see `RunRecord`. `waits`: whether it leaves calls open."""

    status: RunStatus
    reason: str | None = None
    waits: bool = False

    @property
    def shown(self) -> RunStatus:
        """The status of the record: "waiting" for a run that finished with calls that wait."""
        return _shown(self.status, self.reason)


class Takeover(NamedTuple):
    """The next attempt of a run: the record of the run, and the number of the attempt.

    `deaths`: the number of processes that died while they executed the run. `cancel`: the reason of a request to cancel it, or
    None. `version`: the version that started it. `has_started`: whether the attempt has started, see `take`.
    """

    record: RunRecord
    attempt: int
    deaths: int
    cancel: str | None
    version: str
    has_started: bool


def _shown(status: RunStatus, reason: str | None) -> RunStatus:
    return "waiting" if status == "finished" and reason == "waiting" else status


def _record_of(row: Sequence[Any]) -> RunRecord:
    id_, user, conversation, agent, status, started, ended, reason, digest, policy, last, key, *_ = row
    is_queued = status == "queued"
    return RunRecord(
        id=id_, user=user, conversation=conversation, agent=agent,
        status="running" if is_queued else _shown(status, reason), started_ms=started, ended_ms=ended, reason=reason,
        digest=digest, on_disconnect=policy if policy in ("finish", "cancel") else float(policy), last=last, key=key,
        is_queued=is_queued,
    )  # fmt: skip


# --- start and end ---


def insert(record: RunRecord, version: str, owner: str | None, first: LogRow) -> Transaction[bool]:
    """Insert a run with its first entry. Returns False if its id, its key or its conversation is in use.

    `owner`: the process that executes the run, and its attempt; None puts the run into the queue.
    """
    status, attempt = ("queued", 0) if owner is None else ("running", 1)
    rows = yield (
        f"""INSERT INTO aswarm_run (id, "user", conversation, agent, key, digest, status, started, on_disconnect, version, owner,
        attempt, deaths) VALUES ({marks(range(13))}) ON CONFLICT DO NOTHING""",
        (
            record.id, record.user, record.conversation, record.agent, record.key, record.digest, status, record.started_ms,
            str(record.on_disconnect), version, owner, attempt, 0,
        ),
    )  # fmt: skip
    if rows[0][0]:
        yield f"INSERT INTO {_ROW} VALUES (?, ?, ?, ?, ?)", (record.id, *first, first.has_facts)
        return True
    # The insert may be a repetition: the first insert was committed, but the answer of the database was lost.
    mine = yield "SELECT 1 FROM aswarm_run WHERE id = ? AND owner = ?", (record.id, owner)
    return bool(mine)


def existing(
    user: str, digest: str, run_id: str, key: str | None, conversation: str | None
) -> Transaction[RunRecord | None]:
    """Return the run with this id or key, or the active run of the conversation if it has this digest, or None."""
    rows = yield (
        f"""SELECT {_COLUMNS} FROM aswarm_run WHERE id = ? OR ("user" = ? AND key = ?)
        OR ("user" = ? AND conversation = ? AND digest = ? AND {ACTIVE}) ORDER BY number LIMIT 1""",
        (run_id, user, key, user, conversation, digest),
    )
    return _record_of(rows[0]) if rows else None


def count(user: str | None, most: float) -> Transaction[int]:
    """Return the number of active runs of a user, or of all users, but at most `most`."""
    if most == math.inf:
        return 0
    of_user, values = ("", ()) if user is None else ('AND "user" = ? ', (user,))
    statement = f"SELECT count(*) FROM (SELECT 1 FROM aswarm_run WHERE {ACTIVE} {of_user}LIMIT ?) counted"
    rows = yield statement, (*values, int(most))
    return int(rows[0][0])


def append(run_id: str, attempt: int, row: LogRow | None) -> Transaction[Written]:
    """Append entries. Returns the row, or False for an ended run, or if another attempt has started.

    The query locks the row of the run with FOR SHARE. So a process that takes over the run waits for this write, and then also
    reads these entries.
    """
    if row is None:
        return None
    rows = yield (
        f"""INSERT INTO {_ROW} SELECT id, ?, ?, ?, ? FROM aswarm_run
        WHERE id = ? AND attempt = ? AND status = 'running' FOR SHARE {_OR_REPLACE}""",
        (*row, row.has_facts, run_id, attempt),
    )
    return row if rows[0][0] else False


def end(run_id: str, attempt: int, row: LogRow, ending: Ending, at: int) -> Transaction[Written]:
    """Append the last entries and end the run. Returns the row, or False for an ended run, or if another attempt has started.

    `at`: the time of the last entry.
    """
    set_end = "UPDATE aswarm_run SET status = ?, reason = ?, waits = ?, ended = ?"
    values = (ending.status, ending.reason, int(ending.waits), at, run_id, attempt)
    rows = yield f"{set_end} WHERE id = ? AND attempt = ? AND {ACTIVE}", values
    if not rows[0][0]:
        # This transaction may be a repetition: the first one was committed, but the answer of the database was lost.
        written = yield "SELECT data FROM aswarm_entry WHERE run = ? AND first = ?", (run_id, row.first)
        return row if [bytes(data) for (data,) in written] == [row.data] else False
    yield f"INSERT INTO {_ROW} VALUES (?, ?, ?, ?, ?) {_OR_REPLACE}", (run_id, *row, row.has_facts)
    return row


def replace_last(run_id: str, row: LogRow, ending: Ending) -> Transaction[None]:
    """Replace the end of an ended run."""
    values = (ending.status, ending.reason, int(ending.waits), run_id)
    yield "UPDATE aswarm_run SET status = ?, reason = ?, waits = ? WHERE id = ?", values
    yield "UPDATE aswarm_entry SET data = ? WHERE run = ? AND first = ?", (row.data, run_id, row.first)


# --- attempts ---


class TakeOptions(TypedDict, total=False):
    """The options of `take`."""

    most_deaths: int
    is_queued: bool


def take(
    run_id: str, owner: str, token: str, *, most_deaths: int = 1_000_000, is_queued: bool = False
) -> Transaction[Takeover | None]:
    """Start the next attempt of a run. Returns None for an ended run.

    `token`: a unique text, so that a repeated transaction increments the number only once. If the run is still "running", its
    last process has died without releasing it, and the transaction counts a death. If the run then has more than `most_deaths`
    deaths, no attempt starts: `has_started` is false. With `is_queued`, no attempt of a "running" run starts.
    """
    name, statuses = f"{owner}#{token}", "status = 'queued'" if is_queued else ACTIVE
    yield (
        f"""UPDATE aswarm_run SET attempt = attempt + 1, owner = ?, status = 'running', deaths = {_DEATHS}
        WHERE id = ? AND {statuses} AND coalesce(owner, '') <> ? AND {_DEATHS} <= ?""",
        (name, run_id, name, most_deaths),
    )
    more = "attempt, deaths, cancel, version, owner"
    rows = yield f"SELECT {_COLUMNS}, {more} FROM aswarm_run WHERE id = ? AND {ACTIVE}", (run_id,)
    if not rows:
        return None
    *_, attempt, deaths, cancel, version, current = rows[0]
    return Takeover(_record_of(rows[0]), attempt, deaths, cancel, version, current == name)


def owners() -> Transaction[list[str]]:
    """Return the names of the processes that own active runs."""
    rows = yield f"SELECT DISTINCT owner FROM aswarm_run WHERE {ACTIVE} AND owner IS NOT NULL", ()
    return sorted({owner.partition("#")[0] for (owner,) in rows})


def active_of(owner: str) -> Transaction[list[str]]:
    """Return the ids of the active runs of a process."""
    statement = f"SELECT id FROM aswarm_run WHERE {ACTIVE} AND {_OF_OWNER} ORDER BY number"
    return [run_id for (run_id,) in (yield statement, (f"{owner}#", f"{owner}$"))]


def owner_of(run_id: str) -> Transaction[str]:
    """Return the name of the process that owns an active run; an empty text without one."""
    rows = yield f"SELECT owner FROM aswarm_run WHERE id = ? AND {ACTIVE}", (run_id,)
    return str(rows[0][0] or "").partition("#")[0] if rows else ""


def release_dead(owner: str, run_ids: Sequence[str]) -> Transaction[None]:
    """Put the runs that a dead process still owns back into the queue. Count a death for each run."""
    statement = f"{_RELEASE}, deaths = deaths + 1 WHERE id = ? AND status = 'running' AND {_OF_OWNER}"
    for run_id in run_ids:
        yield statement, (run_id, f"{owner}#", f"{owner}$")


def release(run_id: str, attempt: int) -> Transaction[None]:
    """Put an active run back into the queue, unless another attempt has started."""
    yield f"{_RELEASE} WHERE id = ? AND attempt = ? AND status = 'running'", (run_id, attempt)


# --- cancel and readers ---


def request_cancel(run_id: str, reason: str) -> Transaction[None]:
    """Ask the process that executes a run to cancel it. If the run already has such a request, change nothing."""
    yield f"UPDATE aswarm_run SET cancel = ? WHERE id = ? AND {ACTIVE} AND cancel IS NULL", (reason, run_id)


def cancel_requests(run_ids: Sequence[str]) -> Transaction[dict[str, str]]:
    """Return the reasons of the requests to cancel these runs, by id."""
    reasons: dict[str, str] = {}
    for some in chunks(run_ids, ROWS_AT_ONCE):
        rows = yield f"SELECT id, cancel FROM aswarm_run WHERE id IN ({marks(some)}) AND cancel IS NOT NULL", some
        reasons |= dict(rows)
    return reasons


def cancelled_and_ended(
    run_ids: Sequence[str], awaited: Sequence[str]
) -> Transaction[tuple[dict[str, str], list[str]]]:
    """Return the `cancel_requests` of the runs of this process, and the `ended` ones of the runs that callers wait for."""
    requests = yield from cancel_requests(run_ids)
    return requests, (yield from ended(awaited))


def touch(run_ids: Sequence[str]) -> Transaction[None]:
    """Record that these runs have readers in this process now."""
    for run_id in run_ids:
        yield "UPDATE aswarm_run SET last_read = ? WHERE id = ?", (now(), run_id)


def last_reads(run_ids: Sequence[str]) -> Transaction[dict[str, int]]:
    """Return the last time at which a process recorded readers of each run, in milliseconds since the epoch."""
    times: dict[str, int] = {}
    for some in chunks(run_ids, ROWS_AT_ONCE):
        times |= {
            run_id: int(last_read)
            for last_read, run_id in (yield f"SELECT last_read, id FROM aswarm_run WHERE id IN ({marks(some)})", some)
        }
    return times


# --- reading ---


def find(run_id: str, user: str | None) -> Transaction[RunRecord | None]:
    """Return the run with this id, or None. `user`: the run must belong to this user; None allows any user."""
    of_user, values = ("", ()) if user is None else (' AND "user" = ?', (user,))
    rows = yield f"SELECT {_COLUMNS} FROM aswarm_run WHERE id = ?{of_user}", (run_id, *values)
    return _record_of(rows[0]) if rows else None


def of_user(user: str, conversation: str | None, limit: int) -> Transaction[list[RunRecord]]:
    """Return the newest runs of a user, or of one conversation of the user."""
    of_one, values = ("", ()) if conversation is None else ("AND conversation = ? ", (conversation,))
    statement = f'SELECT {_COLUMNS} FROM aswarm_run WHERE "user" = ? {of_one}ORDER BY number DESC LIMIT ?'
    return [_record_of(row) for row in (yield statement, (user, *values, limit))]


# A run that still waits for an answer: its conversation has no later run.
WAITS = f"status = 'finished' AND coalesce(reason, '') = 'waiting' AND NOT {HAS_LATER_RUN}"
_CONDITIONS = {"waiting": WAITS, "finished": f"status = 'finished' AND NOT ({WAITS})", "running": ACTIVE}


def of_all(status: str | None, limit: int) -> Transaction[list[RunRecord]]:
    """Return the newest runs of all users. `status`: only runs with this status; "waiting": runs that wait for an answer."""
    values: list[object] = [] if status in (None, *_CONDITIONS) else [status]
    where = "" if status is None else f"WHERE {_CONDITIONS.get(status, 'status = ?')} "
    statement = f"SELECT {_COLUMNS} FROM aswarm_run {where}ORDER BY number DESC LIMIT ?"
    return [_record_of(row) for row in (yield statement, (*values, limit))]


def is_newest(run_id: str) -> Transaction[bool]:
    """Return whether a run has ended and its conversation has no later run. Locks the row of the run."""
    rows = yield (
        f"SELECT 1 FROM aswarm_run WHERE id = ? AND ended IS NOT NULL AND NOT {HAS_LATER_RUN} FOR UPDATE",
        (run_id,),
    )
    return bool(rows)


def unreachable(version: str, agents: Sequence[str], limit: int) -> Transaction[list[RunRecord]]:
    """Return queued runs that this version cannot execute: they need another version, or an agent outside of `agents`."""
    statement = f"SELECT {_COLUMNS} FROM aswarm_run WHERE {_unreachable(agents)} ORDER BY number DESC LIMIT ?"
    return [_record_of(row) for row in (yield statement, (version, *agents, limit))]


def out_of_reach(version: str, agents: Sequence[str]) -> Transaction[list[tuple[str, str, int]]]:
    """Return the number of `unreachable` runs, by version and agent."""
    counted = "SELECT version, coalesce(agent, ''), count(*) FROM aswarm_run"
    statement = f"{counted} WHERE {_unreachable(agents)} GROUP BY version, agent"
    rows: list[tuple[str, str, int]] = yield statement, (version, *agents)
    return rows


def _unreachable(agents: Sequence[str]) -> str:
    return f"status = 'queued' AND (version <> ? OR agent NOT IN ({marks(agents)}))"


def ended(run_ids: Sequence[str]) -> Transaction[list[str]]:
    """Return the ids of the ended runs."""
    active = set[str]()
    for some in chunks(run_ids, _IDS_AT_ONCE):
        rows = yield f"SELECT id FROM aswarm_run WHERE id IN ({marks(some)}) AND {ACTIVE}", some
        active.update(chain.from_iterable(rows))
    return [run_id for run_id in run_ids if run_id not in active]


def read(run_id: str, after: int) -> Transaction[tuple[list[LogRow], bool]]:
    """Return the next rows with entries above `after`, and whether the run is active."""
    # Query the status first. If the run is not active, the second query returns all its entries.
    status = yield f"SELECT 1 FROM aswarm_run WHERE id = ? AND {ACTIVE}", (run_id,)
    # The subquery finds the row of the first entry in the index. Otherwise the database would read all earlier rows.
    rows = yield (
        """SELECT first, last, data FROM aswarm_entry WHERE run = ? AND first >= coalesce(
            (SELECT max(first) FROM aswarm_entry WHERE run = ? AND first <= ?), 0
        ) AND last > ? ORDER BY first LIMIT ?""",
        (run_id, run_id, after + 1, after, ROWS_AT_ONCE),
    )
    result, size = list[LogRow](), 0
    for first, last, data in rows:
        if size < _BYTES_AT_ONCE:
            result.append(LogRow(first, last, bytes(data)))
            size += len(data)
    return result, bool(status)


def first(run_id: str, count: int) -> Transaction[list[LogRow]]:
    """Return the first rows of a run, at most this number. The first entry has a row of its own."""
    return (yield from _rows(run_id, f"ORDER BY first LIMIT {count}"))


def last(run_id: str) -> Transaction[list[LogRow]]:
    """Return the row with the last entry of a run."""
    return (yield from _rows(run_id, "ORDER BY first DESC LIMIT 1"))


def facts(run_id: str) -> Transaction[list[LogRow]]:
    """Return the rows with entries other than deltas."""
    return (yield from _rows(run_id, "AND has_facts = 1 ORDER BY first"))


def entries(run_id: str) -> Transaction[list[LogRow]]:
    return (yield from _rows(run_id, "ORDER BY first"))


def _rows(run_id: str, clauses: str) -> Transaction[list[LogRow]]:
    rows = yield f"SELECT first, last, data FROM aswarm_entry WHERE run = ? {clauses}", (run_id,)
    return [LogRow(first, last, bytes(data)) for first, last, data in rows]
