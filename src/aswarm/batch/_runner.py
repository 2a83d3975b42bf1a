"""What works off a batch: reads items while there is room, runs them side by side, and lays their outcomes down.

Decides when an item is begun: never are more of them than the limit running or waiting to be taken. Never decides how a
run goes. Everything here happens in one supervisor task and its children; no scope of it is open in the consumer's
frames.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from aswarm._agent import Response
from aswarm._errors import RunError
from aswarm._run.handlers import Middleware
from aswarm._run.options import RunOptions
from aswarm._runtime.backend import Event, clock, events, scheduler
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


Entry = tuple[int, Any]  # the place in the batch, and what the caller gave


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
        self._clock = clock()
        self._new_event = events()
        self._room = self._new_event()
        self._news = self._new_event()
        self.has_ended = False  # nothing more will be laid down
        self._failure: BaseException | None = None
        self.has_lost = False  # the journal cannot be written: what ran from here on would be lost in a crash
        # The tasks. An item that runs has one to itself; one that has ended well may serve another item.
        self._group: TaskGroup
        self._feeding = anyio.CancelScope()
        self._is_fed = False
        self._idle: list[_Desk] = []
        self._context: Context

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
            self._news = self._new_event()
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
        self._context = copy_context()
        self._limit.watch(lambda: self._running, self._wake)
        async with anyio.create_task_group() as self._group:
            with self._feeding:
                await self._feed()
            self._is_fed = True
            for desk in self._idle:
                desk.give(None)

    async def _feed(self) -> None:
        try:
            await self._begin_all()
        except Exception as error:  # noqa: BLE001 - raised to the reader, once all that has begun is done
            self._failure = self._failure or error
        except anyio.get_cancelled_exc_class() as error:
            # Raises where the batch is cancelled or stops; else the items awaited something that was cancelled.
            await anyio.lowlevel.checkpoint()
            self._failure = self._failure or _told(error, "reading the items: ")
        except BaseException as error:  # noqa: BLE001 - as `_work_at`
            self._end_with(error)

    async def _begin_all(self) -> None:
        index = 0
        with anyio.CancelScope() as closing:
            async with aclosing(pulled(self._items, closing)) as items:
                while await self._has_room():
                    given = await anext(items, _END)
                    if given is _END or self._feeding.cancel_called:
                        return
                    self._begin((index, given))
                    index += 1

    async def _has_room(self) -> bool:
        while self._held >= self._limit.limit:
            self._room = self._new_event()
            await self._room.wait()
        return not self._feeding.cancel_called

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop was closed over this batch
            self._call_soon(lambda: self._room.set())  # noqa: PLW0108 - the one that is waited for then

    def _begin(self, entry: Entry) -> None:
        self._held += 1
        self._running += 1
        if self._idle:
            self._idle.pop().give(entry)
        else:
            # In the context of who opened the batch, whatever reading the items has left in this one.
            self._context.run(self._group.start_soon, self._work_at, entry)

    # --- the tasks of the items ---

    async def _work_at(self, entry: Entry | None) -> None:
        try:
            while entry is not None:
                self._deliver(await self._carry_out(*entry))
                entry = await self._next()
        except (Exception, anyio.get_cancelled_exc_class()):
            raise
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt and the like: raised to the reader
            self._end_with(error)

    def _end_with(self, error: BaseException) -> None:
        """Nothing else counts any more."""
        self._failure = error
        self._shelf.clear()
        self._group.cancel_scope.cancel()

    async def _next(self) -> Entry | None:
        # What an item has left in the context variables of this task is not for the next one to see.
        if self._is_fed or not _same(copy_context(), self._context):
            return None
        desk = _Desk(self._new_event())
        self._idle.append(desk)
        return await desk.next()

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
        begun = self._clock()
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
                self._clock() - begun,
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


class _Desk:
    """Where a task that has nothing to do waits for an item, or for None: there will be no more."""

    __slots__ = ("_entry", "_given")

    def __init__(self, given: Event) -> None:
        self._given = given
        self._entry: Entry | None = None

    def give(self, entry: Entry | None) -> None:
        self._entry = entry
        self._given.set()

    async def next(self) -> Entry | None:
        await self._given.wait()
        return self._entry


def _id_of(item: Item, index: int) -> str:
    return str(index if item.id is None else item.id)


def _same(context: Context, other: Context) -> bool:
    return len(context) == len(other) and all(context.get(variable) is value for variable, value in other.items())


def _told(cancellation: BaseException, where: str = "") -> RunError:
    """A cancellation that came from elsewhere, as the failure that it is."""
    error = RunError(f"{where}{type(cancellation).__name__}: {cancellation}")
    error.response = getattr(cancellation, "response", None)
    error.__cause__ = cancellation
    return error
