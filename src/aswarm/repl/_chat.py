"""The logic of a chat. It decides whether a line is a message, an answer or a `/` command, and what to show after a run.

This module is synchronous, and returns actions. The loop (`_loop`) reads the lines, executes the runs and performs the actions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aswarm._values.agent import Response
from aswarm._values.errors import AswarmError, ConfigurationError
from aswarm._values.messages import is_refused
from aswarm._values.text import counted, one_line
from aswarm.extensions import tools_of

from ._display import Display, usage_text
from ._questions import OpenQuestions
from ._session import Action, ContinueWith, CopyTo, Session, StartRun

if TYPE_CHECKING:
    from aswarm.extensions import EventStream

# The exceptions of reading a line. `Chat.on_read_error` handles them.
READ_ERRORS = (EOFError, KeyboardInterrupt, UnicodeDecodeError)


class Chat:
    """A session and its display. `run`: the current run, set by the loop. `is_over`: whether the user has left the chat."""

    def __init__(self, session: Session, display: Display) -> None:
        self.session = session
        self.display = display
        self.run: EventStream | None = None
        self.is_over = False
        self._interrupted = False
        self._to_confirm: CopyTo | None = None
        self._questions: OpenQuestions | None = None

    # --- lines ---

    def process_line(self, line: str) -> Action | None:
        """Process a line of the user. Returns an action for the loop: start a run, make a copy, or load another conversation.

        A line that starts with `/` is a command. To send such a line as a message, the user puts a space before the `/`.
        """
        self._interrupted = False
        if self._to_confirm is not None:
            return self._confirm(line)
        text = line.strip().encode("utf-8", "replace").decode()  # halves of surrogate pairs cannot be sent
        is_command = line.startswith("/") or text.lower() in ("exit", "quit")
        if self._questions is not None and not is_command:
            return self._decide(self._questions, line)
        self._questions = None  # after a command, the calls stay open
        if is_command:
            return self._run_command(*text.removeprefix("/").partition(" "))
        return self.session.send(text) if text else None

    def _run_command(self, name: str, _: str, argument: str) -> Action | None:
        command = COMMANDS.get(name.lower())
        if command is None:
            self.display.show_error(f"There is no command /{name}. See /help, or start with a space to send the line.")
            return None
        argument = argument.strip()
        if command.names_conversation and not argument:
            needed = "the id of a conversation" if self.session.has_store else "the path of a file"
            self.display.show_error(f"/{name} needs {needed}.")
            return None
        return command.action(self, argument)

    def ask(self) -> None:
        """Ask about the calls that wait for a decision. The next lines are the answers."""
        self._questions = questions = self.session.questions
        self.display.show_text(questions.text if questions else "")

    def _decide(self, questions: OpenQuestions, line: str) -> StartRun | None:
        if (fault := questions.take(line)) is not None:
            self.display.show_error(fault)
        if questions.is_done:
            self._questions = None
            return self.session.decide(questions.decisions)
        self.display.show_text(questions.text)
        return None

    def question(self, action: CopyTo, length: int) -> str:
        """Return the question whether to replace another conversation, which has `length` messages.

        The next line is the answer.
        """
        self._to_confirm = action
        messages = counted(length, "message")
        return (
            f"{action.name} has another conversation ({messages}). Replace it? Type yes, or anything else to keep it."
        )

    def _confirm(self, line: str) -> CopyTo | None:
        action, self._to_confirm = self._to_confirm, None
        if action is None or line.strip().lower() not in ("y", "yes"):
            self.display.show_text("Not saved.")
            return None
        return replace(action, replaces=True)

    def on_read_error(self, error: BaseException) -> None:
        """Handle an exception of reading a line. The end of the input, or Ctrl-C twice in a row, ends the chat.

        An open question gets no answer: a file is not replaced, and calls stay open.
        """
        if self._to_confirm is not None:
            self._to_confirm = None
            self.display.show_text("Not saved.")
        if self._questions is not None:
            self._questions = None
            self.display.show_text(self.session.open_calls_hint)
        match error:
            case KeyboardInterrupt() if not self._interrupted:
                self._interrupted = True
                self.display.show_text("To leave, press Ctrl-C again or Ctrl-D, or type /exit.")
            case UnicodeDecodeError():
                self.display.show_error(f"The input cannot be decoded: {error}")
            case _:
                self.is_over = True

    # --- runs ---

    @contextmanager
    def running(self, start: StartRun) -> Generator[None]:
        """Show the error or the stop of the run in the block, and keep its messages. In the block, the loop sets `self.run`."""
        self.run = None
        failure: AswarmError | None = None
        try:
            yield
        except KeyboardInterrupt:
            pass  # Ctrl-C has cancelled the run, and its response shows this
        except AswarmError as error:
            failure = error
        finally:
            self.display.end_run()
        nothing = Response(agent=start.agent, context_variables=start.context, stop="error" if failure else "cancelled")
        response, partial = (nothing, "") if self.run is None else (self.run.response, self.run.partial)
        self.session.end_run(start, response, failed=failure is not None, partial=partial)
        self._show_end(response, failure)

    def _show_end(self, response: Response, failure: AswarmError | None) -> None:
        if response.usage.total_tokens:  # 0 if the provider sends no usage
            self.display.show_usage(response.usage)
        if failure is not None:
            self.display.show_error(f"{type(failure).__name__}: {one_line(failure, 600)} (/resume tries again)")
        elif response.stop == "cancelled":
            self.display.show_text(f"Stopped. {self.session.open_calls_hint}".rstrip())
        elif response.stop == "waiting":
            self.ask()
        elif response.stop == "answer" and not (response.text.strip() or is_refused(response.messages)):
            self.display.show_text("The answer is empty.")
        elif response.stop == "max_turns":
            completions = counted(response.usage.requests, "completion")
            self.display.show_text(f"Stopped after {completions}. /resume continues.")


# --- commands ---


@dataclass(frozen=True, slots=True)
class Command:
    """A `/` command. `argument`: the name of its argument in the help.

    `names_conversation`: whether the argument names a conversation. The argument is the path of a file or, if the chat has a
    store, an id.
    """

    action: Callable[[Chat, str], Action | None]
    help: str
    argument: str = ""
    names_conversation: bool = False


def _help(chat: Chat, _: str) -> None:
    rows = [(f"/{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    lines = [f"{usage:<{width}}  {text}" for usage, text in rows]
    last = "Ctrl-C stops an answer; the part that was read stays in the conversation, with a mark."
    chat.display.show_text("\n".join([*lines, last]))


def _agent(chat: Chat, name: str) -> None:
    session, known = chat.session, chat.session.agents
    if name and name not in known:
        chat.display.show_error(f"There is no agent {name!r}. Known agents: {', '.join(known)}.")
        return
    session.agent = known[name] if name else session.agent
    agent = session.agent
    try:
        functions = ", ".join(tools_of(agent)) or "none"
    except ConfigurationError as error:
        functions = one_line(error)
    text = f"{agent.name} ({agent.model}); functions: {functions}; known agents: {', '.join(known)}"
    chat.display.show_text(text)


def _history(chat: Chat, _: str) -> None:
    if chat.session.history:
        chat.display.show_history(chat.session.history)
    else:
        chat.display.show_text("There are no messages yet.")


def _context(chat: Chat, _: str) -> None:
    lines = [f"{one_line(name)} = {_shown(value)}" for name, value in chat.session.context.items()]
    chat.display.show_text("\n".join(lines) or "There are no context variables.")


def _shown(value: object) -> str:
    try:
        return one_line(repr(value))
    except Exception as error:  # noqa: BLE001 - the __repr__ of a user's class may raise anything
        return f"<{type(value).__name__}: its repr failed: {one_line(error)}>"


def _usage(chat: Chat, _: str) -> None:
    chat.display.show_text(usage_text(chat.session.usage))


def _resume(chat: Chat, _: str) -> Action | None:
    session = chat.session
    if session.failed_message is None and session.questions:
        chat.ask()
        return None
    start = session.resume()
    if start is None:
        chat.display.show_error("There is nothing to resume. Send a message.")
    return start


def _reset(chat: Chat, _: str) -> None:
    chat.session.reset()
    chat.display.show_text(f"New conversation. The active agent is {chat.session.agent.name}.")


def _exit(chat: Chat, _: str) -> None:
    chat.is_over = True


COMMANDS = {
    "help": Command(_help, "show this list"),
    "agent": Command(_agent, "show the active agent, or switch to another one", "[NAME]"),
    "history": Command(_history, "show the messages"),
    "context": Command(_context, "show the context variables"),
    "usage": Command(_usage, "show the tokens used so far"),
    "resume": Command(
        _resume, "continue after an error or Ctrl-C; runs the open calls, or asks about the waiting calls"
    ),
    "reset": Command(_reset, "start a new conversation"),
    "save": Command(
        lambda _, name: CopyTo(name),
        "save the conversation to a file, and continue in it; in a chat with a store, copy it to this id",
        "NAME",
        names_conversation=True,
    ),
    "load": Command(
        lambda _, name: ContinueWith(name),
        "continue the conversation in a file; in a chat with a store, the conversation with this id",
        "NAME",
        names_conversation=True,
    ),
    "exit": Command(_exit, "leave the chat; Ctrl-D does the same"),
    "quit": Command(_exit, "the same as /exit"),
}
