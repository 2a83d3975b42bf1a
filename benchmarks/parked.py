"""Parks 10,000 conversations in one process, answers all, and prints two tables.

    python benchmarks/parked.py

A parked conversation is a run that waits for an approval. For each place, new processes are measured: some for the resident
memory and the times, and one, with a fifth of the conversations, with `tracemalloc`, which makes it slower. Bytes are per
conversation, after `gc.collect()` and `malloc_trim`. The model is the fake server, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile

from instruments import spread
from processes import HERE, server

TRACED = 5  # with tracemalloc, a fifth of the conversations
PLACES = {
    "variables": "the program's own variables",
    "memory": "`LocalRuns`, in memory",
    "sqlite": "`LocalRuns`, SQLite",
    "durable": "`DurableRuns`, SQLite",
}
MEMORY = {
    "bytes of memory each": ("resident", 1, 0),
    "of them objects of Python": ("traced", 1, 0),
    "bytes of the database each": ("stored", 1, 0),
    "memory before, MiB": ("before", 2**20, 1),
    "while all wait, MiB": ("after", 2**20, 1),
    "peak, MiB": ("peak", 2**20, 1),
    "after all answers, MiB": ("left", 2**20, 1),
}
SECONDS = {
    "until all wait, s": ("parking", 1, 1),
    "CPU of it, s": ("parking_cpu", 1, 1),
    "CPU of a second while all wait, ms": ("idle", 1e-3, 1),
    "until all are answered, s": ("answering", 1, 1),
    "CPU of the answers, s": ("answering_cpu", 1, 1),
}


def worker(place: str, model: str, given: argparse.Namespace, how: str) -> dict[str, float]:
    """Measure a place in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        total = given.conversations // (TRACED if how == "traced" else 1)
        arguments = (place, model, folder, total, given.at_once, how)
        done = subprocess.run(  # noqa: S603 - a command of this file
            [sys.executable, "parked_worker.py", *map(str, arguments)],
            cwd=HERE, capture_output=True, text=True, check=False, timeout=3600,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{arguments} has failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(place, how, found, file=sys.stderr, flush=True)
    return found


async def measure(given: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Measure the places one after another, in each round. Returns the rounds of each place."""
    found: dict[str, list[dict[str, float]]] = {place: [] for place in given.only or PLACES}
    async with server() as model:
        for turn in range(given.rounds):
            for place in found if turn % 2 == 0 else reversed(found):
                found[place].append(await asyncio.to_thread(worker, place, model, given, "resident"))
        for place, rounds in found.items():
            traced = await asyncio.to_thread(worker, place, model, given, "traced")
            for each in rounds:
                each["traced"] = traced["traced"]
    return found


def show(columns: dict[str, tuple[str, float, int]], found: dict[str, list[dict[str, float]]]) -> None:
    """Print a table: a name, a unit and the digits for each column, and the rounds of each place."""
    print(f"\n| waits in | {' | '.join(columns)} |\n{'|---' * (len(columns) + 1)}|")
    for place, rounds in found.items():
        cells = [spread([each[name] / unit for each in rounds], digits) for name, unit, digits in columns.values()]
        print(f"| {PLACES[place]} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=100, help="conversations that start or are answered at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=tuple(PLACES), action="append")
    given = parser.parse_args()
    before = os.getloadavg()
    found = asyncio.run(measure(given))
    print(f"\n{given.conversations} conversations, {given.at_once} at once, {given.rounds} rounds; ", end="")
    print(f"the load before and after: {before} and {os.getloadavg()}")
    show(MEMORY, found)
    show(SECONDS, found)


if __name__ == "__main__":
    main()
