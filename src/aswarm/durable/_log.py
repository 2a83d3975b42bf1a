"""The log of durable runs: that of `aswarm.serve`, and what a run needs to be executed by any process.

Decides who is responsible for a run. The owner of a row is responsible for it: it executes the run, or has put it into the
queue, or has died; then another process becomes the owner. A process that executes a run becomes its owner first.
"""
# ruff: noqa: S608 - statements are put together from names of this module; all data is passed as parameters

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, NamedTuple

from aswarm.serve._entries import now
from aswarm.serve._log import INSERT_ENTRIES, RECORD, TABLES, Ending, LogRow, RunLog, record_of
from aswarm.serve._runs import RunNotFound, RunRecord

_IDS_AT_ONCE = 500
_WORK = """CREATE TABLE IF NOT EXISTS aswarm_run_work (
    run TEXT PRIMARY KEY, version TEXT NOT NULL, attempts INTEGER NOT NULL, deaths INTEGER NOT NULL,
    is_executed INTEGER NOT NULL, work BLOB NOT NULL
)"""


class Taken(NamedTuple):
    """A run that this process executes now. `attempts`: how many executions have begun. `cancel`: why it is to be stopped."""

    record: RunRecord
    work: bytes
    attempts: int
    cancel: str | None


class ManyDeaths(Exception):  # noqa: N818 - it is no error
    """So many processes have died with a run that it is executed with care."""


class Adopted(NamedTuple):
    """A run of a dead process, which belongs to this one now. `deaths`: how many processes have died with it."""

    record: RunRecord
    deaths: int | None


class DurableLog(RunLog):
    """The log in a SQLite file, for the processes of one machine."""

    _busy_seconds: ClassVar[float] = 30.0
    _blob: ClassVar[str] = "BLOB"

    def __init__(self, path: str, *, owner: str) -> None:
        self.deleted: list[str] = []  # runs that the engine has to delete too
        super().__init__(path, lease=0, owner=owner)

    def _open(self) -> None:
        super()._open()
        with self._writing() as execute:
            execute(_WORK.replace("BLOB", self._blob))

    def begun(self, run_id: str, row: LogRow, version: str, work: bytes) -> None:
        """Write the first entry of a run, and its work. Raises RunNotFound if the run is not that of this process any more."""
        with self._writing() as execute:
            if not self._owned({run_id: row}):
                raise RunNotFound(run_id)
            execute(INSERT_ENTRIES, run_id, *row)
            execute("INSERT INTO aswarm_run_work VALUES (?, ?, 0, 0, 0, ?)", run_id, version, work)

    def take(self, run_id: str, most_deaths: float = math.inf) -> Taken | None:
        """Become the owner of a run to execute it. None if it has ended. Raises ManyDeaths if more processes have died with it."""
        with self._writing() as execute:
            mine = f"SELECT cancel FROM aswarm_run WHERE id = ? AND status = 'running'{self._locked}"
            for (cancel,) in execute(mine, run_id):
                for (deaths,) in execute("SELECT deaths FROM aswarm_run_work WHERE run = ?", run_id):
                    if deaths > most_deaths:
                        raise ManyDeaths
                execute("UPDATE aswarm_run SET owner = ? WHERE id = ?", self.owner, run_id)
                execute("UPDATE aswarm_run_work SET attempts = attempts + 1, is_executed = 1 WHERE run = ?", run_id)
                for work, attempts in execute("SELECT work, attempts FROM aswarm_run_work WHERE run = ?", run_id):
                    (row,) = execute(f"SELECT {RECORD} FROM aswarm_run WHERE id = ?", run_id)
                    return Taken(record_of(row), bytes(work), attempts, cancel)
        return None

    def is_owner(self, run_id: str) -> bool:
        """Whether this process is responsible for the run, and it has not ended."""
        return bool(
            self._rows("SELECT 1 FROM aswarm_run WHERE id = ? AND owner = ? AND status = 'running'", run_id, self.owner)
        )

    def hand_back(self, run_id: str) -> None:
        """Note that this process does not execute the run any more, and is still responsible for it."""
        with self._writing() as execute:
            execute("UPDATE aswarm_run_work SET is_executed = 0 WHERE run = ?", run_id)

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
        """Become the owner of the runs of a dead process. A run that it executed counts a death."""
        rows: list[Any] = []
        with self._writing() as execute:
            # Locked first: a process that has only lost its lock may be about to record a run.
            died = f"SELECT id FROM aswarm_run WHERE owner = ? AND status = 'running'{self._locked}"
            run_ids = [run_id for (run_id,) in execute(died, dead)]
            for at in range(0, len(run_ids), _IDS_AT_ONCE):
                some = run_ids[at : at + _IDS_AT_ONCE]
                these = f"({', '.join('?' * len(some))})"
                execute(
                    f"UPDATE aswarm_run_work SET deaths = deaths + is_executed, is_executed = 0 WHERE run IN {these}",
                    *some,
                )
                rows += execute(
                    f"SELECT {RECORD}, deaths FROM aswarm_run LEFT JOIN aswarm_run_work w ON w.run = id WHERE id IN {these}",
                    *some,
                )
                execute(f"UPDATE aswarm_run SET owner = ? WHERE id IN {these}", self.owner, *some)
        return [Adopted(record_of(row[:-1]), row[-1]) for row in rows]

    def end(self, run_id: str, row: LogRow, ending: Ending) -> bool:
        """Write the last entry of a run that this process owns and does not execute. Returns whether it was its owner."""
        return not self.append({run_id: row}, {run_id: ending})

    def versions(self) -> dict[str, int]:
        """How many runs have not ended, by version."""
        return dict(
            self._rows(
                "SELECT version, count(*) FROM aswarm_run JOIN aswarm_run_work ON run = id WHERE status = 'running' "
                "GROUP BY version"
            )
        )

    def all_records(self, status: str | None, limit: int) -> list[RunRecord]:
        """The newest runs of all users. With the status "waiting", those that wait for an answer, and have got none."""
        where = {
            None: "",
            "waiting": f"WHERE status = 'finished' AND reason = 'waiting' AND NOT EXISTS ({self._later})",
        }.get(status, "WHERE status = ?")
        values = [status] * where.count("?")
        rows = self._rows(
            f"SELECT {RECORD} FROM aswarm_run {where} ORDER BY started DESC, {self._order} DESC LIMIT ?", *values, limit
        )
        return [record_of(row) for row in rows]

    @property
    def _later(self) -> str:
        """Later runs of the conversation of a run."""
        return (
            'SELECT 1 FROM aswarm_run later WHERE later."user" = aswarm_run."user" AND '
            f"later.conversation = aswarm_run.conversation AND later.{self._order} > aswarm_run.{self._order}"
        )

    def any_record(self, run_id: str) -> RunRecord:
        """The record of a run of any user. Raises RunNotFound."""
        for row in self._rows(f"SELECT {RECORD} FROM aswarm_run WHERE id = ?", run_id):
            return record_of(row)
        raise RunNotFound(run_id)

    def purge(self, seconds: float) -> None:
        """Delete the runs that ended so many seconds ago, or before."""
        self.forget(now() - int(seconds * 1000) + 1, sys.maxsize, sys.maxsize)

    def withdraw(self, run_id: str) -> None:
        """As above, with what it has: the connection may have been lost after it was recorded."""
        super().withdraw(run_id)
        for table in ("aswarm_run_work", "aswarm_run_entries"):
            self._rows(f"DELETE FROM {table} WHERE run = ? AND NOT EXISTS (SELECT 1 FROM aswarm_run WHERE id = run)", run_id)  # fmt: skip

    def withdraw_begun(self, run_id: str) -> None:
        """Delete a run of this process that is not recorded: the connection was lost when it began."""
        if self.is_owner(run_id) and not self.is_recorded(run_id):
            self.withdraw(run_id)

    def is_recorded(self, run_id: str) -> bool:
        """Whether the run has what another process needs to execute it."""
        return bool(self._rows("SELECT 1 FROM aswarm_run_work WHERE run = ?", run_id))

    def _delete(self, run_ids: AbstractSet[str]) -> None:
        super()._delete(run_ids)
        with self._writing() as execute:
            for run_id in run_ids:
                execute("DELETE FROM aswarm_run_work WHERE run = ?", run_id)
        self.deleted.extend(run_ids)

    def tables(self) -> list[str]:
        """The statements that make the tables."""
        return [*TABLES.split(";\n"), _WORK]
