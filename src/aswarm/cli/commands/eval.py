"""`aswarm eval`: runs a file of cases with `aswarm.evals`."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from aswarm._swarm import AsyncSwarm
from aswarm.cli._command import CommandFailed, ExitCode, command, log_as_notes, reserve_stdout, write, writing
from aswarm.cli._load import load_agent, put_on_path
from aswarm.cli._options import (
    budget_option,
    context_option,
    count_option,
    max_turns_option,
    provider_options,
)

if TYPE_CHECKING:
    from aswarm._values.budget import Budget
    from aswarm._values.settings import ApiName
    from aswarm.evals import Report


@command(
    "eval",
    ExitCode.BELOW_THRESHOLD,
    text="Run the cases of FILE, and print how many passed.\n\nFILE is a list of cases in JSON or YAML, such as "
    '[{"conversation": "Where is my order?", "function": "transfer_to_orders"}]. A case may name its agent. The module of '
    "the agent may be in the folder of FILE or in the current directory.",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-a",
    "--agent",
    metavar="AGENT",
    help="The agent for all cases, instead of the agents in FILE: module:attribute, or path/to/file.py:attribute.",
)
@provider_options
@context_option
@count_option("-n", "--repeats", default=1, text="The number of attempts for each case.")
@count_option("--concurrency", default=10, text="The number of attempts that run at once.")
@click.option(
    "--threshold",
    metavar="NUMBER",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="The lowest accuracy that passes, from 0 to 1. Below it the exit code is 4.",
)
@click.option("--results", type=click.Path(dir_okay=False), help="A JSON file to append the results to.")
@max_turns_option
@budget_option
@click.option(
    "--judge-model", metavar="NAME", help="The model that judges answers. [default: --model, or the model of the agent]"
)
def evals(
    file: Path,
    agent: str | None,
    model: str | None,
    api: ApiName,
    context: dict[str, Any],
    budget: Budget | None,
    threshold: float,
    **options: Any,
) -> None:
    """Run the cases."""
    from aswarm.evals import load_cases  # noqa: PLC0415 - no other command needs it

    put_on_path(file.parent)
    put_on_path(Path())
    with log_as_notes(), reserve_stdout() as stdout:
        loaded = None if agent is None else load_agent(agent)
        options |= {"model_override": model, "swarm": AsyncSwarm(api=api, budget=budget)}
        cases = [
            dataclasses.replace(case, context_variables={**context, **(case.context_variables or {})})
            for case in load_cases(file, agent=loaded)
        ]
        report = asyncio.run(_evaluate(cases, stdout, options))
    if report.errors == report.total:
        raise CommandFailed("every attempt ended in an error")
    if report.accuracy < threshold:
        click.echo(f"Below the threshold: {report.accuracy:.1%}, and {threshold:.1%} are required", err=True)
        raise click.exceptions.Exit(ExitCode.BELOW_THRESHOLD)


async def _evaluate(cases: list[Any], stdout: TextIO, options: dict[str, Any]) -> Report:
    from aswarm.evals import evaluate  # noqa: PLC0415 - as above
    from aswarm.evals._files import ResultsError  # noqa: PLC0415 - as above

    with writing(options.get("results"), ResultsError):
        try:
            async with options["swarm"]:
                report = await evaluate(None, cases, progress=True, **options)
        except BaseException as error:
            # After Ctrl-C, or if the results cannot be written, the error has a report. Print it, because the finished
            # attempts have cost money.
            if (finished := getattr(error, "report", None)) is not None:
                write(stdout, f"{finished}\n")
            raise
    write(stdout, f"{report}\n")
    return report
