"""Plays the programs of all frameworks, and writes the results and the pages that show them.

    python play_all.py --environments FOLDER [--only NAME ...]

`--only` takes a framework or a scenario, and may be given several times. A program whose verdict is "broken" is played three
times, and so is a program without a verdict. Exits with 1 if a program has no verdict, or an environment cannot be made.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.append(os.fspath(Path(__file__).parents[1]))

import environments
import page
from judges import BROKEN, NAMES
from play import NO_VERDICT, judge
from report import fill
from scenarios import SCENARIOS

Json = dict[str, Any]
Play = Callable[[], tuple[int, str]]
TIMES = 3
_CERTAIN = NAMES.keys() - {BROKEN}
AT_ONCE = 2  # the programs mostly wait, and the limits of time are far from what they need


def chosen(only: Collection[str]) -> list[tuple[str, str]]:
    """Return the programs, as framework and scenario, whose names are in `only`: all of a kind that `only` does not name."""
    programs = page.programs()
    names = dict.fromkeys(name for framework, _ in programs for name in _names_of(framework))
    if unknown := [name for name in only if name not in {*names, *SCENARIOS}]:
        sys.exit(f"no framework and no scenario: {', '.join(unknown)}. There are: {', '.join([*names, *SCENARIOS])}")
    frameworks = {name for name in only if name in names} or set(names)
    scenarios = {name for name in only if name in SCENARIOS} or set(SCENARIOS)
    return [each for each in programs if frameworks.intersection(_names_of(each[0])) and each[1] in scenarios]


def _names_of(framework: str) -> tuple[str, ...]:
    column = page.column_of(framework)
    return page.name_of(column), column, page.name_of(framework), framework


def verdict_of(play: Play) -> tuple[str, str, int]:
    """Play a program until its verdict is certain. Returns the verdict, the line that shows it, and how often it was played.

    "broken" has to be seen three times. A time limit or an error of the program is no verdict, so it is played again.
    """
    plays = [play()]
    while plays[-1][0] not in _CERTAIN and max(_counts(plays).values()) < TIMES:
        plays.append(play())
    lines = {code: line for code, line in plays if code in NAMES}
    if not lines:
        return page.NONE, plays[-1][1], len(plays)
    if len(lines) > 1 or (BROKEN in lines and _counts(plays)[BROKEN] < TIMES):
        seen = ", ".join(NAMES.get(code, page.NONE) for code, _ in plays)
        return page.NONE, f"the plays differ ({seen}): {lines[BROKEN]}", len(plays)
    ((code, line),) = lines.items()
    return NAMES[code], line, len(plays)


def _counts(plays: Sequence[tuple[int, str]]) -> Counter[int]:
    """Return how often each verdict was seen. All plays without a verdict count together."""
    return Counter(code if code in NAMES else NO_VERDICT for code, _ in plays)


def cell_of(framework: str, scenario: str, python: str, seconds: float) -> Json:
    """Play a program, and return its cell."""
    begun = time.monotonic()
    verdict, line, times = verdict_of(lambda: judge(framework, scenario, python, seconds))
    taken = round(time.monotonic() - begun, 1)
    print(f"{taken:6.1f} s  {page.name_of(framework)}, {scenario}: {verdict}. {line}", flush=True)
    return {
        "framework": framework,
        "scenario": scenario,
        "verdict": verdict,
        "line": line.splitlines()[0] if line else "",
        "plays": times,
        "seconds": taken,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def pythons_of(frameworks: Collection[str], folder: Path) -> dict[str, str]:
    """Return the Python of each framework whose environment can be made."""
    found = {}
    for framework in frameworks:
        name = environments.environment_of(framework)
        try:
            found[framework] = environments.python_of(name, folder) if name else sys.executable
        except subprocess.CalledProcessError as error:
            print(f"the environment of {framework} cannot be made: {error}", flush=True)
    return found


def about(frameworks: Collection[str]) -> dict[str, Json]:
    """Return the versions of each framework, and the machine."""
    needed = {framework: environments.environment_of(framework) for framework in frameworks}
    ours = [f"aswarm=={importlib.metadata.version('aswarm')}"]
    machine = f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} cores"
    return {
        framework: {"requires": environments.requirements()[name] if name else ours, "machine": machine}
        for framework, name in needed.items()
    }


def merged(before: Json, cells: Sequence[Json], frameworks: dict[str, Json]) -> Json:
    """Return the results with the new cells, and without the cells of programs that do not exist any more."""
    found = {(cell["framework"], cell["scenario"]): cell for cell in [*before["cells"], *cells]}
    present = [found[program] for program in page.programs() if program in found]
    about = {**before["frameworks"], **frameworks}
    return {
        "frameworks": {name: about[name] for name in dict.fromkeys(cell["framework"] for cell in present)},
        "cells": present,
    }


def write(results: Json) -> None:
    """Write the results of all programs."""
    page.RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Play the programs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a framework or a scenario")
    parser.add_argument("--seconds", type=float, default=120, help="the time limit of a program")
    given = parser.parse_args()
    programs = chosen(given.only)
    begun = time.monotonic()
    pythons = pythons_of(dict.fromkeys(framework for framework, _ in programs), given.environments)
    made = time.monotonic()
    ready = [(framework, scenario) for framework, scenario in programs if framework in pythons]
    versions, cells = about(pythons), list[Json]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tasks = [pool.submit(cell_of, *each, pythons[each[0]], given.seconds) for each in ready]
        for task in as_completed(tasks):
            cells.append(task.result())
            write(merged(page.results(), cells, versions))  # so that an interruption loses only what plays now
    fill(page.PAGES, page.BLOCKS)
    print(f"environments: {made - begun:.0f} s, {len(cells)} programs: {time.monotonic() - made:.0f} s")
    sys.exit(len(ready) < len(programs) or any(cell["verdict"] == page.NONE for cell in cells))


if __name__ == "__main__":
    main()
