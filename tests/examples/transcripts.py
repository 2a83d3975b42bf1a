"""Reads the transcripts in the READMEs of the examples, runs their commands, and compares; as a program, writes them.

A transcript is the fenced block right after a line `<!-- offline run -->`; its first line is the command,
`$ python examples/offline.py <name> ...`, the rest is its stdout, word for word except for `in 1.23s`.
A README may have several.

    python tests/examples/transcripts.py <name> ...     # runs the commands and puts their output into the READMEs
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import aswarm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BLOCK = re.compile(
    r"(?P<head><!-- offline run -->\n(?P<fence>`{3,})\w*\n)"
    r"\$ python examples/offline\.py (?P<command>[^\n]*)\n(?P<output>.*?)(?P<tail>(?P=fence)\n)",
    re.DOTALL,
)
SECONDS = re.compile(r"\bin \d+\.\d+ ?s\b")
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Transcript:
    """A block. `command`: the arguments of `offline.py`. `output`: the shown output."""

    command: str
    output: str

    def __str__(self) -> str:  # for pytest's ids
        return self.command


Runs = Mapping[Transcript, Future[Done]]


def transcripts(name: str) -> list[Transcript]:
    """The transcripts in the README of the example, at least one."""
    text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    found = [Transcript(block["command"], block["output"]) for block in BLOCK.finditer(text)]
    assert found, f"examples/{name}/README.md has no transcript"
    assert len(found) == text.count("<!-- offline run -->"), f"examples/{name}/README.md has a malformed transcript"
    return found


def environment() -> dict[str, str]:
    """Return the environment of an example: the aswarm of this process, and a plain terminal."""
    paths = [str(Path(aswarm.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    terminal = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1"}
    return {**os.environ, **terminal, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_offline(*arguments: str, text: str = "", timeout: float = 120) -> Done:
    """`python examples/offline.py <arguments>` in an empty folder, with `text` as its input, for `timeout` seconds."""
    command = [sys.executable, str(EXAMPLES / "offline.py"), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            command,
            check=False,
            cwd=folder,
            env=environment(),
            input=text,
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
        )


def run_transcript(transcript: Transcript) -> Done:
    """Run the command of a transcript."""
    return run_offline(*shlex.split(transcript.command))


def check_output(transcript: Transcript, done: Done) -> None:
    """Check the output and the exit code of the command."""
    assert SECONDS.sub("in ...", done.stdout) == SECONDS.sub("in ...", transcript.output), done.stderr
    assert done.returncode == 0, done.stderr


def write(name: str) -> None:
    """Write the current output of the commands to the README of the example."""
    path = EXAMPLES / name / "README.md"

    def renew(block: re.Match[str]) -> str:
        done = run_offline(*shlex.split(block["command"]))
        print(f"{name}: {block['command']}: exit code {done.returncode}", done.stderr, sep="\n")
        return f"{block['head']}$ python examples/offline.py {block['command']}\n{done.stdout}{block['tail']}"

    path.write_text(BLOCK.sub(renew, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for example in sys.argv[1:]:
        write(example)
