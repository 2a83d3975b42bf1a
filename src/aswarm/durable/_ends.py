"""Waits for the ends of runs, of this process and of others: one query for all that are waited for.

Without a wait, the database is not asked. Once the runs are closed, the waits end with an error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import anyio

from aswarm._run.handlers import NO_RUN

logger = logging.getLogger("aswarm")

_LOOK_EVERY = 0.05
_IDS_AT_ONCE = 500


class _Wait:
    """So many callers wait for one run. `has_ended`: the run has; otherwise the runs are closed."""

    def __init__(self) -> None:
        self.callers = 0
        self.has_ended = False
        self.is_over = anyio.Event()


class Ends:
    """The runs that are waited for. `ended`: returns those of some runs that do not run any more."""

    def __init__(self, ended: Callable[[Sequence[str]], Awaitable[list[str]]]) -> None:
        self._ended = ended
        self._waits: dict[str, _Wait] = {}
        self._is_wanted = anyio.Event()
        self._is_closed = False

    async def wait(self, run_id: str) -> None:
        """Wait until a run has ended. Raises RuntimeError if the runs are closed before."""
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
                f"the runs were closed before the run {run_id!r} had ended; another process continues it, or this one when they "
                "are open again"
            )

    async def watch(self, errors: tuple[type[Exception], ...]) -> None:
        """Look for ends, until this is cancelled. `errors`: of the database; another look follows."""
        self._is_closed = False
        try:
            while True:
                await self._is_wanted.wait()
                await self._look(errors)
                if not self._waits:
                    self._is_wanted = anyio.Event()
                await anyio.sleep(_LOOK_EVERY)
        finally:
            self._is_closed = True
            for wait in self._waits.values():
                wait.is_over.set()

    async def _look(self, errors: tuple[type[Exception], ...]) -> None:
        run_ids = list(self._waits)
        for at in range(0, len(run_ids), _IDS_AT_ONCE):
            try:
                ended = await self._ended(run_ids[at : at + _IDS_AT_ONCE])
            except errors:
                logger.exception("the ends of runs cannot be looked up; another attempt follows", extra=NO_RUN)
                continue
            for run_id in ended:
                if (wait := self._waits.pop(run_id, None)) is not None:
                    wait.has_ended = True
                    wait.is_over.set()
