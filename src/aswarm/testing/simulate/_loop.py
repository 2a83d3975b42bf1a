"""Event loops of a universe: asyncio's own loop with a virtual clock, and with the real clock for the confirmation.

Ready callbacks run in the order of `call_soon`, and timers in the order of their times, because asyncio does the same. The
choices are the times of arrivals (I/O, steps of threads), the order of simultaneous arrivals, and stalls of the loop.

asyncio and anyio keep tasks and cancel scopes in sets, and cancel them in the order of these sets. Without the hashes of this
module, this order depends on their addresses.

A universe that does not end fails, with its seed. A loop counts its own steps. A step that never awaits cannot be counted, so a
timer of the processor time of this process interrupts it, where the system has one and the simulation runs in the main thread.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import partial
from itertools import count
from types import FrameType
from typing import Any, Protocol, TypeAlias, cast

from anyio._backends import _asyncio as backend  # pyright: ignore[reportPrivateUsage] - scopes have no factory

# --- the order of sets of tasks and of cancel scopes ---


class Places:
    """Hashes for the tasks and scopes of one universe, in the order of their creation."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers = count()

    def next(self) -> int:
        """Return the next hash. Hashes of integers do not depend on PYTHONHASHSEED."""
        return hash((self._seed, next(self._numbers)))


class OrderedTask(asyncio.Task[Any]):
    """A task with a hash of its own."""

    def __init__(self, coro: Any, *, loop: Any, **options: Any) -> None:
        self._place: int = loop.places.next()  # first, because asyncio adds the task to a set
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._place


class _OrderedScope(backend.CancelScope):
    """A cancel scope with a hash of its own. On other loops it is the hash of every object."""

    __slots__ = ("_place",)

    def __init__(self, *, deadline: float = math.inf, shield: bool = False) -> None:
        places: Places | None = getattr(asyncio._get_running_loop(), "places", None)  # noqa: SLF001 - None without a loop
        self._place = object.__hash__(self) if places is None else places.next()
        super().__init__(deadline=deadline, shield=shield)

    def __hash__(self) -> int:
        return self._place


@contextmanager
def ordered_scopes() -> Generator[None]:
    """Let anyio make ordered cancel scopes during the block."""
    names: Any = vars(backend)
    before = names["CancelScope"]
    names["CancelScope"] = _OrderedScope
    try:
        yield
    finally:
        names["CancelScope"] = before


# --- the end of a universe that does not end ---

MOST_STEPS = 250_000  # iterations of the loop in one universe
_MOST_PROCESSOR_SECONDS = 20.0


class Endless(Exception):  # noqa: N818 - named after the event
    """The universe did not end within the limits of its steps, of its virtual time, or of the processor time of one step."""


class Interrupted(BaseException):
    """Raised inside a step that does not end. `except Exception`, as around a tool, must not catch it."""


@contextmanager
def interrupting(loop: ProcessLoop) -> Generator[None]:
    """Interrupt a step of the loop that uses the processor for too long and does not end."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = -1

    def tick(_: int, frame: FrameType | None) -> None:
        nonlocal seen
        if loop.steps == seen:
            place = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
            loop.endless = Endless(f"a step of the loop does not end{place}; a loop that waits needs an `await`")
            raise Interrupted
        seen = loop.steps

    before: Any = signal.signal(signal.SIGVTALRM, tick)
    old = signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_PROCESSOR_SECONDS, _MOST_PROCESSOR_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *old)
        signal.signal(signal.SIGVTALRM, before)


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
