"""The command line: `aswarm run`, `chat`, `batch`, `graph`, `eval`, `serve`, `mcp`, `worker`, `runs` and `demo`.

`python -m aswarm` is the same:

    aswarm run agents:triage "Where is my order?"     stream an answer to stdout
    aswarm run agents:triage - --json < question.txt  typed events, one JSON object on each line
    aswarm chat agents:triage                         a conversation
    aswarm batch agents:triage in.jsonl -o out.jsonl  many conversations at once, one outcome on each line
    aswarm graph agents:triage -o agents.svg          draw which agents can hand off to which
    aswarm eval cases.json --threshold 0.9            test what the agents do
    aswarm serve agents:triage                        agents over HTTP, with a playground
    aswarm mcp agents:triage                          serve the agents to programs that speak MCP
    aswarm worker agents:runs                         execute durable runs
    aswarm runs list agents:runs                      look at durable runs, cancel, answer and delete them
    aswarm demo                                       a run of two agents, without an API key

The name of an agent is `module:attribute`, with modules found from the current directory, or `path/to/file.py:attribute`.
The attribute is an agent, or a function without parameters that returns one. stdout gets only the result of the command;
progress, notes and the output of functions go to stderr.

The exit codes are in `--help` of every command, and are defined in `aswarm.cli._exits.ExitCode`.

The command line needs click. The extra `cli` installs it, and the packages for `chat`, `batch` and `eval`. Importing
this module does not import them.
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
    """Write characters that the output's encoding lacks as escapes, and drop notes that stderr does not accept.

    Otherwise an answer could be lost because of the locale or a full disk.
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
    """Standard error that ignores write errors: if its disk is full, the command continues."""

    def write(self, text: str, /) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()
