"""Event loops of a universe: asyncio's own loop with a virtual clock, and with the real clock for the confirmation.

Ready callbacks run in the order of `call_soon`, and timers in the order of their times, because asyncio does the same. The
choices are the times of arrivals (I/O, steps of threads), the order of simultaneous arrivals, and stalls of the loop.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeAlias, cast

from ._endless import MOST_STEPS, Endless
from ._order import OrderedTask, Places

_STEP = 1e-5  # seconds of one iteration, so that a program that waits for a deadline reaches it
_STEPS_OF_CLOSING = 10_000
_REPORT_DELAYS = (0.0, 0.0, 0.001, 0.02)  # from a callback of a thread to its call on the loop
_DEADLOCK = "each task waits for another one, or for a thread of its own; use asyncio.to_thread, not anyio.to_thread"
_NO_SOCKETS = "a universe has no sockets and no subprocesses: wait with `await world.pause(...)`, or pass in an object without I/O"
Arrival: TypeAlias = tuple[float, int, asyncio.Handle]


class Deadlock(Exception):  # noqa: N818 - named after the event
    """No callback, no timer and no arrival is left, and the program has not ended."""


class Owner(Protocol):
    """A process of the universe, which owns tasks and callbacks."""

    is_dead: bool

    def step(self, callback: Callable[..., object], *args: Any) -> None:
        """Call the callback, unless the process is dead."""
        ...

    def add(self, task: asyncio.Task[Any]) -> None:
        """Note a new task of the process."""
        ...


owner: ContextVar[Owner | None] = ContextVar("aswarm_process", default=None)
"""The process that a callback belongs to; None for the world around the processes."""


def _owned(callback: Callable[..., object], context: Context | None) -> Callable[..., object]:
    process = owner.get() if context is None else context.get(owner)
    return callback if process is None else partial(process.step, callback)


class ProcessLoop(asyncio.BaseEventLoop):
    """An event loop that drops the callbacks of dead processes.

    A killed process runs no `finally` block, so its tasks cannot be cancelled: they must never be resumed.

    `seed`: decides the order of sets of tasks and of cancel scopes.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.places = Places(seed)
        self.set_task_factory(self._new_task)
        self.reported: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.reported.append(context))
        self._owners: dict[int, Owner] = {}  # by the id of an async generator
        self.steps: int = 0
        self.endless: Endless | None = None

    def allow_closing(self) -> None:
        """Allow some more steps, in which the tasks of the program are cancelled."""
        self.endless = None

    def arrive(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function after a delay, as the selector does for I/O."""
        return self.call_later(delay, callback, *args, context=context)

    @contextmanager
    def in_thread(self) -> Generator[None]:
        """Mark the block as the work of a thread."""
        yield

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = super().create_task(coro, **options)
        context = options.get("context")
        process = owner.get() if context is None else context.get(owner)
        if process is not None:
            process.add(task)
        return task

    def _new_task(self, _: object, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return OrderedTask(coro, loop=self, **options)

    async def _refuse(self, *_: object, **__: object) -> Any:
        """Fail the universe, also if the program catches the exception: a tool returns its text to the model."""
        self.call_exception_handler({"message": _NO_SOCKETS})
        raise NotImplementedError(_NO_SOCKETS)

    # The real loop refuses them too: a confirmation must not repeat real requests.
    getaddrinfo = create_connection = create_server = sock_connect = _refuse
    create_datagram_endpoint = subprocess_exec = subprocess_shell = _refuse

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon(_owned(callback, context), *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return super().call_at(when, _owned(callback, context), *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon_threadsafe(_owned(callback, context), *args, context=context)

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        super()._asyncgen_firstiter_hook(agen)  # type: ignore[misc]
        self._owners.pop(id(agen), None)
        if (process := owner.get()) is not None:
            self._owners[id(agen)] = process

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        process = self._owners.pop(id(agen), None)
        if process is None or not process.is_dead:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def forget_generators(self, process: Owner) -> None:
        """Do not close the generators of a dead process at the end of the loop."""
        generators = cast("set[Any]", self._asyncgens)  # type: ignore[attr-defined]
        for agen in list(generators):
            if self._owners.get(id(agen)) is process:
                generators.discard(agen)


class RealLoop(ProcessLoop, asyncio.SelectorEventLoop):  # pyright: ignore[reportIncompatibleMethodOverride] - asyncio calls it
    """asyncio's own loop with the real clock."""


class UniverseLoop(ProcessLoop):
    """An event loop with a virtual clock. It waits for nothing: `select` moves the clock to the next timer or arrival.

    `draw`: `draw(name, below)` returns the choice of this universe, a number from 0. `seconds`: the limit of its virtual time.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self, draw: Callable[[str, int], int], seed: int = 0, seconds: float = math.inf) -> None:
        super().__init__(seed)
        self._selector = self  # asyncio asks it for arrivals, as it asks a selector
        self._clock_resolution = 1e-9
        self._draw = draw
        self._now = 0.0
        self._most_steps = MOST_STEPS
        self._most_seconds = seconds
        self._numbers = count()
        self._arrivals: list[Arrival] = []
        self._reports: list[Arrival] = []  # callbacks from threads, which keep their order
        self._reported_at = 0.0
        self._is_in_thread = False

    def time(self) -> float:
        """Return the virtual time in seconds; a universe starts at 0."""
        return self._now

    def move_on(self, seconds: float) -> None:
        """Move the clock on, as if the loop were blocked."""
        self._now += seconds

    def arrive(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(_owned(callback, context), args, self, context)
        heapq.heappush(self._arrivals, (self._now + delay, next(self._numbers), handle))
        return handle

    # --- threads: everything runs on the loop ---

    @contextmanager
    def in_thread(self) -> Generator[None]:
        """Mark the block as the work of a thread, so that its callbacks arrive after drawn delays."""
        before, self._is_in_thread = self._is_in_thread, True
        try:
            yield
        finally:
            self._is_in_thread = before

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        if not self._is_in_thread:
            return super().call_soon_threadsafe(callback, *args, context=context)
        self._check_closed()  # type: ignore[attr-defined]
        delay = _REPORT_DELAYS[self._draw("thread reports", len(_REPORT_DELAYS))]
        self._reported_at = max(self._reported_at, self._now + delay)
        handle = asyncio.Handle(_owned(callback, context), args, self, context)
        heapq.heappush(self._reports, (self._reported_at, next(self._numbers), handle))
        return handle

    def call_in_thread(self, before: float, work: Callable[[], Any], after: float) -> asyncio.Future[Any]:
        """Call a function on this loop after a delay, as if in a thread, and return the future of its result."""
        future: asyncio.Future[Any] = self.create_future()
        self.arrive(before, self._enter, future, work, after)
        return future

    def _enter(self, future: asyncio.Future[Any], work: Callable[[], Any], after: float) -> None:
        try:
            with self.in_thread():
                finish = partial(future.set_result, work())
        except StopIteration as error:  # a future refuses it
            finish = partial(future.set_exception, RuntimeError(repr(error)))
        except BaseException as error:  # noqa: BLE001 - raised in the waiting task
            finish = partial(future.set_exception, error)
        self.arrive(after, lambda: None if future.done() else finish())

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ARG002
        """Call a function on this loop, at a drawn time. There are no threads in a universe."""
        before, after = self._draw("executor starts", 2), self._draw("executor ends", 2)
        return self.call_in_thread(before / 1000, partial(func, *args), after / 1000)

    # --- the selector ---

    def select(self, timeout: float | None) -> list[asyncio.Handle]:
        """Return the arrivals up to the next timer. Raises Deadlock if nothing can happen any more."""
        self._check_end()
        self._now += _STEP
        times = [arrivals[0][0] for arrivals in (self._arrivals, self._reports) if arrivals]
        if timeout is None and not times:
            raise Deadlock(f"nothing can happen any more, at {self._now:.3f} s: {_DEADLOCK}")
        if timeout != 0:
            times += [] if timeout is None else [self._now + timeout]
            self._now = max(self._now, min(times)) + (0.0, 0.0, 0.0, 0.001)[self._draw("stall", 4)]
        return self._due()

    def _check_end(self) -> None:
        """Count a step. Raises Endless if the universe does not end."""
        self.steps += 1
        if self.endless is not None:
            raise self.endless
        if self.steps > self._most_steps:
            raise Endless(f"the program did not end in {self._most_steps} iterations, at {self._now:.3f} s")
        if self._now > self._most_seconds:
            raise Endless(
                f"the program did not end in {self._most_seconds:g} simulated seconds; see `seconds` of `simulate`"
            )

    def allow_closing(self) -> None:
        """Allow some more steps, in which the tasks of the program are cancelled."""
        super().allow_closing()
        self._most_seconds = math.inf
        self._most_steps = self.steps + _STEPS_OF_CLOSING

    def _due(self) -> list[asyncio.Handle]:
        due = self._until_now(self._arrivals)
        first = self._draw("order", len(due)) if len(due) > 1 else 0
        return due[first:] + self._until_now(self._reports) + due[:first]

    def _until_now(self, arrivals: list[Arrival]) -> list[asyncio.Handle]:
        due: list[asyncio.Handle] = []
        while arrivals and arrivals[0][0] <= self._now:
            due.append(heapq.heappop(arrivals)[2])
        return due

    def _process_events(self, event_list: list[asyncio.Handle]) -> None:
        self._ready.extend(event_list)

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes this loop."""
