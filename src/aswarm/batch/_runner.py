"""What works off a batch: reads items while there is room, runs them side by side, and lays their outcomes down.

Decides when an item is begun: never are more of them than the limit running or waiting to be taken. Never decides how a
run goes. Everything here happens in one supervisor task and its children; no scope of it is open in the consumer's
frames.
"""

from __future__ import annotations

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

from ._item import Item, Outcome, as_item
from ._options import Options
from ._shelf import Shelf
from ._source import Items, pulled

if TYPE_CHECKING:
    from aswarm._journal import Journal


class Run(Protocol):
    """Runs to the end, with the middleware that a batch adds."""

    def __call__(
        self, options: RunOptions, journal: Middleware | None = None, retries: Middleware | None = None, /
    ) -> Awaitable[Response]: ...


class Limit(Protocol):
    """How many items may be in memory at once: a number, or something that learns it."""

    @property
    def limit(self) -> int:
        """The number as of now, at least 1. Asked again whenever an outcome is taken."""
        ...

    def watch(self, running: Callable[[], int], grown: Callable[[], object]) -> None:
        """Ask `running` how many items there are that run; call `grown`, from any thread, when there may be more."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """A limit that stays."""

    limit: int

    def watch(self, running: Callable[[], int], grown: Callable[[], object]) -> None:
        """It does not grow."""


class Runner:
    """The working side of one batch. `work` drives it; `take` gives the outcomes that are there."""

    def __init__(self, run: Run, items: Items, options: Options, limit: Limit, journal: Journal | None = None) -> None:
        self._run = run
        self._items = items
        self._options = options
        self._limit = limit
        self._journal = journal
        self._shelf = Shelf(ordered=options.ordered)
        self._held = 0  # items that are running, or whose outcome waits
        self._running = 0
        self._call_soon = scheduler()
        self._room = anyio.Event()
        self._news = anyio.Event()
        self.has_ended = False  # nothing more will be laid down
        self._failure: BaseException | None = None
        self.has_lost = False  # the journal cannot be written: what ran from here on would be lost in a crash
        self._group: TaskGroup
        self._feeding = anyio.CancelScope()
        # Every task of an item begins with a copy of it: it sees neither what reading the items nor what another item sets.
        self._context = copy_context()

    # --- for the consumer's side ---

    def take(self) -> Outcome | None:
        """The next outcome, or None where none is there yet. Makes room for another item."""
        outcome = self._shelf.take()
        if outcome is not None:
            self._held -= 1
            self._room.set()
        return outcome

    async def wait(self) -> None:
        """Wait until something has changed."""
        if self._news.is_set():
            self._news = anyio.Event()
        await self._news.wait()

    def end(self) -> None:
        """To be called when `work` has ended."""
        self.has_ended = True
        self._news.set()

    def clear(self) -> None:
        """Throw away the outcomes that wait."""
        self._shelf.clear()

    def look_at_journal(self) -> None:
        """Note, once, that it cannot be written any more."""
        trouble = None if self._journal is None else self._journal.failure
        if trouble is not None and not self.has_lost:
            self.has_lost = True
            lost = RunError(f"the batch has ended, because its journal cannot be written: {trouble}")
            lost.__cause__ = trouble
            self._failure = self._failure or lost

    def raise_failure(self) -> None:
        """Raise, once, what ended the batch early: that of an item, or what reading the items raised."""
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame

    # --- the supervisor's task ---

    async def work(self) -> None:
        """Run until all outcomes are laid down."""
        self._limit.watch(lambda: self._running, self._wake)
        async with anyio.create_task_group() as self._group:
            with self._feeding:
                await self._feed()

    async def _feed(self) -> None:
        try:
            await self._begin_all()
        except Exception as error:  # noqa: BLE001 - raised to the reader, once all that has begun is done
            self._failure = self._failure or error
        except anyio.get_cancelled_exc_class() as error:
            # Raises where the batch is cancelled or stops; else the items awaited something that was cancelled.
            await anyio.lowlevel.checkpoint()
            self._failure = self._failure or _told(error, "reading the items: ")
        except BaseException as error:  # noqa: BLE001 - as `_work_on`
            self._end_with(error)

    async def _begin_all(self) -> None:
        index = 0
        with anyio.CancelScope() as closing:
            async with aclosing(pulled(self._items, closing)) as items:
                while await self._has_room():
                    given = await anext(items, _END)
                    if given is _END or self._feeding.cancel_called:
                        return
                    self._begin(index, given)
                    index += 1

    async def _has_room(self) -> bool:
        while self._held >= self._limit.limit:
            self._room = anyio.Event()
            await self._room.wait()
        return not self._feeding.cancel_called

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop was closed over this batch
            self._call_soon(lambda: self._room.set())  # noqa: PLW0108 - the one that is waited for then

    def _begin(self, index: int, given: object) -> None:
        self._held += 1
        self._running += 1
        self._context.run(self._group.start_soon, self._work_on, index, given)

    # --- the tasks of the items ---

    async def _work_on(self, index: int, given: object) -> None:
        try:
            self._deliver(await self._carry_out(index, given))
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and the like: raised to the reader
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        """Nothing else counts any more."""
        self._failure = error
        self._shelf.clear()
        self._group.cancel_scope.cancel()

    def _deliver(self, outcome: Outcome) -> None:
        self._running -= 1
        self._shelf.put(outcome)
        self._news.set()
        if outcome.error is not None and self._is_over():
            self._feeding.cancel()

    def _is_over(self) -> bool:
        """Whether an item that has failed is the last one to be begun."""
        self.look_at_journal()
        return self.has_lost or self._options.on_error == "stop"

    async def _carry_out(self, index: int, given: object) -> Outcome:
        begun = anyio.current_time()
        attempts = Retries(self._options.attempts, f"item {index}: ")
        item = _NOTHING
        response: Response | None = None
        error: Exception | None = None
        try:
            item = as_item(given)
            response = await self._respond(_id_of(item, index), item, attempts)
        except Exception as raised:  # noqa: BLE001 - one item's failure never touches another
            error = raised
        except anyio.get_cancelled_exc_class() as raised:
            # Raises where the batch is cancelled; else something in the run was, by somebody else.
            await anyio.lowlevel.checkpoint()
            error = _told(raised)
        left = response if error is None else getattr(error, "response", None)
        try:
            return Outcome(
                _id_of(item, index),
                index,
                response,
                error,
                anyio.current_time() - begun,
                attempts.made,
                left.usage if isinstance(left, Response) else Usage(),
                item.metadata,
            )
        finally:
            del error  # its traceback refers to this frame

    async def _respond(self, item_id: str, item: Item, attempts: Retries) -> Response:
        """The response of an item's run; or the one that the journal has."""
        options = self._options.run_options(item)
        if self._journal is None:
            return await self._run(options, None, attempts.middleware)

        def run(options: RunOptions, journal: Middleware) -> Awaitable[Response]:
            return self._run(options, journal, attempts.middleware)

        return await self._journal.run(item_id, options, run, item.context_variables)


_END = object()
_NOTHING = Item("")


def _id_of(item: Item, index: int) -> str:
    return str(index if item.id is None else item.id)


def _told(cancellation: BaseException, where: str = "") -> RunError:
    """A cancellation that came from elsewhere, as the failure that it is."""
    error = RunError(f"{where}{type(cancellation).__name__}: {cancellation}")
    error.response = getattr(cancellation, "response", None)
    error.__cause__ = cancellation
    return error
