"""The display of plain lines, for pipes and for terminals without the extra `repl`."""

from __future__ import annotations

import sys
from typing import TextIO

from aswarm._values.text import clean, has_colours, one_line

from ._display import BANNER, Display

BLUE, PURPLE = "\033[94m", "\033[95m"
END = "\033[0m"


class PrintingError(OSError):
    """An output cannot be written. `strerror` has the reason."""


def write(text: str, stream: TextIO | None = None) -> None:
    """Write to the stream, by default stdout, and flush. A character that its encoding does not have becomes a question mark.

    Raises PrintingError, or BrokenPipeError if the reader has closed the pipe.
    """
    out: TextIO = stream or sys.stdout
    try:
        try:
            out.write(text)
        except UnicodeEncodeError:
            out.write(text.encode(out.encoding, "replace").decode(out.encoding))
        out.flush()
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
