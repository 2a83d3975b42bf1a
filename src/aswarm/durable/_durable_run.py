"""`DurableRun`: one run of `DurableRuns`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from aswarm._record.entries import Entry
from aswarm._values.decisions import Decisions
from aswarm.runs._run import Run
from aswarm.runs._runs import AnswersRefused, RunActive, RunRecord

if TYPE_CHECKING:
    from ._durable_runs import DurableRuns


class DurableRun(Run):
    """A `Run` of `DurableRuns`. Any process that shares the database can get it: `await runs.get_run(run_id)`.

    The process that executes the run gets a live entry at once. Other processes get it about 0.1 s later.
    """

    def __init__(self, runs: DurableRuns, record: RunRecord) -> None:
        super().__init__(runs, record)
        self._durable_runs = runs

    async def wait(self) -> RunRecord:
        """Wait for the end of the run, and return its record. It also returns if the run waits for an answer.

        Raises RuntimeError if the `DurableRuns` object is closed before the end.
        """
        await self._durable_runs._notifier.end_of(self.id)
        self.record = await self._runs.get(self.id, user=self.record.user)
        return self.record

    async def last_entry(self) -> Entry:
        """Wait for the end of the run. Returns the last entry of its log: RunFinished, RunFailed or RunStopped.

        Raises RunNotFound if the log was deleted.
        """
        last = await self._durable_runs._notifier.end_of(self.id)  # None if another process has ended the run
        if last is None:
            last = await self._durable_runs._last_of(self.id)
        self._note_end(last)
        return last

    async def answer(self, decisions: Decisions, *, key: str | None = None) -> Self:
        """See `Run.answer`. Raises AnswersRefused also if the conversation already has a later run."""
        try:
            return await super().answer(decisions, key=key)
        except RunActive as active:
            if active.run_id == self.id:
                raise
            text = f"the run {self.id!r} does not wait for an answer; the later run {active.run_id!r} is active"
            raise AnswersRefused(text, code="call_not_open", status_code=409) from active
