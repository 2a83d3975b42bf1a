"""`aswarm run`: one question, one answer. Decides what is written of the run, and its exit code."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

import click

from aswarm._agent import Agent, Response
from aswarm._blocking.sync_swarm import Swarm
from aswarm._budget import Budget
from aswarm._errors import AswarmError
from aswarm._events import Event
from aswarm._providers.apis import ApiName
from aswarm._text import counted

from ._command import command
from ._event_printer import EventPrinter
from ._exits import ExitCode, SetupError
from ._json_lines import JsonLines
from ._load import load_agent
from ._options import AGENT_HELP, budget_option, context_option, max_turns_option, provider, provider_options
from ._output import reserve_stdout


class EventWriter(Protocol):
    """Writes a run to stdout."""

    def show(self, event: Event) -> None:
        """Write one event."""
        ...

    def show_response(self, response: Response) -> None:
        """Write a run that was not streamed."""
        ...

    def show_failure(self, response: Response, error: BaseException, /) -> None:
        """Write that the run ended early, with what it has done until then."""
        ...


@command(
    "run",
    ExitCode.NO_ANSWER,
    ExitCode.UNKNOWN_CALLS,
    text=f"Ask AGENT a QUESTION, and stream its answer to stdout.\n\n{AGENT_HELP} With - as QUESTION, it is read from "
    "stdin. What functions print goes to stderr.",
)
@click.argument("agent")
@click.argument("question")
@provider_options
@context_option
@max_turns_option
@budget_option
@click.option(
    "--stream/--no-stream", default=True, help="Write the text piece by piece, or the last answer when it is complete."
)
@click.option("--json", "as_json", is_flag=True, help="Write typed events, one JSON object on each line.")
@click.option("-v", "--verbose", is_flag=True, help="Print agent names, calls and handoffs to stderr.")
@click.option("--debug", is_flag=True, help="Print every request and answer to stderr, as Swarm's debug mode does.")
def run(
    agent: str,
    question: str,
    base_url: str | None,
    model: str | None,
    api: ApiName,
    context: dict[str, Any],
    max_turns: float,
    budget: Budget | None,
    stream: bool,
    as_json: bool,
    verbose: bool,
    debug: bool,
) -> None:
    """Ask the question."""
    text = _text(question)
    with provider(base_url):
        asked = _Question(load_agent(agent), text, context, model, max_turns, debug)
        with reserve_stdout() as stdout, Swarm(api=api, budget=budget) as swarm:
            writer = _writer(stdout, as_json=as_json, verbose=verbose)
            response = asked.stream(swarm, writer) if stream else asked.ask(swarm, writer)
    _warn_of_unknown_calls(response)
    raise click.exceptions.Exit(_exit_code(response))


def _text(question: str) -> str:
    try:
        # Bytes of the command line that are not UTF-8 arrive as halves of surrogate pairs; encode() refuses them.
        data = sys.stdin.buffer.read() if question == "-" else question.encode()
        text = data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeError as error:
        raise SetupError(f"the question is not UTF-8: {error}") from error
    if not text.strip():
        raise SetupError("the question is empty")
    return text


def _writer(stdout: TextIO, *, as_json: bool, verbose: bool) -> EventWriter:
    return JsonLines(stdout) if as_json else EventPrinter(stdout, sys.stderr if verbose else None)


@dataclass(frozen=True, slots=True)
class _Question:
    agent: Agent
    text: str
    context: dict[str, Any]
    model: str | None
    max_turns: float
    debug: bool

    def stream(self, swarm: Swarm, writer: EventWriter) -> Response:
        """Ask, and write the events while they happen."""
        run = swarm.stream(self.agent, self.text, self.context, self.model, self.debug, self.max_turns)
        try:
            with run:
                for event in run:
                    writer.show(event)
        except (AswarmError, KeyboardInterrupt) as error:
            writer.show_failure(run.response, error)
            _warn_of_unknown_calls(run.response)
            raise
        return run.response

    def ask(self, swarm: Swarm, writer: EventWriter) -> Response:
        """Ask, and write the last answer."""
        try:
            response = swarm.run(
                self.agent, self.text, self.context, self.model, debug=self.debug, max_turns=self.max_turns
            )
        except (AswarmError, KeyboardInterrupt) as error:
            known = getattr(error, "response", None)
            partial = known if isinstance(known, Response) else Response(agent=self.agent, stop="error")
            writer.show_failure(partial, error)
            _warn_of_unknown_calls(partial)
            raise
        writer.show_response(response)
        return response


def _warn_of_unknown_calls(response: Response) -> None:
    names = ", ".join(call.name for call in response.unknown_calls)
    if names:
        click.echo(f"Warning: the outcome of these calls is unknown: {names}", err=True)


def _exit_code(response: Response) -> ExitCode:
    """The exit code of the run; the reason is printed to stderr where there is no answer.

    As in a batch, a call whose outcome is unknown counts more than a missing answer: the call may have had its effect.
    """
    unknown = ExitCode.UNKNOWN_CALLS if response.unknown_calls else None
    refused = bool(response.messages and response.messages[-1].get("refusal"))
    if response.stop == "answer" and not refused:
        if not response.text.strip():
            click.echo("Note: the answer is empty", err=True)
        return unknown or ExitCode.DONE
    limit = "--max-turns was reached" if response.spent is None else f"the --budget is used up ({response.spent})"
    why = "the model refused" if refused else f"{limit}, after {counted(response.usage.requests, 'completion')}"
    click.echo(f"{'Stopped' if response.spent else 'No answer'}: {why}", err=True)
    return unknown or ExitCode.NO_ANSWER
