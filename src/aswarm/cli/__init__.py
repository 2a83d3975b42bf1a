"""The command line: `aswarm run`, `chat`, `batch`, `graph`, `eval` and `demo`; `python -m aswarm` is the same.

    aswarm run agents:triage "Where is my order?"     an answer, streamed to stdout
    aswarm run agents:triage - --json < question.txt  typed events, a JSON object on each line
    aswarm chat agents:triage                         a conversation
    aswarm batch agents:triage in.jsonl -o out.jsonl  many conversations at once, an outcome on each line
    aswarm graph agents:triage -o agents.svg          who can hand off to whom
    aswarm eval cases.json --threshold 0.9            whether it does what you expect
    aswarm demo                                       what it looks like, without an API key

An agent is named as `module:attribute`, looked for from the current directory on, or as `path/to/file.py:attribute`; a
function without parameters that returns an agent will do. Only what a command is for goes to stdout; what functions
print, and all that is told beside it, goes to stderr.

| exit code | meaning |
|---|---|
| 0 | done: the model answered, in a batch every item |
| 1 | the run failed: the provider did, or a run could not go on; in a batch, an item failed or a line could not be used |
| 2 | something is to be mended before it can run: the command, the agent, an API key, an extra that is not installed |
| 3 | the run ended without an answer: `--max-turns` was reached, or the model refused |
| 4 | the evals are below the threshold |
| 130 | stopped by Ctrl-C |
| 141 | whoever read the output has gone |
| 143 | SIGTERM, after which a batch says how to go on, as after Ctrl-C |

It needs click, of the extra `cli`, which brings what `chat`, `batch` and `eval` need too. Importing this imports neither.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TextIO

__all__ = ["main"]


def main() -> None:
    """Run the command that is in `sys.argv`, and exit with its code."""
    try:
        from ._app import app  # noqa: PLC0415 - only here can be said what is missing
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.exit(_without_click())
    _make_printing_safe()
    app(prog_name="aswarm")


def _without_click() -> int:
    sys.stderr.write('aswarm: the command line needs click: pip install "aswarm[cli]"\n')
    return 2


def _make_printing_safe() -> None:
    """What the encoding of the output does not know is written as an escape: an answer is not lost to a locale."""
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:  # closed by whoever started this
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
