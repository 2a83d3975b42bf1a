"""The decorator `simulate`, and the option of pytest that selects a seed."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from os import PathLike
from typing import Any

from ._invariants import DEFAULT_INVARIANTS
from ._search import DAY, FOLDER, Invariant, Simulation

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
