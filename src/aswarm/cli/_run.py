"""`aswarm run`: one question, one answer. Decides the form of the output, and the exit code."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import click

from aswarm._agent import Response
from aswarm._budget import Budget
from aswarm._decisions import Decisions
from aswarm._output import answer_text
from aswarm._providers.apis import ApiName
from aswarm._text import counted, one_line

from ._command import command
from ._continued import ContinuedConversation, NewConversation, decisions_in
from ._event_printer import EventPrinter
from ._exits import ExitCode, SetupError
from ._json_lines import JsonLines
from ._load import load_agent, load_output
from ._mcp_servers import mcp_option
from ._options import AGENT_HELP, budget_option, context_option, max_turns_option, provider, provider_options
from ._output import reserve_stdout
from ._question import AskOptions, EventWriter, Question, StoredQuestion
from ._stored import StoreTarget, store_options, store_target


@command(
    "run",
    ExitCode.NO_ANSWER,
    ExitCode.UNKNOWN_CALLS,
    text=f"Ask AGENT a QUESTION, and stream its answer to stdout.\n\n{AGENT_HELP} With - as QUESTION, the question is read from "
    "stdin. The output of functions goes to stderr.\n\nIf a call waits for a decision, such as an approval, the run stops: the "
    "open calls are written as a JSON list, and the exit code is 3. Keep the conversation with --save FILE. Then run the "
    "command with --load FILE and --resume DECISIONS, and without a QUESTION. A conversation in --store needs neither file.",
)
@click.argument("agent")
@click.argument("question", required=False)
@provider_options
@context_option
@max_turns_option
@budget_option
@mcp_option
@click.option(
    "--stream/--no-stream", default=True, help="Write the text piece by piece, or the last answer when it is complete."
)
@click.option("--json", "as_json", is_flag=True, help="Write typed events, one JSON object on each line.")
@click.option("--load", metavar="FILE", help="Continue the conversation that --save, or /save in a chat, has written.")
@click.option("--save", metavar="FILE", help="Keep the conversation in a file, however the run ends.")
@store_options
@click.option(
    "--resume",
    metavar="FILE",
    help="Decide on the calls that are open at the end of the conversation of --load or --store. FILE is JSON, or - for stdin: an "
    'object by the id of the call, {"call_1": true, "call_2": {"deny": "reason"}, "call_3": {"approve": {"arguments": {...}}}, '
    '"call_4": {"answer": data}, "call_5": "text told to the model"}; or true, which runs them all.',
)
@click.option(
    "--output",
    metavar="MODULE:TYPE",
    help="The type of the answer: module:attribute, or path/to/file.py:attribute. The answer is written as JSON, at the end.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print agent names, calls and handoffs to stderr.")
@click.option("--debug", is_flag=True, help="Print every request and answer to stderr, as Swarm's debug mode does.")
def run(
    agent: str,
    question: str | None,
    base_url: str | None,
    model: str | None,
    api: ApiName,
    context: dict[str, Any],
    max_turns: float,
    budget: Budget | None,
    servers: tuple[str, ...],
    stream: bool,
    as_json: bool,
    load: str | None,
    save: str | None,
    store: str | None,
    conversation: str | None,
    resume: str | None,
    output: str | None,
    verbose: bool,
    debug: bool,
) -> None:
    """Ask the question."""
    target = store_target(store, conversation)
    text, decisions = _asked(question, load, save, resume, target)
    with provider(base_url):
        loaded, kind = load_agent(agent), None if output is None else load_output(output)
        options = AskOptions(model, max_turns, debug, kind, stream, api, budget, servers)
        asked: Question | StoredQuestion
        if target is not None:
            asked = StoredQuestion(target, loaded, context, text, decisions)
        elif load is not None or save is not None:
            asked = Question(ContinuedConversation(loaded, context, load, save), text, decisions)
        else:
            asked = Question(NewConversation(loaded, context), text, decisions)
        with reserve_stdout() as stdout:
            has_type = not (kind is None and loaded.output is None)
            response = asked.ask(options, _writer(stdout, as_json=as_json, verbose=verbose, has_type=has_type))
    how = "with --load FILE and --resume DECISIONS" if save is not None else "if it is kept with --save FILE"
    raise click.exceptions.Exit(_exit_code(response, "with --resume DECISIONS" if target is not None else how))


def _asked(
    question: str | None, load: str | None, save: str | None, resume: str | None, target: StoreTarget | None
) -> tuple[str, bool | Decisions]:
    """The text of the question; or an empty text, and the decisions in its place."""
    if target is not None and not (load is None and save is None):
        raise SetupError("--store keeps the conversation; --load and --save are files of another one")
    if resume is None:
        if question is None:
            raise SetupError("there is no QUESTION: write it after AGENT, or - to read it from stdin")
        return _text(question), False
    if load is None and target is None:
        raise SetupError(
            "--resume needs --load FILE, or --store and --conversation: the conversation whose calls are open"
        )
    if save is None and target is None:
        raise SetupError(
            "--resume needs --save FILE: without it the same calls stay open in the loaded file, and would run again; "
            "FILE may be that of --load"
        )
    if question is not None:
        raise SetupError("--resume decides on open calls and takes no QUESTION; ask it in another run")
    return "", decisions_in(resume)


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


def _writer(stdout: TextIO, *, as_json: bool, verbose: bool, has_type: bool) -> EventWriter:
    details = sys.stderr if verbose else None
    return JsonLines(stdout) if as_json else EventPrinter(stdout, details, has_type=has_type)


def _exit_code(response: Response, how: str) -> ExitCode:
    """The exit code of the run. Without an answer, the reason is printed to stderr. `how`: how the run can be continued.

    As in a batch, a call whose outcome is unknown is more important than a missing answer: it may have had its effect.
    """
    unknown = ExitCode.UNKNOWN_CALLS if response.unknown_calls else None
    refused = bool(response.messages and response.messages[-1].get("refusal"))
    if response.stop == "answer" and not refused:
        if not answer_text(response.messages).strip():
            click.echo("Note: the answer is empty", err=True)
        return unknown or ExitCode.DONE
    why = _why(response, how, refused=refused)
    click.echo(f"{'Stopped' if response.spent else 'No answer'}: {why}", err=True)
    return unknown or ExitCode.NO_ANSWER


def _why(response: Response, how: str, *, refused: bool) -> str:
    if response.stop == "waiting":
        calls = ", ".join(f"{one_line(call.name)} ({one_line(call.id)})" for call in response.waiting)
        return f"waiting for a decision on {calls}; the conversation can be continued {how}"
    if refused:
        return "the model refused"
    limit = "--max-turns was reached" if response.spent is None else f"the --budget is used up ({response.spent})"
    return f"{limit}, after {counted(response.usage.requests, 'completion')}"
