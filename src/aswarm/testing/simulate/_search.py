"""Universes of a program: one run in a universe, the search over seeds, the shrinking of a failure, and its report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from ._crash import STEP_OF_CRASH
from ._endless import Endless, interrupting
from ._files import files_of
from ._invariants import DEFAULT_INVARIANTS, context_as_sequential
from ._loop import Deadlock, ProcessLoop, RealLoop, UniverseLoop
from ._order import ordered_scopes
from ._process import funeral
from ._report import timeline, write_file
from ._threads import simulated
from ._world import World

Program: TypeAlias = Callable[[World], Awaitable[object]]
"""An async function of a world: the code that a simulation runs."""
Invariant: TypeAlias = Callable[[World], None]
"""A function of a world at the end of its program. It raises AssertionError if the world breaks it."""
FOLDER = "simulations"
_MOST_TRIES = 200  # of the shrinking
_CONFIRMATIONS = 3
_STEPS_NEARBY = 12  # a crash may need another step on asyncio's loop, where I/O takes other numbers of callbacks
_MOST_REAL_SECONDS = 10.0
DAY = 86_400.0


class SimulationError(AssertionError):
    """A program failed in a universe. Its text has the seed, the shrunk schedule and the time line."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A program that runs in many universes, and the invariants that must hold in each; see `simulate`.

    `sequential`: whether the context variables are compared with the same universe with one call at a time. `folder`: the folder
    for the files of failed universes, which the playground opens; None writes no file. `seconds`: the virtual time of a universe,
    after which it fails.
    """

    program: Program
    invariants: Sequence[Invariant] = DEFAULT_INVARIANTS
    sequential: bool = True
    folder: str | PathLike[str] | None = FOLDER
    seconds: float = DAY

    def failure(self, world: World, *, is_real: bool = False) -> BaseException | None:
        """Return the failure of the program in a world, or None. `is_real`: on asyncio's loop, with the real clock."""
        __tracebackhide__ = True
        error = _run(self.program, world, self.seconds, is_real=is_real)
        if error is not None:
            return error
        try:
            for invariant in self.invariants:
                invariant(world)
            if self.sequential and world.runs:
                self._compare(world)
        except Exception as broken:  # noqa: BLE001 - an invariant of a user
            return broken
        return None

    def _compare(self, world: World) -> None:
        __tracebackhide__ = True
        alone = World(world.seed, choices=dict(world.drawn), sequential=True)
        if _run(self.program, alone, self.seconds) is None:
            context_as_sequential(world, alone)

    def check(self, seed: int) -> None:
        """Run the universe of a seed. Raises SimulationError with a shrunk schedule if the program fails."""
        __tracebackhide__ = True
        world = World(seed)
        error = self.failure(world)
        if error is not None:
            choices = self._shrink(world, error)
            shrunk = World(seed, choices=choices)
            shrunk.has_entries = True
            raise SimulationError(self._report(shrunk, self.failure(shrunk) or error, choices)) from _cause(error)

    def _shrink(self, world: World, error: BaseException) -> dict[str, int]:
        """Set as many choices to 0 as possible, so that the program fails in the same way."""
        kept, tries = dict(world.drawn), 0
        size = 0 if isinstance(error, Endless) else len(kept)  # each try would take long
        while size and tries < _MOST_TRIES:
            for part in _parts(list(kept), size):
                fewer = {key: value for key, value in kept.items() if key not in part}
                tries += 1
                if _is_same(self.failure(World(world.seed, choices=fewer)), error):
                    kept = fewer
            size //= 2
        return kept

    def _confirmation(self, world: World, error: BaseException) -> str:
        """Run the failed universe on asyncio's own loop, and describe the result in a sentence."""
        if isinstance(error, Deadlock | Endless) or world.seconds > _MOST_REAL_SECONDS:
            return "It was not tried on asyncio's own loop, because it would take too long there."
        tries = 0
        for choices in _nearby(world.drawn):
            tries += 1
            if _is_same(self.failure(World(world.seed, choices=choices), is_real=True), error):
                return "It also fails on asyncio's own loop, with real delays."
        return f"It did not fail on asyncio's own loop, in {tries} tries with real delays."

    def _report(self, world: World, error: BaseException, choices: Mapping[str, int]) -> str:
        confirmation = self._confirmation(world, error)
        path = self._write_file(world)
        shown = f"Look at its runs with: aswarm serve --open {path}" if path else ""
        schedule = [f"  {name}: {value}" for name, value in choices.items()] or ["  every choice is 0"]
        return "\n".join(
            [
                f"seed {world.seed}: {'; '.join(f'{type(each).__name__}: {each}' for each in _causes(error))}",
                f"Run it again with pytest --simulate-seed={world.seed}, or @simulate(runs=1, seed={world.seed}).",
                confirmation,
                *([shown] if shown else []),
                "Schedule (the choices other than 0):",
                *schedule,
                "Time line:",
                *timeline(world),
            ]
        )

    def _write_file(self, world: World) -> Path | None:
        if self.folder is None or not (world.runs or world.logs):
            return None
        name = getattr(self.program, "__name__", "program")
        path = Path(self.folder, f"{name}-{world.seed}.jsonl")
        try:
            write_file(world, path)
        except OSError:  # the report is more important
            return None
        return path


def _parts(keys: list[str], size: int) -> list[set[str]]:
    return [set(keys[start : start + size]) for start in range(0, len(keys), size)]


def _nearby(choices: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the choices a few times, and then with crashes a few steps earlier or later."""
    yield from (dict(choices) for _ in range(_CONFIRMATIONS))
    steps = [name for name in choices if STEP_OF_CRASH in name]
    for shift in range(1, _STEPS_NEARBY + 1) if steps else ():
        for moved in (-shift, shift):
            yield {**choices, **{name: max(0, choices[name] + moved) for name in steps}}


def _is_same(error: BaseException | None, other: BaseException) -> bool:
    return error is not None and set(map(_kind, _causes(error))) == set(map(_kind, _causes(other)))


def _kind(error: BaseException) -> tuple[Any, ...]:
    """Return the type of an exception; for an AssertionError also its place, because each assertion is another failure."""
    traceback = error.__traceback__ if isinstance(error, AssertionError) else None
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    place = () if traceback is None else (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
    return (type(error), *place)


def _causes(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group, such as that of a task group; otherwise the exception itself."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return [cause for each in inside for cause in _causes(each)] if inside else [error]


def _cause(error: BaseException) -> BaseException:
    """Return the only exception of a group: pytest would print the report of a group twice."""
    causes = _causes(error)
    return causes[0] if len(causes) == 1 else error


# --- one universe ---


def _run(program: Program, world: World, seconds: float, *, is_real: bool = False) -> BaseException | None:
    """Run the program on a new event loop. Returns its exception, a left task, a reported exception, or None."""
    __tracebackhide__ = True
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public function raises an exception
        raise RuntimeError(
            "a simulation makes its own event loops: call it from a plain function, not from a coroutine"
        )
    loop: ProcessLoop = RealLoop(world.seed) if is_real else UniverseLoop(world.draw, world.seed, seconds)
    error: BaseException | None = None
    with funeral(world), _seeded(world.seed), ordered_scopes(), files_of(world), simulated(world, loop):
        try:
            with nullcontext() if is_real else interrupting(loop):
                loop.run_until_complete(_supervised(program, world) if not is_real else _limited(program, world))
        except BaseException as raised:  # the failure of the universe
            error = raised
            if loop.endless is None and not isinstance(raised, Exception | asyncio.CancelledError):
                raise
        finally:
            error = loop.endless or error  # a program may have caught the interruption
            world.seconds = loop.time()
            reported = loop.reported.copy()  # before the end of the loop, which may destroy tasks of dropped generators
            _close(loop, world)
    if error is None and reported:
        context = reported[0]
        error = AssertionError(f"reported to the event loop: {context['message']} {context.get('exception', '')!r}")
    return error


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Set the seed of the module `random`, which spreads the retries, during the block."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


async def _supervised(program: Program, world: World) -> None:
    __tracebackhide__ = True
    await program(world)
    for _ in range(20):  # tasks that were cancelled at the end of the program
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - _dead_tasks(world) - {asyncio.current_task()}
    assert not left, f"tasks are left: {[task.get_name() for task in left]}"  # noqa: S101


async def _limited(program: Program, world: World) -> None:
    """Run the program for a limited time: on asyncio's own loop nothing else ends a deadlock."""
    limit = asyncio.timeout(2 * _MOST_REAL_SECONDS)
    try:
        async with limit:
            await _supervised(program, world)
    except TimeoutError:
        if limit.expired():
            raise Endless("the program did not end on asyncio's own loop") from None
        raise


def _dead_tasks(world: World) -> set[asyncio.Task[Any]]:
    return {task for process in world.processes if process.is_dead for task in process.tasks}


def _close(loop: ProcessLoop, world: World) -> None:
    loop.allow_closing()
    with suppress(Deadlock, Endless):
        for task in (tasks := asyncio.all_tasks(loop) - _dead_tasks(world)):
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    world.delete_files()
