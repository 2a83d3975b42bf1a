"""`Batch`: the context manager of a batch. It starts the batch, yields the outcomes, and stops the batch at its end.

The items run in a separate task. So no task group and no cancel scope of the batch is open around the code that reads the
outcomes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self

from aswarm._values.foreign_names import explained
from aswarm._values.output import T_co
from aswarm._values.text import NO_RUN
from aswarm.extensions import BackgroundTask

from ._host import ConcurrencyLimit, LimitsOfSwarm, RunToEnd
from ._item import AnyOutcome, Completed, Failed, Items, check_items
from ._runner import Runner
from ._settings import BatchSettings

if TYPE_CHECKING:
    from ._journal import Journal

logger = logging.getLogger("aswarm")


@dataclass(frozen=True, slots=True)
class _FixedLimit:
    limit: int

    def watch(self, running: Callable[[], int], grown: Callable[[], object], /) -> None:
        """Do nothing, because the limit never grows."""


@explained
class Batch(AsyncIterator[Completed[T_co] | Failed], Generic[T_co]):
    """The async context manager that `AsyncSwarm.batch()` returns. Inside the block, iterate over it to get the outcomes.

    Leaving the block ends the batch, even by `break` or an exception. The batch then cancels and awaits all running items,
    closes the iterator of the items, and drops unread outcomes. Several tasks may read one batch; each outcome is returned to
    only one of them.
    """

    def __init__(
        self,
        items: Items,
        settings: BatchSettings,
        *,
        run_to_end: RunToEnd,
        require_client: Callable[[], object],
        rate_limiter: LimitsOfSwarm,
        journal: str | PathLike[str] | None,
    ) -> None:
        """Check the items. `require_client`: creates the client of the event loop before any item is read, or raises."""
        check_items(items)
        self._items = items
        self._settings = settings
        self._run_to_end = run_to_end
        self._require_client = require_client
        self._rate_limiter = rate_limiter
        self._path = journal
        self._was_opened = self._is_open = False
        self._runner: Runner
        self._supervisor: BackgroundTask[None]
        self._resources: AsyncExitStack

    async def __aenter__(self) -> Self:
        if self._was_opened:
            raise RuntimeError("a batch can be opened only once; call swarm.batch(...) again")
        self._require_client()
        async with AsyncExitStack() as stack:
            limit = stack.enter_context(self._limit())
            journal = await self._journal(stack)
            self._runner = Runner(self._run_to_end, self._items, self._settings, limit, journal)
            self._resources = stack.pop_all()
        self._supervisor = BackgroundTask(self._runner.work, on_end=self._runner.end)
        self._was_opened = self._is_open = True
        return self

    async def _journal(self, stack: AsyncExitStack) -> Journal | None:
        if self._path is None:
            return None
        from ._journal import Journal  # noqa: PLC0415 - sqlite3 is imported only for a journal

        settings = self._settings
        journal = await stack.enter_async_context(Journal(self._path, settings.fingerprint, settings.agents))
        limiter = self._rate_limiter
        if limiter.has_limits:
            limiter.count_earlier(await journal.recent_requests(limiter.window))
        return journal

    @contextmanager
    def _limit(self) -> Generator[ConcurrencyLimit]:
        # Use the rate limiter even with a fixed concurrency, so that a 429 pauses all runs of the swarm.
        if self._settings.concurrency == "auto":
            with self._rate_limiter.adaptive() as limit:
                yield limit
        else:
            with self._rate_limiter.in_use():
                yield _FixedLimit(self._settings.concurrency)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyOutcome[T_co]:
        if not self._is_open:
            if self._was_opened:
                raise StopAsyncIteration
            raise RuntimeError(
                "use `async with swarm.batch(...) as outcomes:`, so that leaving the block ends the batch"
            )
        runner = self._runner
        while (outcome := runner.take()) is None:
            if runner.has_ended:
                await self._supervisor.result()
                runner.raise_failure()
                raise StopAsyncIteration
            await runner.wait()
        return outcome

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        async with self._resources:
            await self._supervisor.stop()
        self._runner.clear()
        self._runner.check_journal()  # closing writes the last entries, and this write may have failed
        try:
            self._runner.raise_failure()
        except Exception as failure:
            if error is None and self._runner.has_lost_journal:
                raise
            # The reader has left the block early, so it does not need further items. A failure to read items is only logged.
            logger.warning("the batch failed after its reader had left: %s", failure, exc_info=True, extra=NO_RUN)
