"""`Ends` waits for the ends of runs in any process. One query serves all waiting callers; without callers, there is no query.

When the `DurableRuns` are closed, the waiting callers get an error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import anyio

from aswarm._record.entries import Entry
from aswarm._sql.transactions import chunks
from aswarm._values.errors import StoreError
from aswarm._values.text import NO_RUN
from aswarm.runs._readers import Changes

logger = logging.getLogger("aswarm")

_QUERY_EVERY = 1.0  # seconds; usually a change of the log starts the next query earlier
_IDS_AT_ONCE = 500


class _Wait:
    """The wait for the end of one run. `has_ended`: whether the run has ended. `last`: the last entry of the run, if known."""

    def __init__(self) -> None:
        self.callers = 0
        self.has_ended = False
        self.last: Entry | None = None
        self.is_over = anyio.Event()


class Ends:
    """The waits of all callers. `ended`: gets run ids, and returns the ids of the runs that have ended."""

    def __init__(self, ended: Callable[[Sequence[str]], Awaitable[list[str]]]) -> None:
        self._ended = ended
        self._waits: dict[str, _Wait] = {}
        self._is_wanted = anyio.Event()
        self._is_closed = False

    async def wait(self, run_id: str) -> Entry | None:
        """Wait for the end of a run. Returns the entry passed to `note`.

        Raises RuntimeError if the `DurableRuns` are closed before the run ends.
        """
        wait = self._waits.setdefault(run_id, _Wait())
        wait.callers += 1
        self._is_wanted.set()
        try:
            if not self._is_closed:
                await wait.is_over.wait()
        finally:
            wait.callers -= 1
            if not wait.callers and self._waits.get(run_id) is wait:
                del self._waits[run_id]
        if not wait.has_ended:
            raise RuntimeError(
                f"the runs were closed before the end of the run {run_id!r}. Another process continues the run, or this "
                "process continues it when it opens the runs again"
            )
        return wait.last

    def note(self, run_id: str, last: Entry | None = None) -> None:
        """Wake the callers that wait for a run. `last`: the last entry of the run, if the run ended in this process."""
        if (wait := self._waits.pop(run_id, None)) is not None:
            wait.has_ended, wait.last = True, last
            wait.is_over.set()

    async def watch(self, changes: Changes) -> None:
        """After each change of the log, query which runs have ended, until cancelled."""
        self._is_closed = False
        try:
            while True:
                await self._is_wanted.wait()
                self._is_wanted = anyio.Event()
                change = changes.waiter()
                await self._query()
                if self._waits:
                    with anyio.move_on_after(_QUERY_EVERY):
                        await change()
                    self._is_wanted.set()
        finally:
            self._is_closed = True
            for wait in self._waits.values():
                wait.is_over.set()

    async def _query(self) -> None:
        for some in chunks(list(self._waits), _IDS_AT_ONCE):
            try:
                ended = await self._ended(some)
            except StoreError:
                logger.exception("the ends of runs cannot be looked up; another attempt follows", extra=NO_RUN)
                continue
            for run_id in ended:
                self.note(run_id)
