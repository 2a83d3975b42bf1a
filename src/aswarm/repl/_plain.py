"""The display and the reader of plain lines, for pipes and for terminals without the extra `repl`.

The display also decides which parts of a run and of a history are shown, and in which order. `RichDisplay` changes their look.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio.to_thread

from aswarm._values.events import (
    CompletionFinished,
    Event,
    HandedOff,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallFinished,
    TurnStarted,
)
from aswarm._values.messages import text_of
from aswarm._values.text import clean, has_colours, one_line
from aswarm._values.usage import Usage

from ._text import BANNER, answer_of, formatted_calls, is_terminal

BLUE, PURPLE = "\033[94m", "\033[95m"
END = "\033[0m"


class PrintingError(OSError):
    """Stdout cannot be written. `strerror` has the reason."""


def write(text: str) -> None:
    """Write to stdout and flush. A character that the encoding of stdout does not have becomes a question mark.

    Raises PrintingError, or BrokenPipeError if the reader has closed the pipe.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PrintingError(*error.args) from error


def painted(text: str, colour: str) -> str:
    """Return the text without control characters. If stdout is a terminal, add a colour."""
    return f"{colour}{clean(text)}{END}" if has_colours() else clean(text)


class PlainDisplay:
    """A display that prints a conversation like Swarm, and also the results of tools. In a terminal, names and calls have colours.

    It makes the texts of models, tools and users safe to show. `live`: whether to show answers while the model writes them.
    """

    def __init__(self, *, live: bool) -> None:
        self._is_live = live
        self._speaker = ""
        self._has_line = False  # whether the current line has an unfinished answer

    def greet(self, hint: str) -> None:
        """Print the first lines. `hint`: a hint for the user, or an empty text."""
        self.show_text(f"{BANNER}\n{hint}".rstrip())

    def show_event(self, event: Event) -> None:
        match event:
            case TurnStarted(agent=agent):
                self._speaker = agent.name
                self._show_turn(agent.name)
            case TextDelta(text) | RefusalDelta(text) if self._is_live:
                self._show_piece(text)
            case ReasoningDelta(text) if self._is_live:
                self._show_reasoning(text)
            case CompletionFinished(message=message):
                self._end_answer()
                if not self._is_live:
                    self._show_answer(self._speaker, message)
                self.show_calls(self._speaker, message)
            case ToolCallFinished(name=name, content=content, error=error):
                self._show_result(name, content, failed=error is not None)
            case HandedOff(source=source, target=target):
                self._show_handoff(source.name, target.name)
            case _:
                pass

    def show_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Show messages in the same form as during their run."""
        for message in messages:
            text = text_of(message.get("content"))
            match message["role"]:
                case "assistant":
                    agent, _ = answer_of(message)
                    self._show_answer(agent, message)
                    self.show_calls(agent, message)
                case "tool":
                    self._show_result(str(message.get("tool_name") or "tool"), text, failed=False)
                case role:
                    self._show_message(f"{role.capitalize()}: {text}")
        self.end_run()

    def _show_turn(self, agent: str) -> None:
        """Show that the chat waits for an agent."""

    def _show_reasoning(self, piece: str) -> None:
        """Show a piece of a model's reasoning."""

    def _show_piece(self, piece: str) -> None:
        if not self._has_line and self._speaker:
            write(f"{painted(f'{self._speaker}:', BLUE)} ")
        self._has_line = True
        write(clean(piece))

    def _end_answer(self) -> None:
        write("\n" if self._has_line else "")
        self._has_line = False

    def _show_answer(self, agent: str, message: Mapping[str, Any]) -> None:
        _, text = answer_of(message)
        if text or not message.get("tool_calls"):
            write(f"{painted(agent, BLUE)}: {clean(text)}\n")

    def show_calls(self, agent: str, message: Mapping[str, Any]) -> None:
        for function, arguments in formatted_calls(message):
            write(f"{painted(agent, BLUE)}: {painted(function, PURPLE)}({arguments})\n")

    def _show_result(self, name: str, content: str, *, failed: bool) -> None:  # noqa: ARG002 - the content shows the failure
        self.show_text(f"  {one_line(name)}: {one_line(content)}")

    def _show_handoff(self, source: str, target: str) -> None:
        self.show_text(f"{one_line(source)} -> {one_line(target)}")

    def end_run(self) -> None:
        """Finish the unfinished parts of the display. Call this however a run ends."""
        self._end_answer()

    def show_usage(self, used: Usage) -> None:
        """Show the tokens that a run has used."""

    def show_text(self, text: str) -> None:
        """Print a text of the chat itself. It may have several lines."""
        write(clean(text) + "\n")

    _show_message = show_text

    def show_error(self, text: str) -> None:
        self.show_text(one_line(text))


class PlainReader:
    """A reader that calls `input("User: ")`. Raises EOFError at the end of the input, and KeyboardInterrupt for Ctrl-C."""

    def __init__(self) -> None:
        if is_terminal(sys.stdin):
            with suppress(ImportError):  # Windows has no readline
                importlib.import_module("readline")  # after this import, `input` has editing and a history

    def read(self) -> str:
        """Return the next line. If stdin is not a terminal, also print the line, so that the output is a readable transcript."""
        try:
            line = input("User: ")
        except (EOFError, KeyboardInterrupt):
            write("\n")
            raise
        if not is_terminal(sys.stdin):
            write(f"{clean(line)}\n")
        return line

    async def read_async(self) -> str:
        """Return the next line. A thread reads it; if the caller is cancelled, the thread continues to read."""
        return await anyio.to_thread.run_sync(self.read, abandon_on_cancel=True)
