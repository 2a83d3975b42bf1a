"""Universes of a program: one run in a universe, the search over seeds, the shrinking of a failure, and its report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from ._files import files_of
from ._invariants import DEFAULT, context_as_sequential
from ._loop import Deadlock, Endless, ProcessLoop, RealLoop, UniverseLoop
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


class SimulationError(AssertionError):
    """A program failed in a universe. Its text has the seed, the shrunk schedule and the time line."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """A program and its invariants.

    `sequential`: whether the context variables are compared with the same universe with one call at a time. `folder`: the folder
    for the files of failed universes, which the playground opens; None writes no file.
    """

    program: Program
    invariants: Sequence[Invariant] = DEFAULT
    sequential: bool = True
    folder: str | PathLike[str] | None = FOLDER

    def failure(self, world: World, *, is_real: bool = False) -> BaseException | None:
        """Return the failure of the program in a world, or None. `is_real`: on asyncio's loop, with the real clock."""
        error = _run(self.program, world, is_real=is_real)
        if error is not None:
            return error
        try:
            for invariant in self.invariants:
                invariant(world)
            # A world with one run at most of one call each has no other order.
            if self.sequential and world.runs:
                self._compare(world)
        except Exception as broken:  # noqa: BLE001 - an invariant of a user
            return broken
        return None

    def _compare(self, world: World) -> None:
        alone = World(world.seed, choices=dict(world.drawn), sequential=True)
        if _run(self.program, alone) is None:
            context_as_sequential(world, alone)

    def check(self, seed: int) -> None:
        """Run the universe of a seed. Raises SimulationError with a shrunk schedule if the program fails."""
        world = World(seed)
        error = self.failure(world)
        if error is not None:
            choices = self._shrink(world, error)
            shrunk = World(seed, choices=choices)
            shrunk.has_entries = True
            raise SimulationError(self._report(shrunk, self.failure(shrunk) or error, choices)) from error

    def _shrink(self, world: World, error: BaseException) -> dict[str, int]:
        """Set as many choices to 0 as possible, so that the program fails in the same way."""
        kept, tries = dict(world.drawn), 0
        size = len(kept)
        while size and tries < _MOST_TRIES:
            for part in _parts(list(kept), size):
                fewer = {key: value for key, value in kept.items() if key not in part}
                tries += 1
                if _is_same(self.failure(World(world.seed, choices=fewer)), error):
                    kept = fewer
            size //= 2
        return kept

    def _is_confirmed(self, world: World, error: BaseException) -> bool:
        choices = dict(world.drawn)
        worlds = (World(world.seed, choices=choices) for _ in range(_CONFIRMATIONS))
        return any(_is_same(self.failure(each, is_real=True), error) for each in worlds)

    def _report(self, world: World, error: BaseException, choices: Mapping[str, int]) -> str:
        confirmed = "also" if self._is_confirmed(world, error) else "not"
        path = self._write_file(world)
        shown = f"Look at its runs with: aswarm serve --open {path}" if path else ""
        schedule = [f"  {name}: {value}" for name, value in choices.items()] or ["  every choice is 0"]
        return "\n".join(
            [
                f"seed {world.seed}: {'; '.join(f'{type(each).__name__}: {each}' for each in _causes(error))}",
                f"Run it again with --simulate-seed={world.seed}. With the delays of asyncio's real clock it fails: {confirmed}.",
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


def _is_same(error: BaseException | None, other: BaseException) -> bool:
    return error is not None and {type(each) for each in _causes(error)} == {type(each) for each in _causes(other)}


def _causes(error: BaseException) -> list[BaseException]:
    """Return the exceptions of a group, such as that of a task group; otherwise the exception itself."""
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return [cause for each in inside for cause in _causes(each)] if inside else [error]


# --- one universe ---


def _run(program: Program, world: World, *, is_real: bool = False) -> BaseException | None:
    """Run the program on a new event loop. Returns its exception, a left task, a reported exception, or None."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - the public function raises an exception
        raise RuntimeError(
            "a simulation makes its own event loops: call it from a plain function, not from a coroutine"
        )
    loop: ProcessLoop = RealLoop() if is_real else UniverseLoop(world.draw)
    error: BaseException | None = None
    with funeral(world), _seeded(world.seed), files_of(world), simulated(world, loop):
        try:
            loop.run_until_complete(_supervised(program, world))
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - the failure of the universe
            error = raised
        finally:
            reported = loop.reported.copy()  # before the end of the loop, which may destroy tasks of dropped generators
            _close(loop, world)
    if error is None and reported:
        error = AssertionError(f"reported to the event loop: {reported[0]}")
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
    await program(world)
    for _ in range(20):  # tasks that were cancelled at the end of the program
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - _dead_tasks(world) - {asyncio.current_task()}
    assert not left, f"tasks are left: {[task.get_name() for task in left]}"  # noqa: S101


def _dead_tasks(world: World) -> set[asyncio.Task[Any]]:
    return {task for process in world.processes if process.is_dead for task in process.tasks}


def _close(loop: ProcessLoop, world: World) -> None:
    with suppress(Deadlock, Endless):
        for task in (tasks := asyncio.all_tasks(loop) - _dead_tasks(world)):
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    world.delete_files()
