"""`aswarm graph`: draws the possible handoffs between agents."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

from aswarm.cli._command import CommandFailed, SetupError, command, writing
from aswarm.cli._load import load_agent
from aswarm.cli._options import AGENT_HELP
from aswarm.graph import Graph, agent_graph

_PICTURES = ("svg", "png")
_FORMATS = ("mermaid", "dot", *_PICTURES)
_ENDINGS = {".mmd": "mermaid", ".mermaid": "mermaid", ".dot": "dot", ".gv": "dot", ".svg": "svg", ".png": "png"}


@command(
    "graph",
    text=f"Draw the agents that AGENT can hand off to, and their functions.\n\n{AGENT_HELP} No function of an "
    "agent is called. A handoff that is not certain is a dashed line. Notes on stderr list these handoffs, and the tools "
    "that run together.",
)
@click.argument("agent")
@click.option(
    "-f",
    "--format",
    "format_name",
    type=click.Choice(_FORMATS),
    help="The format of the drawing. [default: by the ending of --output, else mermaid]",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A file, or - for stdout. [default: -]"
)
def graph(agent: str, format_name: str | None, output: Path | None) -> None:
    """Draw the graph."""
    output = None if output == Path("-") else output
    format_name = format_name or _format_of(output)
    if format_name == "png" and output is None and sys.stdout.isatty():
        raise SetupError("a terminal cannot show a PNG; write it to a file with --output")
    drawn = agent_graph(load_agent(agent))
    _put(_drawing(drawn, format_name), output)
    for note in (*drawn.notes, *drawn.concurrency_notes):
        click.echo(f"Note: {note}", err=True)


def _format_of(output: Path | None) -> str:
    if output is None:
        return "mermaid"
    name = _ENDINGS.get(output.suffix.lower())
    if name is None:
        raise SetupError(f"{output}: unknown ending; give --format, or one of the endings {', '.join(_ENDINGS)}")
    return name


def _drawing(drawn: Graph, format_name: str) -> bytes:
    if format_name in _PICTURES:
        return _picture(drawn.dot(), format_name)
    return (drawn.mermaid() if format_name == "mermaid" else drawn.dot()).encode()


def _picture(text: str, format_name: str) -> bytes:
    dot = shutil.which("dot")
    if dot is None:
        raise SetupError(
            f"{format_name} needs Graphviz, whose program `dot` is not on the PATH (apt-get install graphviz, brew "
            "install graphviz, or graphviz.org/download); the formats mermaid and dot do not need it"
        )
    result = subprocess.run([dot, f"-T{format_name}"], input=text.encode(), capture_output=True, check=False)  # noqa: S603 - dot
    if result.returncode:
        raise CommandFailed(f"dot failed: {result.stderr.decode(errors='replace').strip()}")
    return result.stdout


def _put(drawing: bytes, output: Path | None) -> None:
    if output is None:
        # As bytes, because the drawing must be UTF-8 in each locale.
        with writing(sys.stdout):
            sys.stdout.buffer.write(drawing)
            sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(drawing)
    except OSError as error:
        raise SetupError(f"{output} cannot be written: {error.strerror}") from error
