"""Lines in the log of PostgreSQL with `log_statement=all`, DBOS's included: of one durable run, and of an idle worker.

The lines of a run are counted from `start` until half a second after its result, minus the idle lines in that time. The run has four
completions and three calls.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import common
import psycopg

_RUNS, _SECONDS = 10, 10.0
_LINE = re.compile(r"LOG:  (?:statement|execute [^:]*): *(\w+)")


class ServerLog:
    """The log of the database server, from now on."""

    def __init__(self, made: Any) -> None:
        with psycopg.connect(made.empty("postgresql"), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET log_statement = 'all'")
            connection.execute("SELECT pg_reload_conf()")
        self._path = Path(made.folder, "postgresql", "log")
        time.sleep(1)

    @property
    def path(self) -> str:
        """The path of the log."""
        return str(self._path)


def lines(path: str, start: int) -> Counter[str]:
    """Return the statements after this position of the log, by their first word."""
    with Path(path).open("rb") as log:
        log.seek(start)
        return Counter(_LINE.findall(log.read().decode(errors="replace")))


async def count(url: str, path: str, poll: float, runs_total: int) -> dict[str, Any]:
    """Return the idle lines of a second, by first word, and the lines of each run with its seconds."""
    size = Path(path).stat
    async with common.durable(url, common.Model(), poll_seconds=poll) as runs:
        await (await runs.start("guide", common.QUESTION)).result()
        await asyncio.sleep(2)
        start = size().st_size
        await asyncio.sleep(_SECONDS)
        idle = {name: number / _SECONDS for name, number in lines(path, start).items()}
        found = []
        for _ in range(runs_total):
            start, began = size().st_size, time.monotonic()
            await (await runs.start("guide", common.QUESTION)).result()
            await asyncio.sleep(0.5)
            found.append((dict(lines(path, start)), time.monotonic() - began))
    return {"idle": idle, "runs": found}


def measure(_: Any) -> None:
    """Print the lines for both polls."""
    with common.databases() as made:
        log = ServerLog(made)
        for poll in (0.1, 5):
            found = common.child("statements:count", made.empty("postgresql"), log.path, poll, _RUNS)
            idle, runs = Counter(found["idle"]), found["runs"]
            total = sum(idle.values())
            common.line(f"PostgreSQL log lines a second, idle worker, poll {poll} s", [total], 1)
            common.line(
                f"PostgreSQL log lines of a run, poll {poll} s, less idle ones",
                [sum(words.values()) - total * seconds for words, seconds in runs],
            )
            for word in ("COMMIT", "SELECT", "INSERT", "UPDATE"):
                values = [words.get(word, 0) - idle[word] * seconds for words, seconds in runs]
                common.line(f"- of them {word}", values)
