"""The measures of a soak: memory, handles, tasks, threads, objects, entries of registries, rows and sizes of files."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, MutableSet
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from tests.support.testing.soak_verdict import Allowance

MB = 1024 * 1024
# The numbers of active runs and of recent rows are random. A leak is far above these allowances: what is kept from the start is 3.7
# times as much in the last window as in the first.
ALLOWANCES = {
    "memory in MB": Allowance(5, 3),
    "blocks of memory": Allowance(3, 10_000),
    "objects": Allowance(3, 5_000),
    "objects of aswarm": Allowance(20, 300),
    "class": Allowance(50, 100),
    "file handles": Allowance(20, 15),
    "tasks": Allowance(30, 20),
    "threads": Allowance(10, 3),
    "child processes": Allowance(10, 1),
    "connections to PostgreSQL": Allowance(10, 2),
    "entries": Allowance(50, 20),
    "rows": Allowance(50, 100),
    "file in MB": Allowance(15, 1.5),
}


def process() -> dict[str, float]:
    """Return the measures of this process."""
    sys._clear_type_cache()  # it keeps up to 4,096 names, and fills slowly
    gc.collect()  # otherwise the garbage of the last seconds would count
    kinds = Counter(type(each) for each in gc.get_objects())
    own = {kind: count for kind, count in kinds.items() if f"{kind.__module__}.".startswith("aswarm.")}
    return {
        "memory in MB": _status("VmRSS") / 1024,
        "blocks of memory": sys.getallocatedblocks(),
        "objects": kinds.total(),
        "objects of aswarm": sum(own.values()),
        "file handles": len(list(Path("/proc/self/fd").iterdir())),
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "child processes": sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children")),
        **{f"class: {kind.__module__}.{kind.__qualname__}": count for kind, count in own.items()},
    }


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


def registries() -> dict[str, float]:
    """Return the number of entries of each container that a module of aswarm has."""
    modules = [(name, vars(module)) for name, module in sys.modules.items() if f"{name}.".startswith("aswarm.")]
    return {f"entries: {name}.{each}": len(found) for name, own in modules for each, found in _containers(own).items()}


def registries_of_runs(name: str, runs: object) -> dict[str, float]:
    """Return the number of entries in each container of `LocalRuns` or `DurableRuns`, and of their parts."""
    parts = {type(each).__name__: each for each in (runs, *vars(runs).values()) if hasattr(each, "__dict__")}
    own = {
        f"{kind}.{each}": len(kept) for kind, part in parts.items() for each, kept in _containers(vars(part)).items()
    }
    return {f"entries: {name}, {each}": number for each, number in own.items()}


def _containers(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that may grow: dicts, sets, lists and weak mappings, except constants."""
    return {
        name: value
        for name, value in names.items()
        if not name.startswith("__")
        and not name.isupper()
        and isinstance(value, MutableMapping | MutableSet | MutableSequence)
    }


def files(folder: Path) -> dict[str, float]:
    """Return the size of each file of a store, and of all journals."""
    found = [*folder.glob("*.sqlite*")]
    sizes = {f"file in MB: {path.name}": path.stat().st_size / MB for path in found if path.suffix != ".lock"}
    journals = [path.stat().st_size for path in (folder / "journals").iterdir()]
    numbers = {"rows: files of stores": len(found), "rows: files of journals": len(journals)}
    return {**sizes, "file in MB: journals": sum(journals) / MB, **numbers}


def sqlite_rows(path: Path) -> dict[str, float]:
    """Return the number of rows of each table of a file."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            f"rows: {path.name}, {name}": connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in names
            if not name.startswith(("sqlite_", "dbos_migrations"))
        }


def postgres(label: str, url: str) -> dict[str, float]:
    """Return the rows of each table of a database, its size, and the number of its connections."""
    query = (
        "SELECT CASE schemaname WHEN current_schema() THEN tablename ELSE format('%I.%I', schemaname, tablename) END FROM pg_tables "
        "WHERE schemaname NOT IN ('pg_catalog', 'information_schema') AND tablename NOT LIKE '%migrations'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        found: dict[str, float] = {}
        for (name,) in connection.execute(query.encode()).fetchall():
            ((count,),) = connection.execute(f"SELECT count(*) FROM {name}".encode()).fetchall()
            found[f"rows: {label}, {name}"] = count
        ((size,),) = connection.execute("SELECT pg_database_size(current_database())").fetchall()
        statement = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database()"
        ((clients,),) = connection.execute(statement.encode()).fetchall()
    return {**found, f"file in MB: {label}": size / MB, f"connections to PostgreSQL: {label}": clients - 1}


async def measured(folder: Path, sources: Mapping[str, Callable[[], dict[str, float]]]) -> dict[str, float]:
    """Return all values. The sources are read in a thread; `folder`: the files of the stores."""
    values = files(folder)  # not in a thread, because a task may delete a journal meanwhile
    for source in sources.values():
        values |= await asyncio.to_thread(source)
    return {**values, **registries(), **process()}
