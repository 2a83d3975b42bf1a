"""`aswarm batch`: `AsyncSwarm.batch` runs many conversations from a file concurrently.

SIGTERM, which docker, systemd and slurm send, stops a batch. The stop waits for work that must not be cut off.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, Literal, TextIO, get_args

import click

from aswarm import RateLimits
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm._values.settings import Transport
from aswarm._values.text import counted
from aswarm.batch import BatchResult, Item
from aswarm.cli._command import ExitCode, command, reserve_stdout
from aswarm.cli._load import load_agent
from aswarm.cli._options import AGENT_HELP, budget_option, context_option, max_turns_option, provider_options

from .durable import durable_batch
from .options import CommandOptions
from .output import (
    FAILED,
    PATIENCE,
    BatchOutput,
    RejectedLines,
    in_thread,
    line_of,
    open_output,
    rejected_path,
    status_of,
)
from .progress import Counts, Reporter, reporting
from .readers import BadLine, InputRecord, count, records_in


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM, which stops a batch like Ctrl-C. Only the exit code differs."""


def run_until_sigterm(main: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine with `asyncio.run`. SIGTERM cancels the coroutine; after its end, this function raises Terminated.

    On Windows and outside the main thread, signals keep their usual effect, because asyncio cannot handle them there.
    """
    try:
        asyncio.run(_cancelled_by_sigterm(main))
    except asyncio.CancelledError:
        raise Terminated from None


async def _cancelled_by_sigterm(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(main)
    with suppress(RuntimeError):  # its subclass NotImplementedError is the error of Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


async def finish(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Await the work. If the caller is cancelled, still wait for the work, at most this number of seconds."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.add_done_callback(_retrieve)
        await asyncio.wait([task], timeout=seconds)
        raise
    task.result()


def _retrieve(task: asyncio.Future[None]) -> None:
    """Retrieve the exception of the task. Otherwise asyncio would log it as "never retrieved"."""
    _ = task.cancelled() or task.exception()


_ATTEMPTS = 3


def _concurrency(value: str) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if not (value.isdecimal() and int(value)):
        raise click.BadParameter(f"expected a number of at least 1, or auto, not {value!r}")
    return int(value)


@command(
    "batch",
    ExitCode.NO_ANSWER,
    ExitCode.UNKNOWN_CALLS,
    ExitCode.TERMINATED,
    text="Run AGENT over every line of INPUT, many at once.\n\nWhen the run of a line finishes, its outcome is written. "
    f"{AGENT_HELP} INPUT is a file of JSON Lines or CSV, or - for stdin. A line has `messages`, or a text as `input` or "
    "`question`. It can also have `id`, `context_variables` and `metadata`; the metadata of CSV are its other columns. If the messages end with open calls, it can have "
    "`resume`, as for the option --resume of `aswarm run`. An invalid line is reported, and written to another file "
    "(out.rejected.jsonl for out.jsonl).\n\nAn outcome has id, status (answer, waiting, refusal, max_turns, budget, error), "
    "text, output (if the answer has a type), agent, usage, cost (in dollars, if it is known), attempts, duration in seconds, error, unknown_calls (the tool calls "
    "whose outcome is unknown), waiting (the calls that wait for a decision), metadata, context_variables, input_digest and "
    "messages.\n\nWith --store, failed items run again, so an output can have several lines for one id: "
    "the last line of an id counts. A crash may have cut off a line: skip each line that is not JSON.",
)
@click.argument("agent")
@click.argument("source", metavar="INPUT")
@click.option(
    "-o", "--output", metavar="FILE", default="-", show_default=True, help="The file for the outcomes, or - for stdout."
)
@click.option(
    "--concurrency",
    metavar="N|auto",
    type=_concurrency,
    default="10",
    show_default=True,
    help="The number of items that run at once; auto adapts the number to the provider.",
)
@click.option("--rpm", type=click.IntRange(min=1), metavar="N", help="The maximum number of requests per minute.")
@click.option("--tpm", type=click.IntRange(min=1), metavar="N", help="The maximum number of tokens per minute.")
@click.option(
    "--attempts",
    metavar="N",
    type=click.IntRange(min=1),
    show_default=str(_ATTEMPTS),
    help="The maximum number of attempts for a completion.",
)
@click.option(
    "--on-error",
    type=click.Choice(["keep", "stop"]),
    default="keep",
    show_default=True,
    help="After a failed item, keep running the other items, or stop starting items.",
)
@click.option(
    "--ordered",
    is_flag=True,
    help="Write outcomes in the order of the input. If the batch is stopped, an outcome that waits for an earlier outcome "
    "is lost; with --store, it is kept.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["jsonl", "csv"]),
    help="The format of INPUT. [default: by its ending, else jsonl]",
)
@click.option(
    "--column", metavar="NAME", help="The CSV column, or the JSON key, of the text. [default: input or question]"
)
@click.option(
    "--id-column", metavar="NAME", default="id", show_default=True, help="The CSV column, or the JSON key, of the id."
)
@click.option("--messages/--no-messages", default=True, help="Write the messages of each run, or leave them out.")
@click.option(
    "--transport",
    type=click.Choice(get_args(Transport)),
    default="auto",
    show_default=True,
    help="The HTTP client. auto: aiohttp, which is faster, if the extra aiohttp is installed; otherwise httpx. direct: no "
    "openai package in between, which needs the least CPU.",
)
@click.option(
    "--store",
    metavar="FILE|URL",
    help="Keep every finished turn in this SQLite file. After a stop or a crash, the same command continues: it skips the items "
    "whose last line in the output is not an error, and appends lines for the others. Or make each item a durable run in a database, "
    "sqlite:///runs.db or postgresql://user@host/database: `aswarm worker` can execute these runs too, on any machine.",
)
@click.option("--code-version", metavar="TEXT", help="For a database: the version of the agents' code, such as a date.")
@provider_options
@context_option
@max_turns_option
@budget_option
def batch(agent: str, output: str, **values: Any) -> None:
    """Run all items."""
    options = CommandOptions(output=output, **values)
    with reserve_stdout() as stdout:
        loaded = load_agent(agent)
        options.check()
        total = count(options.source, options.input_format)
        # A durable run that waits may have been answered since.
        unfinished = (FAILED, "waiting") if options.is_durable else (FAILED,)
        with open_output(output, stdout, resume=options.store is not None, unfinished=unfinished) as place:
            limits = RateLimits(requests_per_minute=options.rpm, tokens_per_minute=options.tpm)
            counts = Counts(total, limits=limits, unknown_calls=place.unknown_calls)
            work = _BatchRun(loaded, options, place, counts)
            code = work.run(sys.stderr, bar=not (output == "-" and stdout.isatty()))
    raise click.exceptions.Exit(code)


class _BatchRun:
    """One batch. It turns input lines into items, and outcomes into output lines."""

    def __init__(self, agent: Agent, options: CommandOptions, output: BatchOutput, counts: Counts) -> None:
        self._agent = agent
        self._options = options
        self._output = output
        self._rejected = RejectedLines(rejected_path(options.output))
        self._counts = counts
        self._reporter: Reporter

    def run(self, stderr: TextIO, *, bar: bool) -> ExitCode:
        """Run all items, and report on stderr. Returns the exit code."""
        try:
            with reporting(self._counts, stderr, bar=bar) as self._reporter:
                run_until_sigterm(self._run())
        except BaseException as error:
            is_interrupted = isinstance(error, KeyboardInterrupt)
            if is_interrupted or self._counts.statuses:
                self._summarize(stderr, "no item has finished", f"Stopped. {self._options.resume_hint()}")
            if not is_interrupted:
                raise
            return ExitCode.TERMINATED if isinstance(error, Terminated) else ExitCode.INTERRUPTED
        finally:
            self._rejected.close()
        self._summarize(stderr, "nothing to do", *self._stopped_by_a_failure())
        return self._exit_code()

    async def _run(self) -> None:
        options = self._options
        limits = self._counts.limits if options.rpm or options.tpm else None
        async with (
            AsyncSwarm(transport=options.transport, api=options.api, rate_limits=limits) as swarm,
            durable_batch(swarm, self._agent, self._items(), options)
            if options.is_durable
            else swarm.batch(
                self._agent,
                self._items(),
                concurrency=options.concurrency,
                ordered=options.ordered,
                on_error=options.on_error,
                attempts=options.attempts or _ATTEMPTS,
                context_variables=options.context,
                model_override=options.model,
                max_turns=options.max_turns,
                budget=options.budget,
                journal=options.journal,
            ) as outcomes,
        ):
            async for outcome in outcomes:
                # `finish` completes the record even if the batch is cancelled, so that each written line is also counted.
                await finish(self._record(outcome), PATIENCE)

    async def _items(self) -> AsyncGenerator[Item]:
        async with aclosing(in_thread(records_in(self._options.source, self._options.input_format))) as records:
            async for record in records:
                if isinstance(record, BadLine):
                    self._reject(record)
                elif self._output.has(record):
                    self._counts.before += 1
                    self._reporter.update()
                else:
                    yield Item(
                        record.messages,
                        id=record.key,
                        context_variables=record.context_variables,
                        metadata=record,
                        resume=record.resume,
                    )
        self._counts.is_read = True

    def _reject(self, bad: BadLine) -> None:
        self._rejected.add(bad)
        self._counts.bad += 1
        self._reporter.problem("bad lines", f"line {bad.line}: {bad.error}")
        self._reporter.update()

    async def _record(self, outcome: BatchResult) -> None:
        record: InputRecord = outcome.metadata
        if outcome.unknown_calls:
            self._counts.unknown_calls.append(len(outcome.unknown_calls))
        await self._output.add(line_of(outcome, messages=self._options.messages))
        status = status_of(outcome.response, outcome.error)
        self._counts.statuses[status] += 1
        self._counts.usage += outcome.usage
        if outcome.error is not None:
            self._reporter.problem("failed items", f"line {record.line} (id {record.id}) failed: {outcome.error}")
        self._reporter.update()

    def _exit_code(self) -> ExitCode:
        if self._counts.bad or self._counts.statuses[FAILED]:
            return ExitCode.FAILED
        if self._counts.unknown_calls:
            return ExitCode.UNKNOWN_CALLS
        statuses = {*self._counts.statuses, *self._output.statuses}
        return ExitCode.DONE if statuses <= {"answer"} else ExitCode.NO_ANSWER

    def _stopped_by_a_failure(self) -> list[str]:
        counts = self._counts
        left = None if counts.total is None else counts.total - counts.done
        if self._options.on_error != "stop" or not counts.statuses[FAILED] or counts.is_read or left == 0:
            return []
        not_started = "" if left is None else f", {counted(left, 'line')} not started"
        return [f"Stopped: an item failed{not_started}. {self._options.resume_hint()}"]

    def _summarize(self, stderr: TextIO, nothing: str, *more: str) -> None:
        """Print the counts. `nothing`: the text if no item has finished. `more`: more lines, such as how to continue."""
        lines = [*self._counts.summary(nothing), *more]
        if self._rejected.count:
            lines.insert(1, f"{counted(self._rejected.count, 'line')} rejected; see {self._rejected.path}")
        if self._options.output != "-":
            lines.append(f"Outcomes are in {self._options.output}")
        for line in lines:
            click.echo(line, file=stderr)
