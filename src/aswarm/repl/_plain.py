"""The display and the reader of plain lines, for pipes and for terminals without the extra `repl`."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import TextIO

import anyio.to_thread

from aswarm._values.text import clean, has_colours, one_line

from ._display import BANNER, Display, is_terminal

BLUE, PURPLE = "\033[94m", "\033[95m"
END = "\033[0m"


class PrintingError(OSError):
    """An output cannot be written. `strerror` has the reason."""


def write(text: str, stream: TextIO | None = None) -> None:
    """Write to the stream, by default stdout, and flush. A character that its encoding does not have becomes a question mark.

    Raises PrintingError, or BrokenPipeError if the reader has closed the pipe.
    """
    stream = stream or sys.stdout
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            stream.write(text.encode(stream.encoding, "replace").decode(stream.encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PrintingError(*error.args) from error


class PlainDisplay(Display):
    """A display that prints a conversation like Swarm, and also the results of tools. In a terminal, names and calls have colours.

    `stdout`: the stream of the answers. `stderr`: the stream of the other lines, by default the same; a name on another stream
    has its own line. `is_raw`: whether answers keep their control characters, for a program that reads them.
    """

    def __init__(
        self,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        *,
        live: bool,
        details: bool = True,
        is_raw: bool = False,
    ) -> None:
        super().__init__(live=live, details=details)
        self._stdout = stdout
        self._stderr = stderr or stdout
        self._is_raw = is_raw
        self._last = ""  # the last character of an unfinished answer

    def greet(self, hint: str) -> None:
        self.show_text(f"{BANNER}\n{hint}".rstrip())

    def show_text(self, text: str) -> None:
        write(clean(text) + "\n", self._stderr)

    _show_line = show_text

    def show_error(self, text: str) -> None:
        self.show_text(one_line(text))

    def _show_piece(self, piece: str) -> None:
        if not self._last:
            self._show_name(self._speaker)
        write(piece if self._is_raw else clean(piece), self._stdout)
        self._last = piece[-1:] or self._last

    def _show_name(self, name: str) -> None:
        if name and self._has_details:
            end = " " if self._stderr is self._stdout else "\n"
            write(self._painted(f"{name}:", BLUE) + end, self._stderr)

    def _end_answer(self) -> None:
        if self._last not in ("", "\n"):
            write("\n", self._stdout)
        self._last = ""

    def _show_answer(self, agent: str, text: str) -> None:
        write(f"{self._painted(agent, BLUE)}: {clean(text)}\n", self._stdout)

    def _show_call(self, agent: str, name: str, arguments: str) -> None:
        write(f"{self._painted(agent, BLUE)}: {self._painted(name, PURPLE)}({arguments})\n", self._stderr)

    def _show_result(self, name: str, content: str, *, failed: bool) -> None:  # noqa: ARG002 - the content shows the failure
        self.show_text(f"  {one_line(name)}: {one_line(content)}")

    def _show_handoff(self, source: str, target: str) -> None:
        self.show_text(f"{one_line(source)} -> {one_line(target)}")

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{clean(text)}{END}" if has_colours(self._stderr) else clean(text)


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
