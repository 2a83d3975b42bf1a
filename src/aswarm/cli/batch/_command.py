"""`aswarm batch`: a file of conversations, run many at once. Decides what is read, written and told, and the exit code.

How they run, with limits, retries and a journal, is decided by `AsyncSwarm.batch`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import click

from aswarm._agent import Agent
from aswarm._rate_limits.policy import RateLimits
from aswarm._swarm import AsyncSwarm
from aswarm.batch import Item, Outcome
from aswarm.cli._exits import HELP, Code
from aswarm.cli._load import load_agent
from aswarm.cli._options import AGENT_HELP, context_option, max_turns_option, provider, provider_options
from aswarm.cli._output import own_stdout

from . import _signals
from ._order import Order
from ._outcomes import FAILED, status_of, written
from ._output import PATIENCE, Output, open_output
from ._progress import Tally, Teller, teller
from ._readers import count, lines_of
from ._records import BadLine, Entry
from ._rejected import Aside, aside_of
from ._summary import Summary
from ._threads import in_thread, to_its_end


def _at_once(_: click.Context, __: click.Parameter, value: str) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if not (value.isdecimal() and int(value)):
        raise click.BadParameter(f"expected a number from 1 on, or auto, not {value!r}")
    return int(value)


@click.command(
    epilog=HELP,
    help="Run AGENT over every line of INPUT, many at once, and write an outcome for each as it comes.\n\n"
    f"{AGENT_HELP} INPUT is JSON Lines, or CSV; - is read from stdin. A line has `messages`, or a text as `input` or "
    "`question`; it may have `id`, `context_variables` and `metadata`. Lines that cannot be used are told, and kept "
    "aside in a file beside the output (out.jsonl: out.rejected.jsonl).\n\nAn outcome has id, status (answer, refusal, "
    "max_turns, error), text, agent, usage, attempts, duration in seconds, error, context_variables and messages.",
)
@click.argument("agent")
@click.argument("source", metavar="INPUT")
@click.option("-o", "--output", default="-", help="The file for the outcomes. [default: stdout]")
@click.option("--concurrency", callback=_at_once, default="10", show_default=True, help="At once; auto finds it out.")
@click.option("--rpm", type=click.IntRange(min=1), metavar="N", help="Requests per minute, at most.")
@click.option("--tpm", type=click.IntRange(min=1), metavar="N", help="Tokens per minute, at most.")
@click.option(
    "--journal",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that keeps every finished turn. The same command again goes on from there, after a crash too.",
)
@click.option("--resume", is_flag=True, help="Go on with an output that has lines: run what is not there, or failed.")
@click.option(
    "--attempts", type=click.IntRange(min=1), default=3, show_default=True, help="For each completion, at most."
)
@click.option(
    "--on-error", type=click.Choice(["keep", "stop"]), default="keep", show_default=True, help="Go on, or end."
)
@click.option(
    "--ordered",
    is_flag=True,
    help="Write outcomes in the order of the input. Those that wait for an earlier one are lost when it is stopped, "
    "but for a --journal.",
)
@click.option("--format", "kind", type=click.Choice(["jsonl", "csv"]), help="By default that of the ending of INPUT.")
@click.option("--column", metavar="NAME", help="The column of a CSV, or the key, that has the text.")
@click.option("--id-column", metavar="NAME", default="id", show_default=True, help="The one that has the id.")
@click.option("--messages/--no-messages", default=True, help="Write the messages of each run, or leave them out.")
@click.option(
    "--transport",
    type=click.Choice(["httpx", "aiohttp"]),
    default="httpx",
    show_default=True,
    help='aiohttp is for more than a hundred at once: pip install "aswarm[aiohttp]".',
)
@provider_options
@context_option
@max_turns_option
def batch(agent: str, base_url: str | None, output: str, **given: Any) -> None:
    """Run them all."""
    order = Order(output=output, **given)
    with provider(base_url), own_stdout() as stdout:
        loaded = load_agent(agent)
        order.check()
        total = count(order.source, order.form)
        with open_output(output, stdout, resume=order.goes_on) as place:
            work = _Work(loaded, order, place, Tally(total))
            code = work.run(sys.stderr, bar=not (output == "-" and stdout.isatty()))
    raise click.exceptions.Exit(code)


class _Work:
    """One batch: its items on their way in, its outcomes on their way out."""

    def __init__(self, agent: Agent, order: Order, output: Output, tally: Tally) -> None:
        self._agent = agent
        self._order = order
        self._output = output
        self._aside = Aside(aside_of(order.output))
        self._tally = tally
        self._teller: Teller

    def run(self, stderr: TextIO, *, bar: bool) -> Code:
        """Run it to its end; what it comes to."""
        with Summary(self._order, self._tally, self._aside, stderr):
            with teller(self._tally, stderr, bar=bar) as self._teller:
                _signals.run(self._run())
            self._output.tidy()
        return self._code()

    async def _run(self) -> None:
        order = self._order
        limits = RateLimits(order.rpm, order.tpm) if order.rpm or order.tpm else None
        async with (
            AsyncSwarm(transport=order.transport, limits=limits) as swarm,
            swarm.batch(
                self._agent,
                self._items(),
                concurrency=order.concurrency,
                ordered=order.ordered,
                on_error=order.on_error,
                attempts=order.attempts,
                context_variables=order.context,
                model_override=order.model,
                max_turns=order.max_turns,
                journal=order.journal,
            ) as outcomes,
        ):
            async for outcome in outcomes:
                await to_its_end(self._record(outcome), PATIENCE)  # a line that is written is counted

    async def _items(self) -> AsyncGenerator[Item]:
        async with aclosing(in_thread(lines_of(self._order.source, self._order.form))) as lines:
            async for line in lines:
                if isinstance(line, BadLine):
                    self._put_aside(line)
                elif self._output.has(line):
                    self._tally.before += 1
                    self._teller.update()
                else:
                    yield Item(line.messages, id=line.key, context_variables=line.context_variables, metadata=line)
        self._tally.is_read = True

    def _put_aside(self, bad: BadLine) -> None:
        self._aside.add(bad)
        self._tally.bad += 1
        self._teller.trouble("bad lines", f"line {bad.line}: {bad.error}")
        self._teller.update()

    async def _record(self, outcome: Outcome) -> None:
        entry = cast("Entry", outcome.metadata)
        outcome, line = written(outcome, messages=self._order.messages)
        await self._output.add(entry.key, line)
        status = status_of(outcome.response, outcome.error)
        self._tally.statuses[status] += 1
        self._tally.usage += outcome.usage
        if outcome.error is not None:
            self._teller.trouble("failed items", f"line {entry.line} (id {entry.id}) failed: {outcome.error}")
        self._teller.update()

    def _code(self) -> Code:
        """What it comes to: everything answered, or not."""
        if self._tally.bad or self._tally.statuses[FAILED]:
            return Code.FAILED
        kinds = {*self._tally.statuses, *self._output.counts}
        return Code.DONE if kinds <= {"answer"} else Code.NO_ANSWER
