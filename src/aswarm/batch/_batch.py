"""`Batch`: the reading side of a batch. Opens it, gives its outcomes, and ends it however the reader leaves.

No task group or cancel scope is open in the reader's frames while it holds an outcome: what runs belongs to a task of
its own.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Self

from aswarm._rate_limits.rate_limiter import RateLimiter
from aswarm._runtime.backend import BackgroundTask

from ._item import Outcome
from ._options import Options
from ._runner import Fixed, Limit, Run, Runner
from ._source import Items, check_items

if TYPE_CHECKING:
    from aswarm._journal import Journal

logger = logging.getLogger("aswarm")


class Batch(AsyncIterator[Outcome]):
    """What `AsyncSwarm.batch()` returns: `async with` it, then iterate over the outcomes.

    Leaving the block, in whatever way, ends the batch: what runs is cancelled and awaited, the items are closed, and
    outcomes that were not taken are dropped. Several tasks may read one batch; each outcome goes to one of them.
    """

    def __init__(
        self,
        run: Run,
        items: Items,
        options: Options,
        pacing: RateLimiter,
        prepare: Callable[[], object],
        journal: str | PathLike[str] | None,
    ) -> None:
        check_items(items)
        self._run = run
        self._items = items
        self._options = options
        self._rate_limiter = pacing
        self._prepare = prepare
        self._journal = journal
        self._was_opened = self._is_open = False
        self._runner: Runner
        self._supervised: BackgroundTask[None]
        self._opened: AsyncExitStack

    async def __aenter__(self) -> Self:
        if self._was_opened:
            raise RuntimeError("a batch is opened once; make another one with swarm.batch(...)")
        self._prepare()
        async with AsyncExitStack() as stack:
            limit = stack.enter_context(self._limit())
            journal = (
                None if self._journal is None else await stack.enter_async_context(self._journal_at(self._journal))
            )
            self._runner = Runner(self._run, self._items, self._options, limit, journal)
            self._opened = stack.pop_all()
        self._supervised = BackgroundTask(self._runner.work, on_end=self._runner.end)
        self._was_opened = self._is_open = True
        return self

    @contextmanager
    def _limit(self) -> Generator[Limit, None, None]:
        # Also where the number stays: a 429 pauses all runs of the swarm while there is a batch.
        if self._options.concurrency == "auto":
            with self._rate_limiter.adaptive() as limit:
                yield limit
        else:
            with self._rate_limiter.in_use():
                yield Fixed(self._options.concurrency)

    def _journal_at(self, path: str | PathLike[str]) -> Journal:
        from aswarm._journal import Journal  # noqa: PLC0415 - sqlite3 is for those who want one

        return Journal(path, self._options.fingerprint)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome:
        if not self._is_open:
            if self._was_opened:
                raise StopAsyncIteration
            raise RuntimeError(
                "use `async with swarm.batch(...) as outcomes:`, so that leaving the block ends the batch"
            )
        runner = self._runner
        while (outcome := runner.take()) is None:
            if runner.has_ended:
                await self._supervised.result()
                runner.raise_failure()
                raise StopAsyncIteration
            await runner.wait()
        return outcome

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        async with self._opened:
            await self._supervised.stop()
        self._runner.clear()
        self._runner.look_at_journal()  # its last lot was written just now
        try:
            self._runner.raise_failure()
        except Exception as failure:
            if error is None and self._runner.has_lost:
                raise
            # Who leaves early wants no more items; whether they had been read so far is chance.
            logger.warning("the batch failed, after it had been left: %s", failure, exc_info=True)
