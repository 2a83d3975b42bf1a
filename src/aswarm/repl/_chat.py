"""The conversation with its display: performs the actions that the session decides, and shows what a run does.

Plain and synchronous. The loops read the lines and drive the runs; both loops use this module for the rest.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from aswarm._agent import Response
from aswarm._errors import AswarmError
from aswarm._text import counted, one_line

from ._commands import EXIT, action_for
from ._display import Display
from ._questions import OpenQuestions
from ._saved import other_conversation, read_conversation, write_conversation
from ._session import (
    AskDecisions,
    ContinueWith,
    CopyTo,
    Quit,
    ReadFile,
    Session,
    ShowError,
    ShowHistory,
    ShowText,
    StartRun,
    StoreAction,
    WriteFile,
)

# The errors of reading a line; `Chat.on_read_error` decides what they mean.
READ_ERRORS = (EOFError, KeyboardInterrupt, UnicodeDecodeError)


class HasResponse(Protocol):
    """A run, as far as a chat uses it."""

    @property
    def response(self) -> Response:
        """What has happened so far."""
        ...

    @property
    def partial(self) -> str:
        """The text of a completion that has not finished."""
        ...


@dataclass
class ActiveRun:
    """The `run` that a loop drives. The loop sets it as soon as the run exists."""

    run: HasResponse | None = None


class Chat:
    """A session and the display that shows it. `is_over`: the user has left."""

    def __init__(self, session: Session, display: Display) -> None:
        self.session = session
        self.display = display
        self.is_over = False
        self._interrupted = False
        self._to_confirm: WriteFile | CopyTo | None = None
        self._questions: OpenQuestions | None = None

    # --- lines ---

    def process_line(self, line: str) -> StartRun | StoreAction | None:
        """Do what a line asks for. A run, and what a store has to do, is only returned: the loop performs it."""
        self._interrupted = False
        if self._to_confirm is not None:
            return self._confirm(line)
        if self._questions is not None and not (line.startswith("/") or line.strip().lower() == EXIT):
            return self._decide(self._questions, line)
        self._questions = None  # a command leaves the calls open
        match action_for(self.session, line):
            case StartRun() | CopyTo() | ContinueWith() as action:
                return action
            case AskDecisions():
                self._ask()
            case ShowText(text):
                self.display.show_text(text)
            case ShowError(text):
                self.display.show_error(text)
            case ShowHistory(messages):
                self.display.show_history(messages)
            case WriteFile() | ReadFile() as action:
                self._use_file(action)
            case Quit():
                self.is_over = True
            case _:
                pass  # an empty line
        return None

    def _ask(self) -> None:
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

    def _use_file(self, action: WriteFile | ReadFile, *, replaces: bool = False) -> None:
        try:
            if isinstance(action, WriteFile):
                text = self._write(action, replaces=replaces)
            else:
                text = self.session.load(read_conversation(action.path))
        except (OSError, ValueError) as error:
            self.display.show_error(f"{action.path}: {getattr(error, 'strerror', None) or error}")
        else:
            self.display.show_text(text)

    def _write(self, action: WriteFile, *, replaces: bool = False) -> str:
        if not replaces and (other := other_conversation(action.path, action.text)) is not None:
            return self.question(action, action.path, len(other.messages))
        write_conversation(action.path, action.text)
        return action.done

    def question(self, action: WriteFile | CopyTo, name: str, length: int) -> str:
        """Ask with this text whether the action may replace another conversation. The next line is the answer."""
        self._to_confirm = action
        messages = counted(length, "message")
        return f"{name} has another conversation ({messages}). Replace it? Type yes, or anything else to keep it."

    def _confirm(self, line: str) -> CopyTo | None:
        action, self._to_confirm = self._to_confirm, None
        if action is None or line.strip().lower() not in ("y", "yes"):
            self.display.show_text("Not saved.")
        elif isinstance(action, CopyTo):
            return replace(action, replaces=True)
        else:
            self._use_file(action, replaces=True)
        return None

    def on_read_error(self, error: BaseException) -> None:
        """Reading a line has failed. The end of input leaves the chat, and so does Ctrl-C twice in a row.

        Where the chat has asked whether to replace a file, it keeps the file. Calls about which it has asked stay open.
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
    def running(self, start: StartRun) -> Generator[ActiveRun]:
        """Enclose a run: an error or Ctrl-C is shown, and what the run has left is kept."""
        active = ActiveRun()
        if start.resume is True:
            self.display.show_calls(start.agent.name, {"tool_calls": self.session.open_calls})
        failure: AswarmError | None = None
        try:
            yield active
        except KeyboardInterrupt:
            pass  # it has cancelled the run, whose response says so
        except AswarmError as error:
            failure = error
        finally:
            self.display.end_run()
        nothing = Response(agent=start.agent, context_variables=start.context, stop="error" if failure else "cancelled")
        response = nothing if active.run is None else active.run.response
        partial = "" if active.run is None else active.run.partial
        self.session.end_run(start, response, failed=failure is not None, partial=partial)
        self._show_end(response, failure)

    def _show_end(self, response: Response, failure: AswarmError | None) -> None:
        if response.usage.total_tokens:  # 0 where the provider sends no usage
            self.display.show_usage(response.usage)
        if failure is not None:
            self.display.show_error(f"{type(failure).__name__}: {one_line(failure, 600)} (/resume tries again)")
        elif response.stop == "cancelled":
            self.display.show_text(f"Stopped. {self.session.open_calls_hint}".rstrip())
        elif response.stop == "waiting":
            self._ask()
        elif response.stop == "answer" and not _says_something(response):
            self.display.show_text("The answer is empty.")
        elif response.stop == "max_turns":
            completions = counted(response.usage.requests, "completion")
            self.display.show_text(f"Stopped after {completions}. /resume continues.")


def _says_something(response: Response) -> bool:
    refusal = response.messages[-1].get("refusal") if response.messages else None
    return bool(refusal or response.text.strip())
