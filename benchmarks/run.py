"""Measures all contenders side by side and writes `results/`: a table, the raw numbers, plots.

    python run.py --quick             aswarm and the hand-written loops, a minute or two
    python run.py --batches           batches
    python run.py --responses         the Responses API
    python run.py --additions         the cost of middleware, guards and traces
    python run.py --peers DIRECTORY   the frameworks too: DIRECTORY has a virtual environment for each of `peers.toml`

Contenders take turns (A B C, C B A, ...). Every figure is the median, over the rounds, of the ratio to the hand-written loop
on `AsyncOpenAI` in the same round. CPU is measured in the contender's process; the server is another process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from figures import (
    FIGURES,
    FIGURES_OVER_RESPONSES,
    FIGURES_WITH_ADDITIONS,
    REFERENCE,
    REFERENCE_OVER_RESPONSES,
    Figure,
    Samples,
)
from plots import draw
from processes import HERE, Contender, Worker, server
from report import markdown

OURS = (
    REFERENCE,
    "bare_socket",
    "handwritten_httpx",
    "aswarm_",
    "aswarm_aiohttp",
    "aswarm_direct",
    "aswarm_batch",
    "aswarm_journal",
    "handwritten_aiohttp",
    "aswarm_batch_aiohttp",
    "aswarm_journal_aiohttp",
    REFERENCE_OVER_RESPONSES,
    "aswarm_responses",
    "aswarm_middleware",
    "aswarm_guard_input",
    "aswarm_guard_tool",
    "aswarm_hold_answer",
    "aswarm_otel",
    "aswarm_otel_content",
)


@dataclass(slots=True)
class Field:
    """The contenders that passed the rehearsal, with their workers; and the reasons why the others are missing."""

    url: str
    workers: dict[Contender, Worker] = field(default_factory=dict)
    about: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    verbose: bool = False


@asynccontextmanager
async def opened(contenders: Sequence[Contender], *, verbose: bool) -> AsyncIterator[Field]:
    """Start the server and the workers, and rehearse."""
    async with AsyncExitStack() as stack:
        here = Field(await stack.enter_async_context(server(verbose=verbose)), verbose=verbose)
        for contender in contenders:
            worker = await stack.enter_async_context(contender.worker(here.url, verbose=verbose))
            rehearsed = await worker.ask("rehearse")
            if "error" in rehearsed:
                here.left_out[contender.name] = rehearsed["error"]
                continue
            here.workers[contender] = worker
            here.about[contender.name] = {**rehearsed, **await worker.ask("about")}
        yield here


def _labels(figure: Figure, here: Field, contender: Contender) -> dict[str, dict[str, Any]]:
    """Return the jobs of a contender for a figure, by the label of their row."""
    job = dict(figure.job)
    if not figure.per_view:
        return {contender.name: job}
    return {f"{contender.name} {view}": {**job, "view": view} for view in here.about[contender.name]["views"]}


async def _result(figure: Figure, here: Field, contender: Contender, job: dict[str, Any]) -> dict[str, Any]:
    if figure.name == "import":
        return await contender.import_cpu(here.about[contender.name]["import"])
    if figure.fresh:
        async with contender.worker(here.url, verbose=here.verbose) as worker:
            return await worker.ask(**job)
    return await here.workers[contender].ask(**job)


async def measure(figure: Figure, here: Field, rounds: int) -> Samples:
    """Measure all rounds of one figure."""
    samples = Samples(figure)
    jobs = {
        (contender, label): job
        for contender in here.workers
        if figure.is_for(contender.name)
        for label, job in _labels(figure, here, contender).items()
    }
    for number in range(min(rounds, figure.rounds or rounds)):
        order = list(jobs.items())
        results: dict[str, dict[str, Any]] = {}
        for (contender, label), job in order if number % 2 == 0 else reversed(order):
            results[label] = await _result(figure, here, contender, job)
        samples.rounds.append({label: results[label] for _, label in jobs})
    return samples


def contenders_of(peers: Path | None, names: Sequence[str]) -> list[Contender]:
    """Return our contenders, and the peers with an environment in `peers`."""
    found = [Contender(name) for name in OURS]
    if peers is not None:
        known = tomllib.loads(HERE.joinpath("peers.toml").read_text())
        pythons = {name: peers.absolute() / name / "bin" / "python" for name in known}
        found += [Contender(name, os.fspath(python)) for name, python in pythons.items() if python.exists()]
    return [contender for contender in found if not names or contender.name in names]


def figures_of(arguments: argparse.Namespace) -> list[Figure]:
    """Return the figures of the command line: by name, or all of batches, or all others, perhaps only the quick ones."""
    known = FIGURES_OVER_RESPONSES if arguments.responses else FIGURES
    known = FIGURES_WITH_ADDITIONS if arguments.additions else known
    if arguments.figures:
        return [figure for figure in known if figure.name in arguments.figures]
    those = [figure for figure in known if figure.is_of_batch == arguments.batches]
    return [figure for figure in those if figure.quick or not arguments.quick]


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure everything, and return it in the form of `results.json`."""
    begun = datetime.now(UTC)
    figures = figures_of(arguments)
    references = {figure.reference for figure in figures}
    contenders = [
        contender
        for contender in contenders_of(arguments.peers, arguments.only and [*arguments.only, *references])
        if any(figure.is_for(contender.name) for figure in figures)
    ]
    async with opened(contenders, verbose=arguments.verbose) as here:
        found: list[Samples] = []
        for figure in figures:
            print(f"{figure.name} ...", flush=True)
            found.append(await measure(figure, here, arguments.rounds))
    return {
        "date": begun.date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "rounds": arguments.rounds,
        "reference": figures[0].reference,
        "contenders": here.about,
        "left_out": here.left_out,
        "figures": [samples.as_json() for samples in found],
    }


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the figures that take minutes")
    parser.add_argument("--batches", action="store_true", help="the figures of batches, and no others")
    parser.add_argument("--responses", action="store_true", help="over the Responses API, and no other figures")
    parser.add_argument("--additions", action="store_true", help="what is added to a run, and no other figures")
    parser.add_argument("--peers", type=Path, metavar="DIRECTORY", help="the environments of the peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[], metavar="CONTENDER", help="these, and the reference")
    parser.add_argument("--figures", nargs="+", default=[], metavar="FIGURE", help="these only, by name")
    parser.add_argument(
        "--output", type=Path, help="a folder; default: results, results/responses or results/additions"
    )
    parser.add_argument("--verbose", action="store_true", help="show what the contenders write to standard error")
    return parser.parse_args()


def main() -> None:
    """Measure, write, show."""
    arguments = parse()
    results = asyncio.run(run(arguments))
    folder = "additions" if arguments.additions else "responses" if arguments.responses else ""
    output = arguments.output or (HERE / "results" / folder)
    output.mkdir(parents=True, exist_ok=True)
    output.joinpath("results.json").write_text(json.dumps(results, indent=1) + "\n")
    text = markdown(results)
    output.joinpath("results.md").write_text(text)
    if not folder:
        draw(results, output)
    print(text)


if __name__ == "__main__":
    main()
