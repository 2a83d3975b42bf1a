"""Measures the contenders of a table side by side, and prints the table.

    python run.py                 the cost of a turn: aswarm, a loop by hand, the limits, other frameworks
    python run.py responses       the cost of a turn over the Responses API
    python run.py additions       the cost of middleware, guards and traces
    python run.py batches         the cost of batches

`--write` also writes `results/NAME.json`, and updates the pages that show the table.

Each round measures all figures, and reverses the order of the contenders. A figure is the median of the ratios to the reference in
the same round; lower is better. CPU is the CPU of the contender's process; the server is another process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from figures import NAMES, TABLES, Figure, Samples, Table
from processes import HERE, Worker, fresh, server, worker
from report import page_of, update_pages

PACKAGES = (
    *("aswarm", "openai", "httpx2", "httpx", "aiohttp", "anyio", "pydantic"),
    *("agent-framework-core", "agent-framework-openai", "agno", "openai-agents", "pydantic-ai-slim"),
)


@dataclass(slots=True)
class Field:
    """The contenders of a run. `workers`: their processes. `left_out`: the contenders that failed the rehearsal, and why.

    `in_turn`: the contenders that run two tools of a turn one after another.
    """

    url: str
    workers: dict[str, Worker] = field(default_factory=dict)
    in_turn: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    verbose: bool = False


@asynccontextmanager
async def opened(contenders: Sequence[str], *, verbose: bool) -> AsyncIterator[Field]:
    """Start the server and the workers. Each worker rehearses, and a contender that fails is left out."""
    async with AsyncExitStack() as stack:
        here = Field(await stack.enter_async_context(server(verbose=verbose)), verbose=verbose)
        for contender in contenders:
            mine = await stack.enter_async_context(worker(contender, here.url, verbose=verbose))
            rehearsed = await mine.ask("rehearse")
            if "error" in rehearsed:
                here.left_out[contender] = rehearsed["error"]
                print(f"left out: {contender}: {rehearsed['error']}", flush=True)
                continue
            here.workers[contender] = mine
            if rehearsed["together"] == 1:
                here.in_turn.append(contender)
        yield here


async def _result(figure: Figure, here: Field, contender: str) -> dict[str, Any]:
    if figure.name == "first_answer":
        return await fresh(contender, here.url)
    if figure.fresh:
        async with worker(contender, here.url, verbose=here.verbose) as process:
            return await process.ask(**figure.job)
    return await here.workers[contender].ask(**figure.job)


async def measure(figure: Figure, here: Field, *, backwards: bool) -> dict[str, dict[str, Any]]:
    """Measure one round of one figure."""
    order = [contender for contender in here.workers if not figure.only or contender in figure.only]
    results = {}
    for contender in reversed(order) if backwards else order:
        results[contender] = await _result(figure, here, contender)
    return {contender: results[contender] for contender in order}


async def run(table: Table, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all figures, and return the results in the form of the JSON file."""
    begun, load = datetime.now(UTC), os.getloadavg()[0]
    figures = [figure for figure in table.figures if not arguments.figures or figure.name in arguments.figures]
    contenders = [each for each in table.contenders if not arguments.only or each in (table.reference, *arguments.only)]
    samples = [Samples(figure, table.reference) for figure in figures]
    async with opened(contenders, verbose=arguments.verbose) as here:
        for number in range(arguments.rounds):
            print(f"round {number + 1} of {arguments.rounds}", flush=True)
            for each in samples:
                if number < (each.figure.rounds or arguments.rounds):
                    each.rounds.append(await measure(each.figure, here, backwards=number % 2 == 1))
    return {
        "date": begun.date().isoformat(),
        "processor": f"{processor()}, {os.cpu_count()} cores, {platform.system()}",
        "load": [load, os.getloadavg()[0]],
        "rounds": arguments.rounds,
        "reference": table.reference,
        "versions": versions(),
        "in_turn": here.in_turn,
        "left_out": here.left_out,
        "figures": [each.as_json() for each in samples],
    }


def processor() -> str:
    """Return the model of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(": ")[2].replace("(R)", "").replace("(TM)", "")
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=TABLES, default="costs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CONTENDER", help=f"the reference and: {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--figures", nargs="+", default=[], metavar="FIGURE", help="the names of the figures to measure"
    )
    parser.add_argument("--write", action="store_true", help="write the results, and the pages that show them")
    parser.add_argument("--verbose", action="store_true", help="show what the contenders write to standard error")
    return parser.parse_args()


def main() -> None:
    """Measure the table, print it, and write it if `--write` is set."""
    arguments = parse()
    results = asyncio.run(run(TABLES[arguments.table], arguments))
    print(page_of(arguments.table, results))
    if arguments.write:
        HERE.joinpath(f"results/{arguments.table}.json").write_text(json.dumps(results, indent=1) + "\n")
        update_pages()


if __name__ == "__main__":
    main()
