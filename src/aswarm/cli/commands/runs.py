"""`aswarm worker` executes durable runs. `aswarm runs` lists and changes them, and executes none."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import click

from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm.cli._command import AppCommand, SetupError, command
from aswarm.cli._load import extra, load_runs
from aswarm.cli._options import count_option
from aswarm.cli._server import received

if TYPE_CHECKING:
    from aswarm._values.decisions import Decision
    from aswarm.durable import DurableRuns
    from aswarm.runs import Run, RunRecord

_STATUSES = ("queued", "running", "waiting", "finished", "failed", "stopped", "unreachable")
SECONDS_FOR_OTHERS = 30.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TARGET = (
    "TARGET is module:attribute, such as agents:runs, or path/to/file.py:attribute. It names a DurableRuns, or a function without "
    "parameters that returns one"
)
_OR_URL = f"{_TARGET}. It may also be the URL of the database, such as postgresql://user@host/database."


@command(
    "worker",
    text=f"Execute durable runs until SIGTERM or Ctrl-C.\n\n{_TARGET}. Start as many workers as you like, on any machine that "
    "reaches the database. After the signal, the process starts no run. Other workers continue the runs that are unfinished after "
    "--drain seconds, or after a second signal. Needs the extra durable.",
)
@click.argument("target")
@click.option(
    "--drain",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30,
    show_default=True,
    help="The time for runs to finish after the signal.",
)
def worker(target: str, drain: float) -> None:
    """Execute runs."""
    anyio.run(_work, _durable(target), drain)


async def _work(runs: DurableRuns, drain: float) -> None:
    if runs.concurrency < 1:
        raise SetupError("these runs have concurrency=0, so no process executes them; a worker needs at least 1")
    with received(signal.SIGTERM, signal.SIGINT) as signals:
        async with runs.swarm, runs:
            click.echo(
                f"executing runs of the version {runs.version}, {runs.concurrency} at once (Ctrl-C ends it)", err=True
            )
            await anext(signals)
            async with anyio.create_task_group() as group:
                group.start_soon(_drain_at_once, runs, signals)
                await runs.drain(drain)
                group.cancel_scope.cancel()


async def _drain_at_once(runs: DurableRuns, signals: AsyncIterator[int]) -> None:
    """Wait for another signal, and then stop waiting for runs."""
    await anext(signals)
    await runs.drain(0)


def _durable(target: str) -> DurableRuns:
    with extra("durable", "durable runs need"):
        from aswarm.durable import DurableRuns  # noqa: PLC0415 - only once it is needed
    loaded = load_runs(target)
    if not isinstance(loaded, DurableRuns):
        raise SetupError(f"{target} must be a DurableRuns, or a function that returns one, not {type(loaded).__name__}")
    return loaded


def _client(target: str) -> DurableRuns:
    """Return a `DurableRuns` that executes no runs in this process."""
    if "://" not in target:
        return _durable(target)._as_client()  # noqa: SLF001 - only this command watches runs without executing them
    with extra("durable", "durable runs need"):
        from aswarm.durable import DurableRuns  # noqa: PLC0415 - as above
    return DurableRuns(AsyncSwarm(), agents=Agent(name="-"), store=target, version="-", concurrency=0)


def _print(data: Any) -> None:
    click.echo(json.dumps(data, ensure_ascii=False))


def _print_record(record: RunRecord, **more: Any) -> None:
    # As in --status: a run that has finished with open calls waits.
    status = "waiting" if record.reason == "waiting" else record.status
    _print({**record.to_dict(), "status": status, "user": record.user, **more})


class _Runs(AppCommand, click.Group):
    pass


runs = _Runs(
    "runs",
    help="List, show, cancel, answer, release and delete durable runs.\n\nThe output is JSON, one object on each line.",
)


def _runs_command(
    name: str, text: str, *, needs_agents: bool = False
) -> Callable[[Callable[..., Awaitable[None]]], click.Command]:
    """Return a decorator that makes an async function a command of `runs`.

    The function gets the `DurableRuns` of TARGET, and the other options.
    """

    def make(work: Callable[..., Awaitable[None]]) -> click.Command:
        @wraps(work)
        def run(target: str, **options: Any) -> None:
            if needs_agents and "://" in target:
                raise SetupError(
                    "an answer needs the agents, and the URL of a database has none; give module:attribute"
                )
            if (path := target.removeprefix("sqlite:///")) != target and not Path(path).exists():
                raise SetupError(f"there is no database {path!r}")
            anyio.run(partial(main, target, **options))

        async def main(target: str, **options: Any) -> None:
            client = _client(target)
            async with client.swarm, client:
                await work(client, **options)

        return command(name, text=text)(click.argument("target")(run))

    return make


@_runs_command("list", f"List the newest runs of all users.\n\n{_OR_URL}")
@click.option(
    "--status",
    type=click.Choice(_STATUSES),
    help="Only runs with this status; waiting: runs that wait for an answer; unreachable: queued runs with a version or an agent "
    "that TARGET does not have.",
)
@count_option("--limit", default=100, text="The maximum number of runs to list.")
async def list_runs(client: DurableRuns, status: Any, limit: int) -> None:
    """Print a line for each run."""
    for record in await client.records(status=status, limit=limit):
        _print_record(record)


@_runs_command("show", f"Show a run, and its result when it has finished.\n\n{_OR_URL}")
@click.argument("run_id")
async def show(client: DurableRuns, run_id: str) -> None:
    """Print the record of a run. If the run has ended, add its last entry."""
    run = await client.find_run(run_id)
    last = None if run.record.is_running else await run.last_entry()
    _print_record(run.record, **({} if last is None else {"end": last.to_dict()}))


@_runs_command(
    "cancel",
    "Stop a run in any worker, and wait until its functions stop.\n\nA run that waits for an answer can be stopped too: its "
    f"waiting calls do not run. {_OR_URL}",
)
@click.argument("run_id")
async def cancel(client: DurableRuns, run_id: str) -> None:
    """Stop the run, and print its record."""
    run: Run = await client.find_run(run_id)
    has_agents = "://" not in click.get_current_context().params["target"]
    try:
        with anyio.fail_after(None if has_agents else SECONDS_FOR_OTHERS):
            _print_record(await client.cancel(run.id, user=run.record.user))
    except TimeoutError:
        raise SetupError(
            f"the run {run_id} has started, and no worker with its agent and version has stopped it yet; start such a worker, or "
            "give module:attribute with its agents"
        ) from None


@_runs_command(
    "release",
    f"Return the run of a hanging process to the queue.\n\nThe process can write nothing more to the run, but its functions may "
    f"continue: end the process if you can. {_OR_URL}",
)
@click.argument("run_id")
async def release(client: DurableRuns, run_id: str) -> None:
    """Return the run to the queue, and print its record."""
    await client.release(run_id)
    _print_record((await client.find_run(run_id)).record)


def _decision(text: str) -> tuple[str, Decision]:
    from aswarm._values.decisions import Reply  # noqa: PLC0415 - only once it is needed

    call, equals, value = text.partition("=")
    if not (call and equals):
        raise click.BadParameter(f"expected CALL=yes, CALL=no or CALL=JSON, not {text!r}")
    if value in ("yes", "no"):
        return call, value == "yes"
    try:
        return call, Reply(json.loads(value))
    except ValueError as error:
        raise click.BadParameter(f"the answer to {call} is neither yes, no nor JSON: {error}") from error


@_runs_command(
    "answer",
    f"Decide on the calls that a run waits for.\n\nThe answer starts a new run, which a worker executes. {_TARGET}. ANSWER is "
    "CALL=yes, CALL=no, or CALL=JSON for the answer to a question. CALL is the id of the call, which `aswarm runs show` prints.",
    needs_agents=True,
)
@click.argument("run_id")
@click.argument("answer", nargs=-1, required=True, type=_decision)
async def answer(client: DurableRuns, run_id: str, answer: tuple[tuple[str, Decision], ...]) -> None:
    """Answer the calls, and print the record of the new run."""
    _print_record((await (await client.find_run(run_id)).answer(dict(answer))).record)


def _seconds(value: str) -> float:
    number, unit = value[:-1], value[-1:]
    if unit not in _UNITS or not number.isdecimal():
        raise click.BadParameter(f"expected a number with its unit, such as 30d, 12h, 10m or 0s, not {value!r}")
    return int(number) * _UNITS[unit]


@_runs_command(
    "purge",
    "Delete old runs that are finished, failed or stopped, with their logs.\n\nA conversation that was created for a run is deleted with the last of its runs; "
    f"other conversations are kept. A run that waits for an answer is kept: answer or cancel it first. {_OR_URL}",
)
@click.option(
    "--older-than",
    required=True,
    type=_seconds,
    metavar="TIME",
    help="The minimum age of a run to delete, such as 30d, 12h or 10m.",
)
async def purge(client: DurableRuns, older_than: float) -> None:
    """Delete, and print the number of deleted runs."""
    _print({"deleted": await client.purge(older_than_seconds=older_than)})


for subcommand in (list_runs, show, cancel, release, answer, purge):
    runs.add_command(subcommand)
