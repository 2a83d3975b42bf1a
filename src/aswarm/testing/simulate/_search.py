"""Universes of a program: one run in a universe, the search over seeds, the shrinking of a failure, and its report.

`simulate` is the decorator, and the option of pytest selects a seed.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial, wraps
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from aswarm._record.entries import Entry, as_json

from ._crash import STEP_OF_CRASH, funeral
from ._files import files_of, simulated
from ._invariants import DEFAULT_INVARIANTS, context_as_sequential
from ._loop import Deadlock, Endless, ProcessLoop, RealLoop, UniverseLoop, interrupting, ordered_scopes
from ._world import START, World

Program: TypeAlias = Callable[[World], Awaitable[object]]
"""An async function of a world: the code that a simulation runs."""
Invariant: TypeAlias = Callable[[World], None]
"""A function of a world at the end of its program. It raises AssertionError if the world breaks it."""
FOLDER = "simulations"
_MOST_TRIES = 200  # of the shrinking
_CONFIRMATIONS = 3
_STEPS_NEARBY = 40  # a crash may need another step on asyncio's loop, where I/O takes other numbers of callbacks
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
                alone = World(world.seed, choices=dict(world.drawn), sequential=True)
                if _run(self.program, alone, self.seconds) is None:
                    context_as_sequential(world, alone)
        except Exception as broken:  # noqa: BLE001 - an invariant of a user
            return broken
        return None

    def check(self, seed: int) -> None:
        """Run the universe of a seed. Raises SimulationError with a shrunk schedule if the program fails."""
        __tracebackhide__ = True
        world = World(seed)
        error = self.failure(world)
        if error is not None:
            choices, causes = self._shrink(world, error), _causes(error)
            shrunk = World(seed, choices=choices)
            shrunk.has_entries = True
            # From the only exception of a group: pytest would print the report of a group twice.
            cause = causes[0] if len(causes) == 1 else error
            raise SimulationError(self._report(shrunk, self.failure(shrunk) or error, choices)) from cause

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
        schedule = [f"  {name}: {value}" for name, value in choices.items()] or ["  every choice is 0"]
        return "\n".join(
            [
                f"seed {world.seed}: {'; '.join(f'{type(each).__name__}: {each}' for each in _causes(error))}",
                f"Run it again with pytest --simulate-seed={world.seed}, or @simulate(runs=1, seed={world.seed}).",
                confirmation,
                *([f"Look at its runs with: aswarm serve --open {path}"] if path else []),
                "Schedule (the choices other than 0):",
                *schedule,
                "Time line:",
                *timeline(world),
            ]
        )

    def _write_file(self, world: World) -> Path | None:
        if self.folder is None or not (world.runs or world.logs):
            return None
        path = Path(self.folder, f"{getattr(self.program, '__name__', 'program')}-{world.seed}.jsonl")
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


# --- the report ---

_SHOWN = 150  # characters of a line
_FIELDS = ("turn", "index", "name", "text", "arguments", "content", "reason")


def timeline(world: World) -> list[str]:
    """Return the lines of the time line: virtual seconds, the run, the event. The entries of logs have only milliseconds."""
    names = {run.id: run.name for run in world.runs}
    lines = [(at, f"{at:9.4f}  {text}") for at, text in world.notes]
    for call in world.calls:
        run = names.get(call.run, call.run[:8])
        lines.append((call.at, f"{call.at:9.4f}  {run}: function {call.name} starts with {call.arguments}"))
    for each in world.runs:
        lines += [(at, f"{at:9.4f}  {each.name}: {_line(event.to_dict())}") for at, event in each.events]
    for run_id, log in world.logs.items():
        at = 0.0
        for entry in log:
            milliseconds = entry.at_ms / 1000 - START
            at = max(at, milliseconds, _start_of(world, run_id, entry))
            lines.append((at, f"{milliseconds:8.3f}   {run_id[:8]}: {_line(entry.to_dict())}"))
    lines = [line for line in lines if "Delta " not in line[1]]  # the pieces of texts and arguments
    return [f"  {line}" for _, line in sorted(lines, key=lambda line: line[0])]


def _start_of(world: World, run_id: str, entry: Entry) -> float:
    """Return the time of the last start of the call that has finished, within the millisecond of the entry; otherwise 0."""
    if entry.type != "ToolCallFinished":
        return 0.0
    until, index = (entry.at_ms + 1) / 1000 - START, entry.fields["index"]
    starts = (call.at for call in world.calls if (call.run, call.index) == (run_id, index) and call.at < until)
    return max(starts, default=0.0)


def _line(event: Mapping[str, Any]) -> str:
    shown = {key: event[key] for key in _FIELDS if key in event}
    return f"{event['type']} {' '.join(f'{key}={value!r}' for key, value in shown.items())}"[:_SHOWN]


# --- the file of the playground ---


def write_file(world: World, path: Path) -> None:
    """Write the runs of the world for `aswarm serve --open`: a line of JSON for each entry, with the id of its run.

    Raises OSError.
    """
    logs = world.logs | {run.entries[0].fields["run_id"]: run.entries for run in world.runs if run.entries}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for run_id, entries in logs.items():
            for entry in entries:
                file.write(as_json({"run": run_id, **entry.to_dict()}) + b"\n")


_SEED = "ASWARM_SIMULATE_SEED"  # set by the option of pytest, and read at the start of each test


def simulate(
    runs: int = 100,
    *,
    seed: int = 0,
    invariants: Sequence[Invariant] = (),
    sequential: bool = True,
    folder: str | PathLike[str] | None = FOLDER,
    seconds: float = DAY,
) -> Callable[[Callable[..., Awaitable[object]]], Callable[..., None]]:
    """Return a decorator that runs an async program in many universes, as a plain function and test of pytest.

    The program gets a `World` as its first argument; other arguments are fixtures. The decorated function raises
    SimulationError for the first universe in which the program fails.

    Args:
        runs: The number of universes.
        seed: The seed of the first universe; the next universes have the next numbers.
        invariants: Functions of a world that raise AssertionError, in addition to `DEFAULT_INVARIANTS`.
        sequential: Also compare the context variables with the same universe with one call at a time.
        folder: The folder for the files of failed universes, for `aswarm serve --open FILE`; None writes no file.
        seconds: The virtual time of a universe, after which it fails with `Endless`.
    """
    if callable(runs):
        raise TypeError("@simulate was given a function as `runs`; write @simulate() or @simulate(runs=100)")

    def decorate(program: Callable[..., Awaitable[object]]) -> Callable[..., None]:
        if not inspect.iscoroutinefunction(program):
            raise TypeError(f"@simulate needs an async function, and {program!r} is not one; write `async def`")

        @wraps(program)
        def test(**fixtures: Any) -> None:
            __tracebackhide__ = True  # pytest shows the report, and the failed line of the program
            given = wraps(program)(partial(program, **fixtures))
            simulation = Simulation(given, (*DEFAULT_INVARIANTS, *invariants), sequential, folder, seconds)
            chosen = os.environ.get(_SEED)
            for each in range(seed, seed + runs) if chosen is None else (int(chosen),):
                simulation.check(each)

        del test.__wrapped__
        signature = inspect.signature(program)
        test.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:], return_annotation=None)  # type: ignore[attr-defined]
        return test

    return decorate


def pytest_addoption(parser: Any) -> None:
    """Add `--simulate-seed` to pytest, for `pytest_plugins = ["aswarm.testing.simulate"]` in a conftest.py."""
    parser.addoption("--simulate-seed", metavar="N", type=int, help="run only this universe of each simulated test")


def pytest_configure(config: Any) -> None:
    """Read the option of pytest."""
    if (seed := config.getoption("--simulate-seed")) is not None:
        os.environ[_SEED] = str(seed)
