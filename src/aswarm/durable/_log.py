"""The log of durable runs: that of `aswarm.serve`, the queue, and what a run needs to be executed by any process.

Decides which process executes a run: one of its version, which has its agent and room for it, as far as the limits of all processes
together allow. The owner of a row is responsible for the run: it has put it into the queue, or executes it, or has died; then another
process becomes the owner.
"""
# ruff: noqa: S608 - statements are put together from names of this module; all data is passed as parameters

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

from aswarm.serve._entries import now
from aswarm.serve._log import INSERT_ENTRIES, RECORD, TABLES, LogRow, RunLog, record_of
from aswarm.serve._runs import RunNotFound, RunRecord

_IDS_AT_ONCE = 500
_WORK = """CREATE TABLE IF NOT EXISTS aswarm_run_work (
    run TEXT PRIMARY KEY, version TEXT NOT NULL, first_agent TEXT NOT NULL, state TEXT NOT NULL, claims INTEGER NOT NULL,
    claimed INTEGER NOT NULL, attempts INTEGER NOT NULL, deaths INTEGER NOT NULL, work BLOB NOT NULL
)"""
_LIMITS = (
    "CREATE TABLE IF NOT EXISTS aswarm_run_limits (name TEXT PRIMARY KEY, amount INTEGER NOT NULL, ms INTEGER NOT NULL)"
)
_INDEXES = """CREATE INDEX IF NOT EXISTS aswarm_run_started ON aswarm_run (started);
CREATE INDEX IF NOT EXISTS aswarm_run_waiting ON aswarm_run (started) WHERE reason = 'waiting';
CREATE INDEX IF NOT EXISTS aswarm_run_unended ON aswarm_run (started) WHERE status = 'running';
CREATE INDEX IF NOT EXISTS aswarm_run_claimed ON aswarm_run_work (claimed)"""
_TABLES = (_WORK, _LIMITS, *_INDEXES.split(";\n"))
_QUEUED = "FROM aswarm_run_work w JOIN aswarm_run r ON r.id = w.run WHERE r.status = 'running' AND w.state = 'queued'"
_CLAIMED = "UPDATE aswarm_run_work SET state = 'claimed', claims = claims + 1, claimed = ? WHERE run = ?"


class QueuedWork(NamedTuple):
    """What the queue knows of a run. `agent`: the name of the one that it begins with. `work`: see `Work`."""

    version: str
    agent: str
    work: bytes


class Claim(NamedTuple):
    """A run that this process is to execute. `is_first`: no process has claimed it before."""

    run_id: str
    is_first: bool


NO_USER = "-"  # the user of the runs of a program; an id of a user is not empty


class Taken(NamedTuple):
    """A run that this process executes now. `attempts`: how many executions have begun. `cancel`: why it is to be stopped."""

    record: RunRecord
    work: bytes
    attempts: int
    deaths: int
    cancel: str | None


class ManyDeaths(Exception):  # noqa: N818 - it is no error
    """So many processes have died with a run that it is executed with care."""


class Adopted(NamedTuple):
    """A run of a dead process, which belongs to this one now. `deaths`: how many processes have died with it."""

    record: RunRecord
    deaths: int | None


class Purgeable(NamedTuple):
    """What may be deleted: runs, and conversations by user and id."""

    run_ids: list[str]
    conversations: list[tuple[str, str]]


class DurableLog(RunLog):
    """The log in a SQLite file, for the processes of one machine."""

    _busy_seconds: ClassVar[float] = 30.0
    _skip_locked: ClassVar[str] = ""

    def __init__(self, path: str, *, owner: str, synchronous: str = "normal") -> None:
        self._synchronous = synchronous
        self.is_limited = False  # whether runs stay in the queue because of the limits of all processes together
        super().__init__(path, lease=0, owner=owner)

    def _open(self) -> None:
        super()._open()
        with self._writing() as execute:
            for statement in _TABLES:
                execute(statement)

    # --- the queue ---

    def begun(self, run_id: str, row: LogRow, work: QueuedWork, *, claims: bool) -> bool:
        """Write the first entry of a run, and its work. Returns whether this process has claimed it; otherwise it is in the queue.

        `claims`: whether this process has room for it. Raises RunNotFound if the run is not that of this process any more.
        """
        with self._writing() as execute:
            owned = self._owned({run_id: row})
            for (state,) in execute("SELECT state FROM aswarm_run_work WHERE run = ?", run_id):
                return bool(owned) and state != "queued"  # it was written, and the answer of the database was lost
            if not owned:
                raise RunNotFound(run_id)
            execute(INSERT_ENTRIES, run_id, *row)
            execute("INSERT INTO aswarm_run_work VALUES (?, ?, ?, 'queued', 0, 0, 0, 0, ?)", run_id, *work)
            if claims and self._allowed(1):
                execute(_CLAIMED, now(), run_id)
                return True
        return False

    def claim(self, most: int, version: str, agents: Sequence[str], without: Sequence[str] = ()) -> list[Claim]:
        """Become the owner of runs in the queue that have this version and one of these agents: the oldest ones first.

        `without`: runs that stay in the queue.
        """
        fits = (
            f"{_QUEUED} AND w.version = ? AND w.first_agent IN ({_marks(agents)}) AND w.run NOT IN ({_marks(without)})"
        )
        if not self._rows(f"SELECT 1 {fits} LIMIT 1", version, *agents, *without):
            self.is_limited = False
            return []
        with self._claiming() as execute:
            oldest = f"SELECT w.run, w.claims {fits} ORDER BY r.started, r.{self._order} LIMIT ?{self._skip_locked}"
            allowed = self._allowed(most)
            self.is_limited = allowed < most
            found = [Claim(run, not claims) for run, claims in execute(oldest, version, *agents, *without, allowed)]
            for claim in found:
                execute(_CLAIMED, now(), claim.run_id)
                execute("UPDATE aswarm_run SET owner = ? WHERE id = ?", self.owner, claim.run_id)
        return found

    def _claiming(self) -> AbstractContextManager[Any]:
        return self._writing()

    def _allowed(self, most: int) -> int:
        """How many of so many runs may be claimed now. Locks the limits, where there are some, until the transaction ends."""
        for name, amount, milliseconds in self._rows(f"SELECT name, amount, ms FROM aswarm_run_limits{self._locked}"):
            if name == "concurrency":
                counted = "aswarm_run ON id = run WHERE status = 'running' AND state <> 'queued'"
                ((used,),) = self._rows(f"SELECT count(*) FROM aswarm_run_work JOIN {counted}")
            else:
                # A clock that was ahead has left times that do not count.
                recent = (now() - milliseconds, now() + 1000)
                ((used,),) = self._rows(
                    "SELECT count(*) FROM aswarm_run_work WHERE claimed > ? AND claimed < ?", *recent
                )
            most = min(most, amount - used)
        return max(0, most)

    def limit(self, name: str, amount: float, seconds: float = 0) -> None:
        """Limit the runs of all processes together. `name`: "concurrency", or "starts" in so many seconds. math.inf: no limit."""
        with self._writing() as execute:
            execute("DELETE FROM aswarm_run_limits WHERE name = ?", name)
            if amount != math.inf:
                execute("INSERT INTO aswarm_run_limits VALUES (?, ?, ?)", name, int(amount), int(seconds * 1000))

    def put_back(self, run_id: str) -> None:
        """Put a run that this process owns, and does not execute, into the queue."""
        with self._writing() as execute:
            mine = "run IN (SELECT id FROM aswarm_run WHERE id = ? AND owner = ?)"
            execute(f"UPDATE aswarm_run_work SET state = 'queued' WHERE {mine}", run_id, self.owner)

    def put_back_all(self) -> None:
        """Put all runs of this process into the queue: it ends, and executes none of them."""
        with self._writing() as execute:
            mine = "SELECT id FROM aswarm_run WHERE owner = ? AND status = 'running'"
            execute(
                f"UPDATE aswarm_run_work SET state = 'queued' WHERE state <> 'queued' AND run IN ({mine})", self.owner
            )

    def put_back_claims(self, before: int, *, but: Sequence[str]) -> None:
        """Put the runs into the queue that this process has claimed before this time (ms), and does not know any more.

        The database had written the claim, and its answer was lost.
        """
        with self._writing() as execute:
            mine = "SELECT id FROM aswarm_run WHERE owner = ? AND status = 'running'"
            execute(
                f"UPDATE aswarm_run_work SET state = 'queued' WHERE state = 'claimed' AND claimed < ? AND run IN ({mine}) "
                f"AND run NOT IN ({_marks(but)})",
                before, self.owner, *but,
            )  # fmt: skip

    def out_of_reach(self, version: str, agents: Sequence[str]) -> list[tuple[str, str, int]]:
        """How many runs in the queue are not for a process of this version with these agents: version, agent and number."""
        other = f"(w.version <> ? OR w.first_agent NOT IN ({_marks(agents)}))"
        return self._rows(
            f"SELECT w.version, w.first_agent, count(*) {_QUEUED} AND {other} GROUP BY w.version, w.first_agent",
            version,
            *agents,
        )

    def take(self, run_id: str, most_deaths: float = math.inf) -> Taken | None:
        """Become the owner of a run to execute it. None if it has ended. Raises ManyDeaths if more processes have died with it."""
        with self._writing() as execute:
            mine = f"SELECT cancel FROM aswarm_run WHERE id = ? AND status = 'running'{self._locked}"
            for (cancel,) in execute(mine, run_id):
                for attempts, deaths, work in execute(
                    "SELECT attempts, deaths, work FROM aswarm_run_work WHERE run = ?", run_id
                ):
                    if deaths > most_deaths:
                        raise ManyDeaths
                    execute("UPDATE aswarm_run SET owner = ? WHERE id = ?", self.owner, run_id)
                    execute(
                        "UPDATE aswarm_run_work SET state = 'executed', attempts = attempts + 1 WHERE run = ?", run_id
                    )
                    (row,) = execute(f"SELECT {RECORD} FROM aswarm_run WHERE id = ?", run_id)
                    return Taken(record_of(row), bytes(work), attempts + 1, deaths, cancel)
        return None

    def take_to_close(self, run_id: str, agents: Sequence[str]) -> Taken | None:
        """The same for a run of this process that is to be ended. None if it has begun, and its agent is none of these."""
        if not self.is_owner(run_id):
            return None
        for agent, attempts in self._rows("SELECT first_agent, attempts FROM aswarm_run_work WHERE run = ?", run_id):
            if attempts and agent not in agents:
                return None
        return self.take(run_id)

    def survived(self, run_id: str) -> None:
        """Take back the death that another process has counted: this process had lost its lock, and lives."""
        with self._writing() as execute:
            others = "SELECT id FROM aswarm_run WHERE id = ? AND owner <> ?"
            execute(
                f"UPDATE aswarm_run_work SET deaths = deaths - 1 WHERE deaths > 0 AND run IN ({others})",
                run_id,
                self.owner,
            )

    def is_owner(self, run_id: str) -> bool:
        """Whether this process is responsible for the run, and it has not ended."""
        return bool(
            self._rows("SELECT 1 FROM aswarm_run WHERE id = ? AND owner = ? AND status = 'running'", run_id, self.owner)
        )

    def ended(self, run_ids: Sequence[str]) -> list[str]:
        """Those of the runs that do not run any more."""
        marks = ", ".join("?" * len(run_ids))
        running = {
            run_id
            for (run_id,) in self._rows(
                f"SELECT id FROM aswarm_run WHERE id IN ({marks}) AND status = 'running'", *run_ids
            )
        }
        return [run_id for run_id in run_ids if run_id not in running]

    def owners(self) -> list[str]:
        """The other processes that are responsible for runs."""
        rows = self._rows("SELECT DISTINCT owner FROM aswarm_run WHERE status = 'running'")
        return [owner for (owner,) in rows if owner != self.owner]

    def adopt(self, dead: str) -> list[Adopted]:
        """Become the owner of the runs of a dead process, and put them into the queue. A run that it executed counts a death."""
        rows: list[Any] = []
        with self._writing() as execute:
            # Locked first: a process that has only lost its lock may be about to record a run.
            died = f"SELECT id FROM aswarm_run WHERE owner = ? AND status = 'running'{self._locked}"
            run_ids = [run_id for (run_id,) in execute(died, dead)]
            for at in range(0, len(run_ids), _IDS_AT_ONCE):
                some = run_ids[at : at + _IDS_AT_ONCE]
                these = f"({', '.join('?' * len(some))})"
                execute(
                    "UPDATE aswarm_run_work SET deaths = deaths + CASE state WHEN 'executed' THEN 1 ELSE 0 END, state = 'queued' "
                    f"WHERE run IN {these}",
                    *some,
                )
                rows += execute(
                    f"SELECT {RECORD}, deaths FROM aswarm_run LEFT JOIN aswarm_run_work w ON w.run = id WHERE id IN {these}",
                    *some,
                )
                execute(f"UPDATE aswarm_run SET owner = ? WHERE id IN {these}", self.owner, *some)
        return [Adopted(record_of(row[:-1]), row[-1]) for row in rows]

    def all_records(self, status: str | None, limit: int) -> list[RunRecord]:
        """The newest runs of all users. With the status "waiting", those that wait for an answer, and have got none."""
        where = {None: "", "waiting": f"WHERE reason = 'waiting' AND {self._waits}"}.get(status, "WHERE status = ?")
        values = [status] * where.count("?")
        rows = self._rows(
            f"SELECT {RECORD} FROM aswarm_run {where} ORDER BY started DESC, {self._order} DESC LIMIT ?", *values, limit
        )
        return [record_of(row) for row in rows]

    @property
    def _waits(self) -> str:
        """Runs that wait for an answer, and have got none: no later run is in the conversation."""
        return (
            "status = 'finished' AND coalesce(reason, '') = 'waiting' AND NOT EXISTS (SELECT 1 FROM aswarm_run later WHERE "
            'later."user" = aswarm_run."user" AND later.conversation = aswarm_run.conversation AND '
            f"later.{self._order} > aswarm_run.{self._order})"
        )

    def waits(self, run_id: str) -> bool:
        """Whether the run waits for an answer, and has got none."""
        return bool(self._rows(f"SELECT 1 FROM aswarm_run WHERE id = ? AND {self._waits}", run_id))

    def stop_waiting(self, user: str, run_id: str, reason: str, row: LogRow) -> None:
        """Give a run that waits another end, unless it has got its answer. `row`: its last entries, with that end."""
        with self._writing() as execute:
            self._lock_starts(user)
            if self.waits(run_id):
                execute("UPDATE aswarm_run SET status = 'stopped', reason = ? WHERE id = ?", reason, run_id)
                changed = "UPDATE aswarm_run_entries SET data = ? WHERE run = ? AND first = ?"
                execute(changed, row.data, run_id, row.first)

    def any_record(self, run_id: str) -> RunRecord:
        """The record of a run of any user. Raises RunNotFound."""
        for row in self._rows(f"SELECT {RECORD} FROM aswarm_run WHERE id = ?", run_id):
            return record_of(row)
        raise RunNotFound(run_id)

    @property
    def _forgettable(self) -> str:
        """As of `RunLog`: only runs of a user of a service, and none that waits for an answer."""
        return f"status <> 'running' AND \"user\" <> '{NO_USER}' AND NOT ({self._waits})"

    def purgeable(self, seconds: float) -> Purgeable:
        """The runs that ended so many seconds ago or before, with the conversations that they have begun for themselves.

        A run that waits for an answer stays, and so does the first run of its own conversation until all runs of it go.
        """
        before = now() - int(seconds * 1000)
        ended = f"SELECT id, \"user\", conversation FROM aswarm_run WHERE status <> 'running' AND NOT ({self._waits}) AND ended <= ?"
        old = {run_id: (user, conversation) for run_id, user, conversation in self._rows(ended, before)}
        of_own = (
            'SELECT first.id, each.id FROM aswarm_run first JOIN aswarm_run each ON each."user" = first."user" AND '
            "each.conversation = first.conversation WHERE first.id = first.conversation"
        )
        kept = {first for first, run_id in self._rows(of_own) if run_id not in old}
        run_ids = [run_id for run_id in old if run_id not in kept]
        return Purgeable(run_ids, [old[run_id] for run_id in run_ids if old[run_id][1] == run_id])

    def _delete_rows(self, run_id: str) -> None:
        super()._delete_rows(run_id)
        self._rows("DELETE FROM aswarm_run_work WHERE run = ?", run_id)

    def tables(self) -> list[str]:
        """The statements that make the tables."""
        return [*TABLES.split(";\n"), *_TABLES]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values)) or "''"  # no id is empty
