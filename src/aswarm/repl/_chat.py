"""The conversation with its face: carries out what the session has decided, and shows what a run does.

Plain and synchronous. How the next line comes and who drives a run is the business of the loops; both go through here.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from aswarm._agent import Response
from aswarm._errors import AswarmError

from ._commands import effect_of
from ._display import Face
from ._files import read_conversation, write_conversation
from ._session import Complain, Deed, Leave, ReadFile, Say, Session, ShowHistory, Turn, WriteFile
from ._text import counted, one_line

# What reading a line raises; `Chat.no_line` decides what it means.
NO_LINE = (EOFError, KeyboardInterrupt, UnicodeDecodeError)


class Run(Protocol):
    """What is wanted of a run: what it has left."""

    @property
    def response(self) -> Response:
        """What has happened so far."""
        ...


@dataclass
class Answer:
    """One run. `run` is set by whoever drives it, once it exists."""

    run: Run | None = None


class Chat:
    """A session and the face that shows it. `is_over`: the user has left."""

    def __init__(self, session: Session, face: Face) -> None:
        self.session = session
        self.face = face
        self.is_over = False
        self._interrupted = False

    # --- lines ---

    def take(self, line: str) -> Turn | None:
        """Do what a line asks for; where it asks the model, return the turn to run."""
        self._interrupted = False
        effect = effect_of(self.session, line)
        if isinstance(effect, Turn):
            return effect
        if effect is not None:
            self._do(effect)
        return None

    def _do(self, deed: Deed) -> None:
        match deed:
            case Say(text):
                self.face.say(text)
            case Complain(text):
                self.face.complain(text)
            case ShowHistory(messages):
                self.face.history(messages)
            case Leave():
                self.is_over = True
            case _:
                self._do_file(deed)

    def _do_file(self, deed: WriteFile | ReadFile) -> None:
        try:
            if isinstance(deed, WriteFile):
                write_conversation(deed.path, deed.text)
                self.face.say(deed.done)
            else:
                self._do(self.session.load(read_conversation(deed.path)))
        except (OSError, ValueError) as error:
            self.face.complain(f"{deed.path}: {getattr(error, 'strerror', None) or error}")

    def no_line(self, error: BaseException) -> None:
        """Reading has failed: the end of input leaves, and so does Ctrl-C twice in a row."""
        match error:
            case KeyboardInterrupt() if not self._interrupted:
                self._interrupted = True
                self.face.say("Ctrl-C again, Ctrl-D or /exit leaves.")
            case UnicodeDecodeError():
                self.face.complain(f"This is no text: {error}")
            case _:
                self.is_over = True

    # --- runs ---

    @contextmanager
    def answering(self, turn: Turn) -> Generator[Answer]:
        """Around the run of a turn: what stops it is shown, what it has left is kept."""
        answer = Answer()
        if turn.resume:
            self.face.calls(turn.agent.name, {"tool_calls": self.session.open_calls})
        failure: AswarmError | None = None
        try:
            yield answer
        except KeyboardInterrupt:
            pass  # the run was cancelled by it, and says so itself
        except AswarmError as error:
            failure = error
        finally:
            self.face.settle()
        nothing = Response(agent=turn.agent, context_variables=turn.context, stop="error" if failure else "cancelled")
        response = nothing if answer.run is None else answer.run.response
        self.session.end_turn(turn, response, failed=failure is not None)
        self._tell(response, failure)

    def _tell(self, response: Response, failure: AswarmError | None) -> None:
        if response.usage.total_tokens:  # otherwise the provider has not said
            self.face.usage(response.usage)
        if failure is not None:
            self.face.complain(f"{type(failure).__name__}: {one_line(failure, 200)} (/resume tries again)")
        elif response.stop == "cancelled":
            self.face.say(" ".join(["Stopped.", *self.session.undone]))
        elif response.stop == "max_turns":
            self.face.say(f"Stopped after {counted(response.usage.requests, 'completion')}; /resume goes on.")
