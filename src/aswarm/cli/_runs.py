"""`aswarm worker` and `aswarm runs`: durable runs from a terminal. Decides what is printed; `aswarm.durable` does the work.

The process of `aswarm runs` executes no run.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from aswarm._text import how_to_install

from ._command import AppCommand, command
from ._exits import SetupError
from ._load import load_runs

if TYPE_CHECKING:
    from aswarm._decisions import Decision
    from aswarm.durable import DurableRun, DurableRuns
    from aswarm.serve import RunRecord

_STATUSES = ("running", "waiting", "finished", "failed", "stopped")
_SECONDS_FOR_OTHERS = 30.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TARGET = (
    "TARGET is module:attribute, such as agents:runs, or path/to/file.py:attribute. It names a DurableRuns, or a function without "
    "parameters that returns one"
)
_OR_URL = f"{_TARGET}. It may also be the URL of the database, such as postgresql://user@host/database."


@command(
    "worker",
    text=f"Execute durable runs until SIGTERM or Ctrl-C.\n\n{_TARGET}. Start as many workers as you like, on any machine that "
    "reaches the database. After the signal the process begins no run. Other workers continue the runs that have not ended after "
    "--drain seconds, or after a second signal. Needs the extra durable.",
)
@click.argument("target")
@click.option(
    "--drain",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="The time that runs have to end after the signal.",
)
def worker(target: str, drain: float) -> None:
    """Execute runs."""
    anyio.run(_work, _durable(target), drain)


async def _work(runs: DurableRuns, drain: float) -> None:
    if runs.concurrency < 1:
        raise SetupError("these runs have concurrency=0, with which a process executes none; give a worker at least 1")
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with runs:
            click.echo(
                f"executing runs of the version {runs.version}, {runs.concurrency} at once (Ctrl-C ends it)", err=True
            )
            await anext(aiter(signals))
            async with anyio.create_task_group() as group:
                group.start_soon(_drain_at_once, runs, signals)
                await runs.drain(drain)
                group.cancel_scope.cancel()


async def _drain_at_once(runs: DurableRuns, signals: AsyncIterator[signal.Signals]) -> None:
    """Wait for runs no longer, after another signal."""
    await anext(signals)
    await runs.drain(0)


def _durable(target: str) -> DurableRuns:
    try:
        from aswarm.durable import DurableRuns  # noqa: PLC0415 - only once it is needed
    except ModuleNotFoundError as error:
        raise SetupError(f"durable runs need the package {error.name}: {how_to_install('durable')}") from error
    found = load_runs(target)
    if not isinstance(found, DurableRuns):
        raise SetupError(f"{target} must be a DurableRuns, or a function that returns one, not {type(found).__name__}")
    return found


@asynccontextmanager
async def _opened(target: str) -> AsyncGenerator[DurableRuns]:
    """The runs, in a process that does not execute them."""
    if "://" in target:
        from aswarm import Agent, AsyncSwarm  # noqa: PLC0415 - as above
        from aswarm.durable import DurableRuns  # noqa: PLC0415 - as above

        made = DurableRuns(AsyncSwarm(), agents=Agent(name="-"), store=target, version="-", concurrency=0)
    else:
        made = _durable(target).as_client()
    async with made as runs:
        yield runs


def _run(target: str, work: Callable[[DurableRuns], Awaitable[Any]]) -> None:
    if (path := target.removeprefix("sqlite:///")) != target and not Path(path).exists():
        raise SetupError(f"there is no database {path!r}")

    async def main() -> None:
        async with _opened(target) as runs:
            await work(runs)

    anyio.run(main)


def _print(data: Any) -> None:
    click.echo(json.dumps(data, ensure_ascii=False))


def _shown(record: RunRecord) -> dict[str, Any]:
    return {**record.to_dict(), "user": record.user}


class _Runs(AppCommand, click.Group):
    pass


runs = _Runs(
    "runs", help="Look at durable runs, cancel, answer and delete them.\n\nThe output is JSON, one object on each line."
)


@command("list", text=f"List the newest runs of all users.\n\n{_OR_URL}")
@click.argument("target")
@click.option(
    "--status", type=click.Choice(_STATUSES), help="Only runs with this status; waiting: those that wait for an answer."
)
@click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="The most runs to list."
)
def list_runs(target: str, status: Any, limit: int) -> None:
    """Print a line for each run."""

    async def work(found: DurableRuns) -> None:
        for record in await found.records(status=status, limit=limit):
            _print(_shown(record))

    _run(target, work)


@command("show", text=f"Show a run, and its result once it has ended.\n\n{_OR_URL}")
@click.argument("target")
@click.argument("run_id")
def show(target: str, run_id: str) -> None:
    """Print the record of a run, with its last entry once it has ended."""

    async def work(found: DurableRuns) -> None:
        run = await found.find(run_id)
        last = None if run.record.is_running else await run.last_entry()
        _print({**_shown(run.record), **({} if last is None else {"end": last.to_dict()})})

    _run(target, work)


@command(
    "cancel",
    text="Stop a run, and wait until its functions have ended.\n\nAny worker may execute it. A run that waits for an answer is "
    f"stopped too: the model is told that its calls have not run. {_OR_URL}",
)
@click.argument("target")
@click.argument("run_id")
def cancel(target: str, run_id: str) -> None:
    """Stop the run, and print its record."""

    async def work(found: DurableRuns) -> None:
        run: DurableRun = await found.find(run_id)
        try:
            with anyio.fail_after(_SECONDS_FOR_OTHERS if "://" in target else None):
                _print(_shown(await found.cancel(run.id, user=run.record.user)))
        except TimeoutError:
            raise SetupError(
                f"the run {run_id} has begun, and no worker that has its agent and version has stopped it yet; start one, or give "
                "module:attribute with its agents"
            ) from None

    _run(target, work)


def _decision(text: str) -> tuple[str, Decision]:
    from aswarm._decisions import Answer  # noqa: PLC0415 - only once it is needed

    call, equals, value = text.partition("=")
    if not (call and equals):
        raise click.BadParameter(f"expected CALL=yes, CALL=no or CALL=JSON, not {text!r}")
    if value in ("yes", "no"):
        return call, value == "yes"
    try:
        return call, Answer(json.loads(value))
    except ValueError as error:
        raise click.BadParameter(f"the answer to {call} is neither yes, no nor JSON: {error}") from error


@command(
    "answer",
    text=f"Decide on the calls that a run waits for.\n\nA worker executes the run that continues it. {_TARGET}. ANSWER is "
    "CALL=yes, CALL=no, or CALL=JSON for the answer to a question. CALL is the id of the call, which `aswarm runs show` prints.",
)
@click.argument("target")
@click.argument("run_id")
@click.argument("answer", nargs=-1, required=True)
def answer(target: str, run_id: str, answer: tuple[str, ...]) -> None:
    """Answer, and print the record of the run that continues."""
    if "://" in target:
        raise SetupError("the URL of a database has no agents, which the answer needs: give module:attribute")
    answers = dict(map(_decision, answer))

    async def work(found: DurableRuns) -> None:
        _print(_shown((await (await found.find(run_id)).answer(answers)).record))

    _run(target, work)


def _seconds(_: click.Context, __: click.Parameter, value: str) -> float:
    number, unit = value[:-1], value[-1:]
    if unit not in _UNITS or not number.isdecimal():
        raise click.BadParameter(f"expected a number with its unit, such as 30d, 12h, 10m or 0s, not {value!r}")
    return int(number) * _UNITS[unit]


@command(
    "purge",
    text="Delete the runs that have ended, with their logs and steps.\n\nThe conversation that a run has begun for itself goes with "
    f"the last of its runs; others stay. A run that waits for an answer stays: answer or cancel it first. {_OR_URL}",
)
@click.argument("target")
@click.option(
    "--older-than",
    required=True,
    callback=_seconds,
    metavar="TIME",
    help="The least age of a run that is deleted, such as 30d, 12h or 10m.",
)
def purge(target: str, older_than: float) -> None:
    """Delete, and print how many."""

    async def work(found: DurableRuns) -> None:
        _print({"deleted": await found.purge(older_than)})

    _run(target, work)


for each in (list_runs, show, cancel, answer, purge):
    runs.add_command(each)
