"""What a line of the user's means: a message, or one of the `/` commands. Decides; what is to be done is an effect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._tools.toolbox import tools_of

from ._saved import to_json
from ._session import Complain, Effect, Leave, ReadFile, Say, Session, ShowHistory, WriteFile
from ._text import counted, one_line, usage_text

EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Command:
    """A `/` command. `argument`: what may follow it, in the words of the help. `is_file`: it is the path of a file."""

    does: Callable[[Session, str], Effect]
    help: str
    argument: str = ""
    is_file: bool = False


def effect_of(session: Session, line: str) -> Effect | None:
    """What is to be done about a line of the user's; None for nothing.

    A line that begins with `/` is a command; with a space before it, it is a message like any other.
    """
    text = line.strip().encode("utf-8", "replace").decode()  # what is no text cannot be sent
    if not text:
        return None
    if text.lower() == EXIT:
        return Leave()
    if not line.startswith("/"):
        return session.say(text)
    name, _, argument = text[1:].partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        return Complain(f"No command /{name}. /help shows them; a space in front sends the line as a message.")
    argument = argument.strip()
    if command.is_file and not argument:
        return Complain(f"/{name} needs the path of a file.")
    return command.does(session, argument)


def _help(_: Session, __: str) -> Effect:
    rows = [(f"/{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    lines = [f"{usage:<{width}}  {text}" for usage, text in rows]
    return Say("\n".join([*lines, "Ctrl-C stops an answer; the conversation is kept, half an answer is not."]))


def _agent(session: Session, name: str) -> Effect:
    if name:
        found = session.agents.get(name)
        if found is None:
            return Complain(f"No agent {name!r} is known here; known are {', '.join(session.agents)}.")
        session.agent = found
    return Say(_described(session.agent, list(session.agents)))


def _described(agent: Agent, known: list[str]) -> str:
    try:
        functions = ", ".join(tools_of(agent)) or "none"
    except ConfigurationError as error:
        functions = one_line(error)
    return f"{agent.name} ({agent.model}); functions: {functions}; known agents: {', '.join(known)}"


def _history(session: Session, _: str) -> Effect:
    return ShowHistory(list(session.history)) if session.history else Say("Nothing has been said yet.")


def _context(session: Session, _: str) -> Effect:
    lines = [f"{one_line(name)} = {_shown(value)}" for name, value in session.context.items()]
    return Say("\n".join(lines) or "There are no context variables.")


def _shown(value: object) -> str:
    try:
        return one_line(repr(value))
    except Exception as error:  # noqa: BLE001 - somebody else's __repr__
        return f"<{type(value).__name__}, which cannot be shown: {one_line(error)}>"


def _usage(session: Session, _: str) -> Effect:
    return Say(usage_text(session.usage))


def _resume(session: Session, _: str) -> Effect:
    return session.resume() or Complain("Nothing has stopped; say something.")


def _reset(session: Session, _: str) -> Effect:
    session.reset()
    return Say(f"A new conversation; {session.agent.name} is active.")


def _save(session: Session, path: str) -> Effect:
    text, left_out = to_json(session.save())
    note = f", without {', '.join(left_out)} (not JSON)" if left_out else ""
    return WriteFile(path, text, f"{counted(len(session.history), 'message')} saved{note}.")


def _load(_: Session, path: str) -> Effect:
    return ReadFile(path)


def _exit(_: Session, __: str) -> Effect:
    return Leave()


COMMANDS = {
    "help": Command(_help, "this list"),
    "agent": Command(_agent, "show the active agent, or make another one active", "[NAME]"),
    "history": Command(_history, "show the messages"),
    "context": Command(_context, "show the context variables"),
    "usage": Command(_usage, "show the tokens used so far"),
    "resume": Command(_resume, "go on after an error or a stop: send again, run the open calls"),
    "reset": Command(_reset, "begin a new conversation"),
    "save": Command(_save, "write the conversation to a file", "FILE", is_file=True),
    "load": Command(_load, "go on with a conversation from a file", "FILE", is_file=True),
    "exit": Command(_exit, "leave; so does the end of input (Ctrl-D)"),
}
