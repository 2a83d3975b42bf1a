"""The working side of a batch: reads items, runs them side by side, and queues their outcomes.

Decides when an item begins: the items that run, and the outcomes that wait for the consumer, are never more than the
limit. Never decides how a run goes. All of it happens in one supervisor task and its children; none of their scopes is
open in the consumer's frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from aswarm._agent import Response
from aswarm._errors import RunError
from aswarm._run.handlers import Middleware
from aswarm._run.options import RunOptions
from aswarm._runtime.backend import scheduler
from aswarm._usage import Usage
from aswarm.middleware._retry import Retries

from ._item import AnyOutcome, Completed, Failed, Item, as_item, response_of
from ._settings import BatchSettings
from ._source import Items, read_items

if TYPE_CHECKING:
    from aswarm._journal import Journal


class RunToEnd(Protocol):
    """Runs one conversation to its end, with the middleware that a batch adds."""

    def __call__(
        self, options: RunOptions, journal: Middleware | None = None, retries: Middleware | None = None, /
    ) -> Awaitable[Response]: ...


class ConcurrencyLimit(Protocol):
    """How many items may be in memory at once: a fixed number, or one that changes."""

    @property
    def limit(self) -> int:
        """The number now, at least 1. It is read again before each item."""
        ...

    def watch(self, running: Callable[[], int], grown: Callable[[], object]) -> None:
        """Keep both: `running` returns how many items run; call `grown`, from any thread, when the limit grows."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLimit:
    """A limit that does not change."""

    limit: int

    def watch(self, running: Callable[[], int], grown: Callable[[], object]) -> None:
        """Keep nothing: this limit never grows."""


class OutcomeQueue:
    """Outcomes that wait for the consumer: in the order in which they finished, or in the order of the batch."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._ready: deque[AnyOutcome] = deque()
        self._early: dict[int, AnyOutcome] = {}  # by index: an outcome before them is still missing
        self._next = 0

    def put(self, outcome: AnyOutcome) -> None:
        """Add an outcome."""
        if not self._ordered:
            self._ready.append(outcome)
            return
        self._early[outcome.index] = outcome
        while (due := self._early.pop(self._next, None)) is not None:
            self._ready.append(due)
            self._next += 1

    def take(self) -> AnyOutcome | None:
        """Remove the next outcome and return it; None if there is none yet."""
        return self._ready.popleft() if self._ready else None

    def clear(self) -> None:
        """Drop all outcomes."""
        self._ready.clear()
        self._early.clear()


class Runner:
    """The working side of one batch. `work` runs all items; `take` returns finished outcomes."""

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
        self._outcomes = OutcomeQueue(ordered=settings.ordered)
        self._in_memory = 0  # items that run, and outcomes that wait
        self._running = 0
        self._call_soon = scheduler()
        self._has_capacity = anyio.Event()
        self._has_news = anyio.Event()  # an outcome is there, or the work has ended
        self.has_ended = False  # no further outcome comes
        self.has_lost_journal = False  # the journal cannot be written: a crash would lose what runs from now on
        self._failure: BaseException | None = None
        self._group: TaskGroup
        self._reading = anyio.CancelScope()
        # The task of each item starts in a copy: it does not see what the items' iterator or another item sets.
        self._context = copy_context()

    # --- for the consumer's side ---

    def take(self) -> AnyOutcome | None:
        """The next outcome, or None if there is none yet. After it another item may begin."""
        outcome = self._outcomes.take()
        if outcome is not None:
            self._in_memory -= 1
            self._has_capacity.set()
        return outcome

    async def wait(self) -> None:
        """Wait for an outcome, or for the end of the work."""
        if self._has_news.is_set():
            self._has_news = anyio.Event()
        await self._has_news.wait()

    def end(self) -> None:
        """Note that `work` has ended."""
        self.has_ended = True
        self._has_news.set()

    def clear(self) -> None:
        """Drop the outcomes that wait."""
        self._outcomes.clear()

    def check_journal(self) -> None:
        """Make it the failure of the batch, once, if the journal cannot be written any more."""
        cause = None if self._journal is None else self._journal.failure
        if cause is not None and not self.has_lost_journal:
            self.has_lost_journal = True
            error = RunError(f"the batch has ended, because its journal cannot be written: {cause}")
            error.__cause__ = cause
            self._failure = self._failure or error

    def raise_failure(self) -> None:
        """Raise, once, what ended the batch early: an exception of an item, of the iterator or of the journal."""
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame

    # --- the supervisor's task ---

    async def work(self) -> None:
        """Run until all outcomes are queued."""
        self._limit.watch(lambda: self._running, self._wake)
        async with anyio.create_task_group() as self._group:
            with self._reading:
                await self._read_all()

    async def _read_all(self) -> None:
        try:
            await self._begin_all()
        except Exception as error:  # noqa: BLE001 - raised to the reader once all items that have begun are finished
            self._failure = self._failure or error
        except anyio.get_cancelled_exc_class() as error:
            # Raises if the batch is cancelled or stops. Otherwise the iterator awaited something that was cancelled.
            await anyio.lowlevel.checkpoint()
            self._failure = self._failure or _as_run_error(error, "reading the items: ")
        except BaseException as error:  # noqa: BLE001 - as in `_run_in_task`
            self._end_with(error)

    async def _begin_all(self) -> None:
        index = 0
        with anyio.CancelScope() as closing:
            async with aclosing(read_items(self._items, closing)) as items:
                while await self._may_read():
                    given = await anext(items, _END)
                    if given is _END or self._reading.cancel_called:
                        return
                    self._begin(index, given)
                    index += 1

    async def _may_read(self) -> bool:
        while self._in_memory >= self._limit.limit:
            self._has_capacity = anyio.Event()
            await self._has_capacity.wait()
        return not self._reading.cancel_called

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the event loop was closed before the batch was left
            self._call_soon(lambda: self._has_capacity.set())  # noqa: PLW0108 - the event of that moment

    def _begin(self, index: int, given: object) -> None:
        self._in_memory += 1
        self._running += 1
        self._context.run(self._group.start_soon, self._run_in_task, index, given)

    # --- the tasks of the items ---

    async def _run_in_task(self, index: int, given: object) -> None:
        try:
            self._deliver(await self._run_item(index, given))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and the like: raised to the reader
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        """End the whole batch at once; its outcomes are dropped."""
        self._failure = error
        self._outcomes.clear()
        self._group.cancel_scope.cancel()

    def _deliver(self, outcome: AnyOutcome) -> None:
        self._running -= 1
        self._outcomes.put(outcome)
        self._has_news.set()
        if outcome.error is not None and self._stops_at_error():
            self._reading.cancel()

    def _stops_at_error(self) -> bool:
        self.check_journal()
        return self.has_lost_journal or self._settings.on_error == "stop"

    async def _run_item(self, index: int, given: object) -> AnyOutcome:
        began = anyio.current_time()
        retries = Retries(self._settings.attempts, f"item {index}: ")
        item = _NO_ITEM
        ended: Response | Exception
        try:
            item = as_item(given)
            ended = await self._respond(_id_of(item, index), item, retries)
        except Exception as raised:  # noqa: BLE001 - one item's failure never touches another
            ended = raised
        except anyio.get_cancelled_exc_class() as raised:
            # Raises if the batch is cancelled. Otherwise other code has cancelled something in the run.
            await anyio.lowlevel.checkpoint()
            ended = _as_run_error(raised)
        name, seconds = _id_of(item, index), anyio.current_time() - began
        try:
            if isinstance(ended, Response):
                return Completed(name, index, ended, None, seconds, retries.made, ended.usage, item.metadata)
            known = response_of(None, ended)
            usage = Usage() if known is None else known.usage
            return Failed(name, index, None, seconds, retries.made, usage, item.metadata, error=ended)
        finally:
            del ended  # the traceback of an error refers to this frame

    async def _respond(self, item_id: str, item: Item, retries: Retries) -> Response:
        """The response of an item: that of its run, or the recorded one."""
        options = self._settings.run_options(item)
        if self._journal is None:
            return await self._run_to_end(options, None, retries.middleware)

        def run(options: RunOptions, journal: Middleware) -> Awaitable[Response]:
            return self._run_to_end(options, journal, retries.middleware)

        return await self._journal.run(item_id, options, run, item.context_variables)


_END = object()
_NO_ITEM = Item("")


def _id_of(item: Item, index: int) -> str:
    return str(index if item.id is None else item.id)


def _as_run_error(cancellation: BaseException, where: str = "") -> RunError:
    """A cancellation that other code caused, as a failure."""
    error = RunError(f"{where}{type(cancellation).__name__}: {cancellation}")
    error.response = getattr(cancellation, "response", None)
    error.__cause__ = cancellation
    return error
