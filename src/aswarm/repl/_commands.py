"""What a line of the user means: a message, or one of the `/` commands. Decides the action, and does not perform it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._text import counted, one_line
from aswarm._tools.toolbox import tools_of

from ._saved import to_json
from ._session import (
    Action,
    ContinueWith,
    CopyTo,
    Quit,
    ReadFile,
    Session,
    ShowError,
    ShowHistory,
    ShowText,
    WriteFile,
)
from ._text import usage_text

EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Command:
    """A `/` command. `argument`: what may follow it, as the help shows it.

    `names_conversation`: the argument is the path of a file, or the id of a conversation if the chat has a store.
    """

    action: Callable[[Session, str], Action]
    help: str
    argument: str = ""
    names_conversation: bool = False


def action_for(session: Session, line: str) -> Action | None:
    """The action that a line of the user asks for; None for an empty line.

    A line that begins with `/` is a command. With a space before the `/` it is a message.
    """
    text = line.strip().encode("utf-8", "replace").decode()  # halves of surrogate pairs cannot be sent
    if not text:
        return None
    if text.lower() == EXIT:
        return Quit()
    if not line.startswith("/"):
        return session.send(text)
    name, _, argument = text[1:].partition(" ")
    command = COMMANDS.get(name.lower())
    if command is None:
        return ShowError(f"There is no command /{name}. See /help, or begin with a space to send the line.")
    argument = argument.strip()
    if command.names_conversation and not argument:
        needed = "the id of a conversation" if session.has_store else "the path of a file"
        return ShowError(f"/{name} needs {needed}.")
    return command.action(session, argument)


def _help(_: Session, __: str) -> Action:
    rows = [(f"/{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    lines = [f"{usage:<{width}}  {text}" for usage, text in rows]
    return ShowText(
        "\n".join([*lines, "Ctrl-C stops an answer; what was read of it stays in the conversation, marked."])
    )


def _agent(session: Session, name: str) -> Action:
    if name:
        found = session.agents.get(name)
        if found is None:
            return ShowError(f"There is no agent {name!r}. Known agents: {', '.join(session.agents)}.")
        session.agent = found
    return ShowText(_described(session.agent, list(session.agents)))


def _described(agent: Agent, known: list[str]) -> str:
    try:
        functions = ", ".join(tools_of(agent)) or "none"
    except ConfigurationError as error:
        functions = one_line(error)
    return f"{agent.name} ({agent.model}); functions: {functions}; known agents: {', '.join(known)}"


def _history(session: Session, _: str) -> Action:
    return ShowHistory(list(session.history)) if session.history else ShowText("There are no messages yet.")


def _context(session: Session, _: str) -> Action:
    lines = [f"{one_line(name)} = {_shown(value)}" for name, value in session.context.items()]
    return ShowText("\n".join(lines) or "There are no context variables.")


def _shown(value: object) -> str:
    try:
        return one_line(repr(value))
    except Exception as error:  # noqa: BLE001 - the __repr__ of a user's class
        return f"<{type(value).__name__}: its repr failed: {one_line(error)}>"


def _usage(session: Session, _: str) -> Action:
    return ShowText(usage_text(session.usage))


def _resume(session: Session, _: str) -> Action:
    return session.resume() or ShowError("There is nothing to resume. Send a message.")


def _reset(session: Session, _: str) -> Action:
    session.reset()
    return ShowText(f"New conversation. The active agent is {session.agent.name}.")


def _save(session: Session, name: str) -> Action:
    if session.has_store:
        return CopyTo(name)
    text, left_out = to_json(session.save())
    note = f", without the context variables that are not JSON: {', '.join(left_out)}" if left_out else ""
    return WriteFile(name, text, f"{counted(len(session.history), 'message')} saved{note}.")


def _load(session: Session, name: str) -> Action:
    return ContinueWith(name) if session.has_store else ReadFile(name)


def _exit(_: Session, __: str) -> Action:
    return Quit()


COMMANDS = {
    "help": Command(_help, "show this list"),
    "agent": Command(_agent, "show the active agent, or switch to another one", "[NAME]"),
    "history": Command(_history, "show the messages"),
    "context": Command(_context, "show the context variables"),
    "usage": Command(_usage, "show the tokens used so far"),
    "resume": Command(
        _resume, "continue after an error or Ctrl-C; runs the calls left open, or asks about those that wait"
    ),
    "reset": Command(_reset, "start a new conversation"),
    "save": Command(
        _save, "save the conversation to a file; with --store, a copy under this id", "NAME", names_conversation=True
    ),
    "load": Command(
        _load,
        "continue a conversation from a file; with --store, the one with this id",
        "NAME",
        names_conversation=True,
    ),
    "exit": Command(_exit, "leave the chat; Ctrl-D does the same"),
}
