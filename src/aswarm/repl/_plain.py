"""The face and the reader for where no terminal is, or nothing but one: lines of text, and `input`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import anyio.to_thread

from aswarm._events import CompletionFinished, Event, HandedOff, RefusalDelta, TextDelta, ToolCallFinished, TurnStarted
from aswarm._messages import text_of
from aswarm._usage import Usage

from ._printing import Speech, pretty_print_messages, print_calls, write
from ._text import BANNER, clean, is_terminal, one_line


class PlainFace:
    """Lines as Swarm prints them, and what tools have answered. `live`: answers are written as they come."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._speech = Speech()
        self._speaker = ""

    def greet(self, hint: str) -> None:
        """The first lines."""
        self.say(f"{BANNER}\n{hint}".rstrip())

    def show(self, event: Event) -> None:
        """One event of a run."""
        match event:
            case TurnStarted(agent=agent):
                self._speaker = agent.name
            case TextDelta(text) | RefusalDelta(text) if self._live:
                self._speech.add(self._speaker, text)
            case CompletionFinished(message=message):
                self._finish(message)
            case ToolCallFinished(name=name, content=content):
                self.say(f"  {one_line(name)}: {one_line(content)}")
            case HandedOff(source=source, target=target):
                self.say(f"{one_line(source.name)} -> {one_line(target.name)}")
            case _:
                pass

    def _finish(self, message: Mapping[str, Any]) -> None:
        if self._live:
            self._speech.end()
            print_calls(self._speaker, message)
        else:
            pretty_print_messages([message])

    def calls(self, agent: str, message: Mapping[str, Any]) -> None:
        """Calls that are about to run."""
        print_calls(agent, message)

    def settle(self) -> None:
        """End the line of an answer that has not ended."""
        self._speech.end()

    def usage(self, used: Usage) -> None:
        """Nothing; whoever wants to know asks with /usage."""

    def say(self, text: str) -> None:
        """A text, as it is."""
        write(clean(text) + "\n")

    def complain(self, text: str) -> None:
        """One line."""
        self.say(one_line(text))

    def history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Messages: `Name: text`, calls and their answers as they looked when they came."""
        for message in messages:
            text = text_of(message.get("content"))
            match message["role"]:
                case "assistant":
                    pretty_print_messages([message])
                case "tool":
                    self.say(f"  {one_line(message.get('tool_name') or 'tool')}: {one_line(text)}")
                case role:
                    self.say(f"{role.capitalize()}: {text}")


class PlainReader:
    """`input("User: ")`."""

    def __init__(self) -> None:
        if is_terminal(sys.stdin):
            with suppress(ImportError):  # not on Windows
                importlib.import_module("readline")  # from now on input() has editing and a history

    def read(self) -> str:
        """The next line. Where it is not typed in a terminal, it is written too, so that the output can be read."""
        try:
            line = input("User: ")
        except (EOFError, KeyboardInterrupt):
            write("\n")
            raise
        if not is_terminal(sys.stdin):
            write(f"{clean(line)}\n")
        return line

    async def read_async(self) -> str:
        """The same in a thread, which is left to itself when the wait for it is cancelled."""
        return await anyio.to_thread.run_sync(self.read, abandon_on_cancel=True)
