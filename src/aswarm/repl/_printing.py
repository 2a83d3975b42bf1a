"""Prints messages and calls on stdout as plain lines: names in blue, calls in purple.

Decides how the plain display of a chat looks. There are colours only at a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from aswarm._messages import text_of
from aswarm._text import clean, has_colours

from ._text import formatted_calls

BLUE, PURPLE = "\033[94m", "\033[95m"
END = "\033[0m"


class PrintingError(OSError):
    """Stdout cannot be written. `strerror` says why."""


def write(text: str) -> None:
    """Write to stdout and flush. A character that the encoding of stdout does not have becomes a question mark.

    Raises PrintingError, and BrokenPipeError as it is: it means that the reader has left.
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
    """The text without control characters, in a colour where stdout is a terminal."""
    return f"{colour}{clean(text)}{END}" if has_colours() else clean(text)


class LineWriter:
    """Writes a line `Name: text` piece by piece."""

    def __init__(self) -> None:
        self._is_open = False

    def add(self, name: str, text: str) -> None:
        """Write a piece of the text, and before the first piece the name."""
        if not self._is_open:
            write(f"{painted(f'{name}:', BLUE)} " if name else "")
        self._is_open = True
        write(clean(text))

    def end(self) -> None:
        """End the line, if one has begun."""
        if self._is_open:
            write("\n")
        self._is_open = False


def print_calls(name: str, message: Mapping[str, Any]) -> None:
    """Print one line for each call of an assistant message."""
    for function, arguments in formatted_calls(message):
        write(f"{painted(name, BLUE)}: {painted(function, PURPLE)}({arguments})\n")


def print_message(message: Mapping[str, Any]) -> None:
    """Print the text and the calls of an assistant message: `Name: text`, `Name: function(key=value)`."""
    name = str(message.get("sender") or "Assistant")
    text = text_of(message.get("content")) or str(message.get("refusal") or "")
    if text or not message.get("tool_calls"):
        write(f"{painted(name, BLUE)}: {clean(text)}\n")
    print_calls(name, message)
