"""The display and the reader of plain lines, for pipes and for terminals without the extra `repl`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio.to_thread

from aswarm._events import CompletionFinished, Event, HandedOff, RefusalDelta, TextDelta, ToolCallFinished, TurnStarted
from aswarm._messages import text_of
from aswarm._text import clean, one_line
from aswarm._usage import Usage

from ._printing import LineWriter, print_calls, print_message, write
from ._text import BANNER, is_terminal


class PlainDisplay:
    """Lines as Swarm prints them, and the results of tools. `live`: show answers while the model writes them."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._line = LineWriter()
        self._speaker = ""

    def greet(self, hint: str) -> None:
        """Print the first lines."""
        self.show_text(f"{BANNER}\n{hint}".rstrip())

    def show_event(self, event: Event) -> None:
        """Print an event of a run."""
        match event:
            case TurnStarted(agent=agent):
                self._speaker = agent.name
            case TextDelta(text) | RefusalDelta(text) if self._live:
                self._line.add(self._speaker, text)
            case CompletionFinished(message=message):
                self._show_completion(message)
            case ToolCallFinished(name=name, content=content):
                self._show_tool_result(name, content)
            case HandedOff(source=source, target=target):
                self.show_text(f"{one_line(source.name)} -> {one_line(target.name)}")
            case _:
                pass

    def _show_completion(self, message: Mapping[str, Any]) -> None:
        if self._live:
            self._line.end()
            print_calls(self._speaker, message)
        else:
            print_message(message)

    def _show_tool_result(self, name: str, content: str) -> None:
        self.show_text(f"  {one_line(name)}: {one_line(content)}")

    def show_calls(self, agent: str, message: Mapping[str, Any]) -> None:
        """Print calls that are about to run."""
        print_calls(agent, message)

    def end_run(self) -> None:
        """End the line of an unfinished answer."""
        self._line.end()

    def show_usage(self, used: Usage) -> None:
        """Print nothing: /usage shows it."""

    def show_text(self, text: str) -> None:
        """Print a text as it is."""
        write(clean(text) + "\n")

    def show_error(self, text: str) -> None:
        """Print one line."""
        self.show_text(one_line(text))

    def show_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Print messages: `Name: text`, and calls and results as they were shown during the run."""
        for message in messages:
            text = text_of(message.get("content"))
            match message["role"]:
                case "assistant":
                    print_message(message)
                case "tool":
                    self._show_tool_result(str(message.get("tool_name") or "tool"), text)
                case role:
                    self.show_text(f"{role.capitalize()}: {text}")


class PlainReader:
    """Reads with `input("User: ")`."""

    def __init__(self) -> None:
        if is_terminal(sys.stdin):
            with suppress(ImportError):  # Windows has no readline
                importlib.import_module("readline")  # its import gives `input` editing and a history

    def read(self) -> str:
        """The next line. A line that no terminal has echoed is printed, so that the output is a readable transcript."""
        try:
            line = input("User: ")
        except (EOFError, KeyboardInterrupt):
            write("\n")
            raise
        if not is_terminal(sys.stdin):
            write(f"{clean(line)}\n")
        return line

    async def read_async(self) -> str:
        """The next line, read in a thread. If the wait is cancelled, the thread is abandoned."""
        return await anyio.to_thread.run_sync(self.read, abandon_on_cancel=True)
