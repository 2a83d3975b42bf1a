"""A conversation that several runs of `aswarm run` share: its file, and the decisions about its open calls.

The file has the form of the one that `aswarm chat` saves and loads. Its content is only data, and approves no call.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aswarm._agent import Agent, Response
from aswarm._decisions import Decisions
from aswarm._json import is_object, shown
from aswarm._messages import Message

from ._exits import SetupError
from ._output import cannot_write

if TYPE_CHECKING:
    from aswarm.repl._saved import SavedConversation
    from aswarm.repl._session import StartRun

_LINE = 60  # characters of a value in a message


def decisions_in(path: str) -> bool | Decisions:
    """The decisions in a JSON file, or on stdin for `-`. Raises SetupError for a file that is not one of decisions."""
    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        decisions: Any = json.loads(text)
    except OSError as error:
        raise SetupError(f"--resume: {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SetupError(f"--resume: {path} is not JSON: {error}") from error
    if decisions is not True and not is_object(decisions):
        example = '{"call_1": true, "call_2": {"deny": "too late"}}'
        raise SetupError(
            f"--resume: {path} must have true, or decisions by the id of the call such as {example}, not "
            f"{shown(decisions, _LINE)}"
        )
    return decisions


def saved_conversation(path: str) -> SavedConversation:
    """The conversation in the file of `--load`. Raises SetupError for a file that is not one of a conversation."""
    from aswarm.repl._saved import read_conversation  # noqa: PLC0415 - slow, and most questions need no file

    try:
        return read_conversation(path)
    except (OSError, ValueError) as error:
        raise SetupError(f"--load: {path}: {_reason(error)}") from error


@dataclass(frozen=True, slots=True)
class Beginning:
    """The arguments of a run."""

    agent: Agent
    messages: str | list[Message]
    context: dict[str, Any]
    resume: bool | Decisions = False


class NewConversation:
    """A conversation of one question, of which no file is kept."""

    def __init__(self, agent: Agent, context: dict[str, Any]) -> None:
        self._agent = agent
        self._context = context

    def begin(self, question: str, _: bool | Decisions) -> Beginning:
        """The arguments of the run."""
        return Beginning(self._agent, question, self._context)

    def end(self, response: Response, *, failed: bool) -> None:
        """Keep nothing."""


class ContinuedConversation:
    """The conversation in the file `load`, or a new one. The file `save` keeps it. Raises SetupError for files that do not fit."""

    def __init__(self, agent: Agent, context: dict[str, Any], load: str | None, save: str | None) -> None:
        from aswarm.repl._session import Session  # noqa: PLC0415 - as above

        self._session = Session(agent, context)
        self._save = save
        self._start: StartRun
        if load is not None:
            self._load(load)
        if save is not None:
            self._check(save)

    def _load(self, path: str) -> None:
        saved = saved_conversation(path)
        if saved.agent and saved.agent not in self._session.agents:
            raise SetupError(
                f"--load: the conversation in {path} is with the agent {saved.agent!r}, which is not among those that "
                f"AGENT can reach: {', '.join(self._session.agents)}"
            )
        self._session.load(saved)

    def _check(self, path: str) -> None:
        from aswarm.repl._saved import other_conversation  # noqa: PLC0415 - as above

        try:
            other = other_conversation(path, self._text())
        except (OSError, ValueError) as error:
            raise SetupError(f"--save: {path}: {_reason(error)}") from error
        if other is not None:
            raise SetupError(f"--save: {path} has another conversation; choose another file, or --load it too")

    def begin(self, question: str, decisions: bool | Decisions) -> Beginning:
        """The arguments of the run: the question after the messages, or the open calls with these decisions."""
        session = self._session
        self._start = session.decide(decisions) if decisions is not False else session.send(question)
        return Beginning(session.agent, self._start.messages, session.context, decisions)

    def end(self, response: Response, *, failed: bool) -> None:
        """Keep the messages of the run, however it ended."""
        self._session.end_run(self._start, response, failed=failed)
        if self._save is not None:
            from aswarm.repl._saved import write_conversation  # noqa: PLC0415 - as above

            try:
                write_conversation(self._save, self._text())
            except OSError as error:
                raise cannot_write(self._save, error) from error

    def _text(self) -> str:
        from aswarm.repl._saved import to_json  # noqa: PLC0415 - as above

        return to_json(self._session.save())[0]


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
