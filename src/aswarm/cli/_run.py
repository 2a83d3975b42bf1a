"""`aswarm run`: one question, one answer. Decides what is written of the run, and which exit code it comes to."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

import click

from aswarm._agent import Agent, Response
from aswarm._blocking.sync_swarm import Swarm
from aswarm._errors import AswarmError
from aswarm._events import Event

from ._exits import HELP, Code, Mistake
from ._json_lines import JsonLines
from ._load import load_agent
from ._narrator import Narrator
from ._options import AGENT_HELP, context_option, max_turns_option, provider, provider_options
from ._output import own_stdout


class Writer(Protocol):
    """Writes a run to stdout."""

    def show(self, event: Event) -> None:
        """Write one event."""
        ...

    def whole(self, response: Response) -> None:
        """Write a run that was not streamed."""
        ...

    def stop(self, response: Response, error: BaseException, /) -> None:
        """Write that the run ended early, with what it has left."""
        ...


@click.command(
    epilog=HELP,
    help=f"Ask AGENT a QUESTION, and stream its answer to stdout.\n\n{AGENT_HELP} QUESTION - is read from stdin. What "
    "functions print goes to stderr.",
)
@click.argument("agent")
@click.argument("question")
@provider_options
@context_option
@max_turns_option
@click.option(
    "--stream/--no-stream", default=True, help="Write the answer as it comes, or the last one once it is whole."
)
@click.option("--json", "as_json", is_flag=True, help="Write typed events, a JSON object on each line.")
@click.option("-v", "--verbose", is_flag=True, help="Tell on stderr what is called, and who takes over.")
@click.option("--debug", is_flag=True, help="Tell on stderr what is asked and received, in Swarm's words.")
def run(
    agent: str,
    question: str,
    base_url: str | None,
    model: str | None,
    context: dict[str, Any],
    max_turns: float,
    stream: bool,
    as_json: bool,
    verbose: bool,
    debug: bool,
) -> None:
    """Ask once."""
    text = _text(question)
    with provider(base_url):
        asked = _Question(load_agent(agent), text, context, model, max_turns, debug)
        with own_stdout() as stdout, Swarm() as swarm:
            writer = _writer(stdout, as_json=as_json, verbose=verbose)
            response = asked.stream(swarm, writer) if stream else asked.ask(swarm, writer)
    raise click.exceptions.Exit(_code(response))


def _text(question: str) -> str:
    try:
        # Bytes that are no text have become halves of surrogate pairs, if they come from the command line.
        data = sys.stdin.buffer.read() if question == "-" else question.encode()
        text = data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeError as error:
        raise Mistake(f"the question is not UTF-8: {error}") from error
    if not text.strip():
        raise Mistake("there is no question")
    return text


def _writer(stdout: TextIO, *, as_json: bool, verbose: bool) -> Writer:
    return JsonLines(stdout) if as_json else Narrator(stdout, sys.stderr if verbose else None)


@dataclass(frozen=True, slots=True)
class _Question:
    agent: Agent
    text: str
    context: dict[str, Any]
    model: str | None
    max_turns: float
    debug: bool

    def stream(self, swarm: Swarm, writer: Writer) -> Response:
        """Ask, and write what happens while it happens."""
        run = swarm.stream(self.agent, self.text, self.context, self.model, self.debug, self.max_turns)
        try:
            with run:
                for event in run:
                    writer.show(event)
        except (AswarmError, KeyboardInterrupt) as error:
            writer.stop(run.response, error)
            raise
        return run.response

    def ask(self, swarm: Swarm, writer: Writer) -> Response:
        """Ask, and write the end of it."""
        try:
            response = swarm.run(
                self.agent, self.text, self.context, self.model, debug=self.debug, max_turns=self.max_turns
            )
        except (AswarmError, KeyboardInterrupt) as error:
            left = getattr(error, "response", None)
            writer.stop(left if isinstance(left, Response) else Response(agent=self.agent, stop="error"), error)
            raise
        writer.whole(response)
        return response


def _code(response: Response) -> Code:
    """What the run comes to; where that is no answer, said on stderr."""
    refused = bool(response.messages and response.messages[-1].get("refusal"))
    if response.stop == "answer" and not refused:
        return Code.DONE
    why = "the model refused" if refused else f"{response.usage.requests} completions were made (--max-turns)"
    click.echo(f"No answer: {why}", err=True)
    return Code.NO_ANSWER
