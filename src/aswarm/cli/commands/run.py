"""`aswarm run`: asks one question. Its conversation is in memory, or in a store that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from aswarm import Swarm
from aswarm._blocking.caller import in_callers_thread
from aswarm._blocking.sync_swarm import engine_of, wait_on_event_loop
from aswarm._values.agent import Agent, Response, as_response
from aswarm._values.budget import Budget
from aswarm._values.decisions import Resume, resume_from_json
from aswarm._values.errors import AswarmError, named
from aswarm._values.events import Event, RefusalDelta, RunFinished, TextDelta
from aswarm._values.json import jsonable
from aswarm._values.messages import is_refused
from aswarm._values.output import answer_text
from aswarm._values.settings import ApiName
from aswarm._values.text import counted, one_line
from aswarm.cli._command import ExitCode, SetupError, command, details_of, output_of, reserve_stdout, write, writing
from aswarm.cli._load import load_agent, load_output
from aswarm.cli._options import (
    AGENT_HELP,
    budget_option,
    context_option,
    entered,
    equipped,
    max_turns_option,
    mcp_option,
    provider_options,
    skills_option,
    store_options,
)

if TYPE_CHECKING:
    from aswarm._swarm import AsyncSwarm
    from aswarm.extensions import EventStream
    from aswarm.repl._display import Display


@command(
    "run",
    ExitCode.NO_ANSWER,
    ExitCode.UNKNOWN_CALLS,
    text=f"Ask AGENT a QUESTION, and stream its answer to stdout.\n\n{AGENT_HELP} With - as QUESTION, the question is read from "
    "stdin. The output of functions goes to stderr.\n\nIf a call waits for a decision, such as an approval, the run stops: the "
    "open calls are written as a JSON list, and the exit code is 3. With --store FILE, the conversation is kept: run the command "
    "again with --resume DECISIONS, and without a QUESTION.",
)
@click.argument("agent")
@click.argument("question", required=False)
@provider_options
@context_option
@max_turns_option
@budget_option
@mcp_option
@skills_option
@click.option(
    "--stream/--no-stream", default=True, help="Write the text piece by piece, or the last answer when it is complete."
)
@click.option("--json", "as_json", is_flag=True, help="Write typed events, one JSON object on each line.")
@store_options
@click.option(
    "--resume",
    metavar="FILE",
    help="Decide on the calls that are open at the end of the conversation in --store. FILE is JSON (- for stdin): an "
    'object of decisions by call id, {"call_1": true, "call_2": {"deny": "reason"}, "call_3": {"approve": {"arguments": {...}}}, '
    '"call_4": {"answer": data}, "call_5": "text for the model"}; true, which runs the calls that need no decision; or "approve_all", which runs them all.',
)
@click.option(
    "--output",
    metavar="MODULE:TYPE",
    help="The type of the answer: module:attribute, or path/to/file.py:attribute. The answer is written as JSON, at the end.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print agent names, calls, handoffs and cache misses to stderr.")
@click.option("--debug", is_flag=True, help="Print every request and answer to stderr, as Swarm's debug mode does.")
def run(
    agent: str,
    question: str | None,
    model: str | None,
    api: ApiName,
    context: dict[str, Any],
    max_turns: int,
    budget: Budget | None,
    servers: tuple[str, ...],
    folders: tuple[str, ...],
    stream: bool,
    as_json: bool,
    resume: str | None,
    output: str | None,
    verbose: bool,
    debug: bool,
    store: str | None,
    conversation: str,
) -> None:
    """Ask the question."""
    text, decisions = _asked(question, store, resume)
    loaded, kind = load_agent(agent), None if output is None else load_output(output)
    arguments = {"model_override": model, "max_turns": max_turns, "debug": debug, "output": kind, "deltas": stream}
    with reserve_stdout() as stdout:
        has_type = not (kind is None and loaded.output is None)
        answer = None if stream and not has_type else partial(_typed_or_text, has_type=has_type)
        writer = _JsonLines(stdout, stream) if as_json else _Shown(stdout, answer, verbose=verbose)
        asking = _Question(store, conversation, loaded, context, text, decisions, arguments, writer)
        with Swarm(api=api, budget=budget) as swarm, entered(equipped(loaded, folders, servers)):
            response = asking.ask(swarm)
    how = "if you keep it with --store FILE" if store is None else "with --resume DECISIONS"
    raise click.exceptions.Exit(_exit_code(response, how))


def _asked(question: str | None, store: str | None, resume: str | None) -> tuple[str, Resume]:
    """Return the text of the question and False, or an empty text and the decisions."""
    if resume is None:
        if question is None:
            raise SetupError("there is no QUESTION: write it after AGENT, or - to read it from stdin")
        return _text(question), False
    if store is None:
        raise SetupError("--resume needs --store: the file or the URL with the conversation whose calls are open")
    if question is not None:
        raise SetupError("--resume decides on open calls and takes no QUESTION; ask it in another run")
    return "", _decisions_in(resume)


def _decisions_in(path: str) -> Resume:
    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        decisions: Any = json.loads(text)
    except OSError as error:
        raise SetupError(f"--resume: {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SetupError(f"--resume: {path} is not JSON: {error}") from error
    try:
        return resume_from_json(decisions)
    except ValueError as error:
        raise SetupError(f"--resume: {path} {error}") from error


def _text(question: str) -> str:
    try:
        # Python decodes bytes of the command line that are not UTF-8 to halves of surrogate pairs, which encode() refuses.
        data = sys.stdin.buffer.read() if question == "-" else question.encode()
        text = data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeError as error:
        raise SetupError(f"the question is not UTF-8: {error}") from error
    if not text.strip():
        raise SetupError("the question is empty")
    return text


@dataclass
class _Question:
    """A question, or decisions about open calls, in a conversation of `store`. `arguments`: the keywords of its run."""

    store: str | None
    conversation: str
    agent: Agent
    context: dict[str, Any]
    text: str
    decisions: Resume
    arguments: dict[str, Any]
    writer: _JsonLines | _Shown
    _run: EventStream | None = None

    def ask(self, swarm: Swarm) -> Response:
        """Ask, and show the events and the end. Raises the errors of the run and of the store."""
        response, failure = Response(agent=self.agent, stop="error"), None
        try:
            response = wait_on_event_loop(partial(self._ask, engine_of(swarm)))
        except BaseException as error:
            failure = error
            known = as_response(getattr(error, "response", None)) if self._run is None else self._run.response
            response = known or response
            raise
        finally:
            self.writer.end(response, failure)
            names = ", ".join(call.name for call in response.unknown_calls)
            if names:
                click.echo(f"Warning: the outcome of these calls is unknown: {names}", err=True)
        return response

    async def _ask(self, swarm: AsyncSwarm) -> Response:
        async with AsyncExitStack() as stack:
            self._run = await stack.enter_async_context(await self._stream(swarm, stack))
            async for event in self._run:
                await in_callers_thread(partial(self.writer.show_event, event))
        return self._run.response

    async def _stream(self, swarm: AsyncSwarm, stack: AsyncExitStack) -> AbstractAsyncContextManager[EventStream]:
        """Open the store, for as long as `stack`, and return the run."""
        if self.store is None:
            return swarm.stream(self.agent, self.text, self.context, **self.arguments)
        from aswarm.repl._kept import store_at  # noqa: PLC0415 - slow

        store = await stack.enter_async_context(store_at(self.store))
        conversation = store.conversation(self.conversation, swarm, agent=self.agent)
        if self.decisions is False:
            return conversation.stream(self.text, self.context, **self.arguments)
        return conversation.resume_stream(self.decisions, self.context, **self.arguments)


class _Shown:
    """Shows a run as text. `answer_of`: returns the text to write at the end; None to show answers while they arrive."""

    def __init__(self, stdout: TextIO, answer_of: Callable[[Response], str] | None, *, verbose: bool) -> None:
        self._stdout = stdout
        self._answer_of = answer_of
        self._display = _display(stdout, verbose)

    def show_event(self, event: Event) -> None:
        if self._answer_of is None or not isinstance(event, TextDelta | RefusalDelta):
            with writing(self._stdout):
                self._display.show_event(event)

    def end(self, response: Response, failure: BaseException | None) -> None:
        """Finish the display. Write the answer, unless it was shown in pieces, and the open calls. The command prints a failure."""
        with writing(self._stdout):
            self._display.end_run()
        if self._answer_of is not None and failure is None and (text := self._answer_of(response)):
            write(self._stdout, text if text.endswith("\n") else f"{text}\n")
        if response.stop == "waiting" and failure is None:
            write(self._stdout, json.dumps(jsonable(response.open_calls)) + "\n")


def _display(stdout: TextIO, verbose: bool) -> Display:
    from aswarm.repl._display import PlainDisplay, is_terminal, rich_display  # noqa: PLC0415 - `--help` needs no display

    has_one_stream = not verbose or is_terminal(sys.stderr)  # the display of rich has only one
    rich = rich_display(stdout, live=True, details=verbose) if has_one_stream else None
    return rich or PlainDisplay(stdout, sys.stderr, live=True, details=verbose, is_raw=not stdout.isatty())


def _typed_or_text(response: Response, *, has_type: bool) -> str:
    output = output_of(response) if has_type else None
    return response.text if output is None else json.dumps(output, ensure_ascii=False)


class _JsonLines:
    """Writes each event on one line, its `to_dict()` as JSON; without `stream`, only the last event."""

    def __init__(self, stdout: TextIO, stream: bool) -> None:
        self._stdout = stdout
        self._is_streaming = stream

    def show_event(self, event: Event) -> None:
        if self._is_streaming or isinstance(event, RunFinished):
            self._write(event.to_dict())

    def end(self, response: Response, failure: BaseException | None) -> None:
        """Write the last line of a run that failed or was stopped, with its partial response."""
        if not isinstance(failure, AswarmError | KeyboardInterrupt):
            return
        kind = "RunFailed" if isinstance(failure, AswarmError) else "RunStopped"
        # This line replaces `RunFinished`, so it has the same form.
        partial_response = RunFinished(response).to_dict()["response"]
        self._write({"type": kind, "error": named(failure), **details_of(failure), "response": partial_response})

    def _write(self, fields: dict[str, Any]) -> None:
        # ASCII works with each encoding of the output, and can escape half a surrogate pair.
        write(self._stdout, json.dumps(fields) + "\n")


def _exit_code(response: Response, how: str) -> ExitCode:
    """Return the exit code of the run. Without an answer, print the reason to stderr. `how`: the options that continue the run.

    A call with an unknown outcome decides the code even if there is no answer, because the call may have had its effect. A
    batch does the same.
    """
    unknown = ExitCode.UNKNOWN_CALLS if response.unknown_calls else None
    refused = is_refused(response.messages)
    if response.stop == "answer" and not refused:
        if not answer_text(response.messages).strip():
            click.echo("Note: the answer is empty", err=True)
        return unknown or ExitCode.DONE
    why = _why(response, how, refused=refused)
    click.echo(f"{'Stopped' if response.spent else 'No answer'}: {why}", err=True)
    return unknown or ExitCode.NO_ANSWER


def _why(response: Response, how: str, *, refused: bool) -> str:
    if response.stop == "waiting":
        calls = ", ".join(f"{one_line(call.name)} ({one_line(call.id)})" for call in response.open_calls)
        return f"waiting for a decision on {calls}; the conversation can be continued {how}"
    if refused:
        return "the model refused"
    limit = "--max-turns was reached" if response.spent is None else f"the --budget is used up ({response.spent})"
    return f"{limit}, after {counted(response.usage.requests, 'completion')}"
