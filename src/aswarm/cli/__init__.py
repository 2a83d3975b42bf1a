"""The command line: `aswarm COMMAND`, or `python -m aswarm COMMAND`. `aswarm --help` lists the commands.

The name of an agent is `module:attribute` or `path/to/file.py:attribute`. Modules of the current directory are found too. stdout
gets only the result of the command; progress, notes and the output of functions go to stderr. `--help` of each command lists its
exit codes, which `aswarm.cli._command.ExitCode` defines.

The command line needs click. The extra `cli` installs click, and the packages for `chat`, `batch` and `eval`. Importing this
module imports none of them.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from aswarm._values.text import how_to_install

__all__ = ["main"]


def main() -> None:
    """Run the command in `sys.argv`, and exit with its code."""
    try:
        from ._app import app  # noqa: PLC0415 - here a missing click can be reported
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write(f"aswarm: the command line needs click: {how_to_install('cli')}\n")
        sys.exit(2)
    _make_printing_safe()
    app(prog_name="aswarm")


def _make_printing_safe() -> None:
    """Make stdout and stderr accept all text. Otherwise an answer could be lost because of the locale or a full disk.

    A character that the encoding of the output does not have is written as an escape. If stderr cannot be written, notes are lost.
    """
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:  # the parent process closed it
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if type(sys.stderr) is io.TextIOWrapper:
        sys.stderr = _Notes(sys.stderr.buffer, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


class _Notes(io.TextIOWrapper):
    """A stderr that ignores write errors. So the command continues if the disk of stderr is full."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()
