"""`Batch`: the context manager of a batch, and its working side, the `Runner`, which reads items and queues their outcomes.

The items run in a separate task. So no task group and no cancel scope of the batch is open around the code that reads the
outcomes.

`Runner` decides when an item starts. The number of running items plus unread outcomes never exceeds the limit. All work is done
in one supervisor task and its children, so none of their scopes is open around the consumer's code.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, aclosing, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from aswarm._runtime.backend import scheduler
from aswarm._values.agent import Response
from aswarm._values.errors import RunError
from aswarm._values.output import T_co
from aswarm._values.public_names import explained
from aswarm._values.text import NO_RUN
from aswarm._values.usage import Usage
from aswarm.extensions import BackgroundTask
from aswarm.middleware._retry import Retries

from ._item import AnyOutcome, Completed, Failed, Item, Items, as_item, check_items, read_items, response_of
from ._settings import BatchSettings, ConcurrencyLimit, LimitsOfSwarm, RunToEnd

if TYPE_CHECKING:
    from ._journal import Journal


class Runner:
    """The working side of one batch. `work` runs all items; `take` returns the outcomes."""

    def __init__(
        self,
        run_to_end: RunToEnd,
        items: Items,
        settings: BatchSettings,
        limit: ConcurrencyLimit,
        journal: Journal | None = None,
    ) -> None:
        self._run_to_end = run_to_end
        self._items = items
        self._settings = settings
        self._limit = limit
        self._journal = journal
        self._ready: deque[AnyOutcome] = deque()  # outcomes that the consumer can read now
        # In an ordered batch, the outcomes that must wait for an earlier outcome, by index.
        self._early: dict[int, AnyOutcome] = {}
        self._next = 0
        self._in_memory = 0  # the number of running items and unread outcomes
        self._running = 0
        self._call_soon = scheduler()
        self._has_capacity = anyio.Event()
        self._has_news = anyio.Event()  # a new outcome, or the end of the work
        self.has_ended = False  # whether there will be no further outcome
        self.has_lost_journal = False  # whether the journal cannot be written; a crash would then lose all further work
        self._failure: BaseException | None = None
        self._group: TaskGroup
        self._reading = anyio.CancelScope()
        # Each item runs in a copy of this context, so other items and the iterator cannot change its contextvars.
        self._context = copy_context()

    # --- for the consumer's side ---

    def take(self) -> AnyOutcome | None:
        """Return the next outcome, or None if no outcome is ready. Afterwards, another item may start."""
        if not self._ready:
            return None
        self._in_memory -= 1
        self._has_capacity.set()
        return self._ready.popleft()

    async def wait(self) -> None:
        """Wait for an outcome, or for the end of the work."""
        if self._has_news.is_set():
            self._has_news = anyio.Event()
        await self._has_news.wait()

    def end(self) -> None:
        self.has_ended = True
        self._has_news.set()

    def clear(self) -> None:
        self._ready.clear()
        self._early.clear()

    def check_journal(self) -> None:
        """If the journal cannot be written, save a RunError for `raise_failure`. Only the first call saves it."""
        cause = None if self._journal is None else self._journal.failure
        if cause is not None and not self.has_lost_journal:
            self.has_lost_journal = True
            error = RunError(f"the batch has ended, because its journal cannot be written: {cause}")
            error.__cause__ = cause
            self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise the exception that has ended the batch early (of an item, the iterator or the journal). Raise it only once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame: avoid a reference cycle

    # --- the supervisor's task ---

    async def work(self) -> None:
        """Run until all outcomes are queued."""
        self._limit.watch(lambda: self._running, self._wake)
        async with anyio.create_task_group() as self._group:
            with self._reading:
                await self._read_all()

    async def _read_all(self) -> None:
        try:
            await self._start_all()
        except Exception as error:  # noqa: BLE001 - raised to the reader after the end of all running items
            self._failure = self._failure or error
        except anyio.get_cancelled_exc_class() as error:
            # The checkpoint raises if the batch is cancelled or stops. If not, the iterator has awaited a cancelled task.
            await anyio.lowlevel.checkpoint()
            self._failure = self._failure or _as_run_error(error, "reading the items: ")
        except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt or the like: raised to the reader
            self._end_with(error)

    async def _start_all(self) -> None:
        index = 0
        with anyio.CancelScope() as closing:
            async with aclosing(read_items(self._items, closing)) as items:
                while await self._may_read():
                    value = await anext(items, _END)
                    if value is _END or self._reading.cancel_called:
                        return
                    self._in_memory += 1
                    self._running += 1
                    self._context.run(self._group.start_soon, self._run_in_task, index, value)
                    index += 1

    async def _may_read(self) -> bool:
        while self._in_memory >= self._limit.limit:
            self._has_capacity = anyio.Event()
            await self._has_capacity.wait()
        return not self._reading.cancel_called

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the event loop was closed before the end of the batch
            self._call_soon(lambda: self._has_capacity.set())  # noqa: PLW0108 - reads the attribute late: it may change

    # --- the tasks of the items ---

    async def _run_in_task(self, index: int, value: object) -> None:
        try:
            self._deliver(await self._run_item(index, value))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt or the like: raised to the reader
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        """End the whole batch at once, and drop its outcomes."""
        self._failure = error
        self.clear()
        self._group.cancel_scope.cancel()

    def _deliver(self, outcome: AnyOutcome) -> None:
        self._running -= 1
        if self._settings.ordered:
            self._early[outcome.index] = outcome
            while (due := self._early.pop(self._next, None)) is not None:
                self._ready.append(due)
                self._next += 1
        else:
            self._ready.append(outcome)
        self._has_news.set()
        if outcome.error is not None:
            self.check_journal()
            if self.has_lost_journal or self._settings.on_error == "stop":
                self._reading.cancel()

    async def _run_item(self, index: int, value: object) -> AnyOutcome:
        start = anyio.current_time()
        retries = Retries(self._settings.attempts, f"item {index}: ")
        item = _NO_ITEM
        result: Response | Exception
        try:
            item = as_item(value)
            result = await self._respond(_id_of(item, index), item, retries)
        except Exception as raised:  # noqa: BLE001 - the failure of an item affects no other item
            result = raised
        except anyio.get_cancelled_exc_class() as raised:
            # The checkpoint raises if the batch is cancelled. Otherwise other code has cancelled something in the run.
            await anyio.lowlevel.checkpoint()
            result = _as_run_error(raised)
        name, seconds = _id_of(item, index), anyio.current_time() - start
        try:
            if isinstance(result, Response):
                return Completed(name, index, result, None, seconds, retries.attempts_made, result.usage, item.metadata)
            partial = response_of(None, result)
            usage = Usage() if partial is None else partial.usage
            return Failed(name, index, None, seconds, retries.attempts_made, usage, item.metadata, error=result)
        finally:
            del result  # the traceback of an error refers to this frame: avoid a reference cycle

    def _respond(self, item_id: str, item: Item, retries: Retries) -> Awaitable[Response]:
        options = self._settings.run_options(item)
        if self._journal is None:
            return self._run_to_end(options, None, retries.middleware)

        def run(options: Any, recorder: Any) -> Awaitable[Response]:
            return self._run_to_end(options, recorder, retries.middleware)

        return self._journal.run(item_id, options, run, item.context_variables)


_END = object()
_NO_ITEM = Item("")


def _id_of(item: Item, index: int) -> str:
    return str(index if item.id is None else item.id)


def _as_run_error(cancellation: BaseException, where: str = "") -> RunError:
    """Return a RunError for a cancellation that other code caused."""
    error = RunError(f"{where}{type(cancellation).__name__}: {cancellation}")
    error.response = getattr(cancellation, "response", None)
    error.__cause__ = cancellation
    return error


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
