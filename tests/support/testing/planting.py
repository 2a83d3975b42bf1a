"""Plants each fault of `faults` into a copy of aswarm: the programs and the tests of its entry must find it.

`python -m tests.support.testing.planting programs [UNIVERSES] [NAME ...]` prints the first universe that finds each fault, and
`... tests [NAME ...]` the first test that fails with it. NAME: a part of the name of a fault, of a program or of a test.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.support.testing.faults import FAULTS, Fault

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
UNIVERSES = 300
_MOST_SECONDS = 900.0
_MOST_SECONDS_OF_TESTS = 180.0
_PYTEST = (
    *("-m", "pytest", "-q", "-rfE", "--tb=no", "--maxfail=1", "-p", "no:cacheprovider"),
    "--hypothesis-profile=quick",
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+)", re.MULTILINE)


def planted(each: Fault, folder: Path, only: str = "") -> Path:
    """Copy the source, and plant the fault. Raises LookupError if its text is not there exactly once. `only`: one file."""
    target = folder / "src"
    file = target / "aswarm" / each.file
    if only:
        file.parent.mkdir(parents=True)
        shutil.copy(SOURCE / "aswarm" / only, file)
    else:
        shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    text = file.read_text()
    if (number := text.count(each.old)) != 1:
        raise LookupError(
            f"the fault {each.name!r}: src/aswarm/{each.file} has this text {number} times, and needs it once: {each.old!r}. "
            "If the source has changed, change `old` and `new` of its entry in tests/support/testing/faults.py, so that they "
            "make the same fault in the new source"
        )
    file.write_text(text.replace(each.old, each.new))
    return target


def check_tests(each: Fault) -> None:
    """Raise LookupError if a test of the fault does not exist."""
    for test in each.tests:
        path, _, name = test.partition("::")
        function = name.rpartition("::")[2].partition("[")[0]
        if not _has_function(ROOT / path, function):
            moved = [
                each.relative_to(ROOT) for each in ROOT.glob("tests/**/test_*.py") if _has_function(each, function)
            ]
            places = f" (a test of this name is in {', '.join(map(str, moved))})" if moved else ""
            raise LookupError(
                f"the fault {each.name!r}: there is no test {test}{places}. If it was renamed or merged, write its new id into the entry "
                "in tests/support/testing/faults.py. If it was deleted, name another test that fails with the fault, and check "
                f"it with: nox -s deep -- test_faults '{each.name}'"
            )


def _has_function(file: Path, name: str) -> bool:
    return file.is_file() and re.search(rf"^\s*(?:async )?def {name}\(", file.read_text(), re.MULTILINE) is not None


def search(each: Fault, universes: int) -> list[str]:
    """Plant a fault and run its programs. Returns a line for each program; a line for a miss starts with "MISSED"."""
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = _environment(planted(each, folder))
        for program in each.programs:
            where = folder / "universe"
            options = ["--find", str(universes), "--where", os.fspath(where)]
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "tests.support.testing.universes", *options, program],
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=_MOST_SECONDS,
                    check=False,
                )
                found = re.search(r"^FOUND (\d+) (.*)", done.stdout, re.MULTILINE)
                error = "" if found or "NOT FOUND" in done.stdout else done.stderr[-500:]
                text = f"seed {found[1]}: {found[2]}" if found else error
            except subprocess.TimeoutExpired:
                error, text = "", f"the universe {where.read_text()} did not end"
            lines.append(f"{'      ' if text and (not error) else 'MISSED'} {each.name}: {program}: {text[:160]}")
    return lines


def run_tests(each: Fault) -> list[str]:
    """Plant a fault and run its tests. Returns a line with the first test that fails, or a line that starts with "MISSED"."""
    check_tests(each)
    with tempfile.TemporaryDirectory() as name:
        status, text = _pytest(planted(each, Path(name)), each.tests)
    return [f"{'      ' if status == 1 else 'MISSED'} {each.name}: {text}"]


def failures_without_faults(faults: Sequence[Fault]) -> list[str]:
    """Run the tests of the faults with the source as it is. Returns a line if a test fails: it then proves nothing."""
    tests = dict.fromkeys(test for each in faults for test in each.tests)
    status, text = _pytest(SOURCE, [*tests])
    return [f"MISSED without a fault, so these tests prove nothing: {text}"] if status else []


def _pytest(source: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests. Returns the exit status, 1 if a test fails, and the first failure or another text about the result."""
    try:
        done = subprocess.run(
            [sys.executable, *_PYTEST, *tests],
            cwd=ROOT,
            env=_environment(source),
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS_OF_TESTS + 10 * len(tests),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, "its tests did not end"
    failed = _FAILED.search(done.stdout)
    if done.returncode == 1 and failed:
        return 1, failed[1][:200]
    if done.returncode == 0:
        return 0, f"all its tests pass: {', '.join(tests)}"
    # The fault must not stop the tests from being collected, because each fault would be found in this way.
    return done.returncode or -1, f"pytest could not run its tests: {(done.stdout + done.stderr)[-500:]}"


def _environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([os.fspath(source), os.fspath(ROOT)])}


def main(faults: Sequence[Fault], find: Callable[[Fault], list[str]], processes: int) -> int:
    """Plant the faults. Returns the number of misses."""
    misses = 0
    with ThreadPoolExecutor(processes) as threads:
        for done in as_completed([threads.submit(find, each) for each in faults]):
            lines = done.result()
            print("\n".join(lines), flush=True)
            misses += sum(line.startswith("MISSED") for line in lines)
    return misses


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    ways = parser.add_subparsers(dest="way", required=True)
    programs = ways.add_parser("programs")
    programs.add_argument("universes", type=int, nargs="?", default=UNIVERSES)
    programs.add_argument("names", nargs="*")
    ways.add_parser("tests").add_argument("names", nargs="*")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    chosen = [
        each
        for each in FAULTS
        if getattr(each, given.way)
        and (
            not given.names
            or any(name in text for name in given.names for text in (each.name, *getattr(each, given.way)))
        )
    ]
    if given.way == "programs":
        missed = main(chosen, lambda each: search(each, given.universes), given.processes)
        print(f"{len(chosen)} faults, {missed} misses in {given.universes} universes of a program")
    else:
        for each in chosen:
            check_tests(each)
        unproven = failures_without_faults(chosen)
        print("".join(f"{line}\n" for line in unproven), end="", flush=True)
        missed = len(unproven) + main(chosen, run_tests, given.processes)
        print(f"{len(chosen)} faults, {missed} misses")
    sys.exit(min(1, missed))
