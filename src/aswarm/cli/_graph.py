"""`aswarm graph`: who can hand off to whom, drawn. Decides the form, and where it goes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click

from aswarm.graph import Graph, agent_graph

from ._exits import HELP, Failure, Mistake
from ._load import load_agent
from ._options import AGENT_HELP

_PICTURES = ("svg", "png")
_FORMATS = ("mermaid", "dot", *_PICTURES)
_ENDINGS = {".mmd": "mermaid", ".mermaid": "mermaid", ".dot": "dot", ".gv": "dot", ".svg": "svg", ".png": "png"}


@click.command(
    epilog=HELP,
    help=f"Draw which agents AGENT can reach by handoffs, and their functions.\n\n{AGENT_HELP} No function is called to "
    "find out; what is not certain is dashed, and told on stderr.",
)
@click.argument("agent")
@click.option("-f", "--format", "form", type=click.Choice(_FORMATS), help="By default that of --output, else mermaid.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A file. [default: stdout]")
def graph(agent: str, form: str | None, output: Path | None) -> None:
    """Draw the graph."""
    form = form or _form_of(output)
    if form == "png" and output is None and sys.stdout.isatty():
        raise Mistake("a PNG is not for a terminal: give it a file with --output")
    drawn = agent_graph(load_agent(agent))
    _put(_drawing(drawn, form), output)
    for note in drawn.notes:
        click.echo(f"Maybe: {note}", err=True)


def _form_of(output: Path | None) -> str:
    if output is None:
        return "mermaid"
    form = _ENDINGS.get(output.suffix.lower())
    if form is None:
        raise Mistake(f"{output}: what is it to be? Give --format, or one of the endings {', '.join(_ENDINGS)}")
    return form


def _drawing(drawn: Graph, form: str) -> bytes:
    if form in _PICTURES:
        return _picture(drawn.dot(), form)
    return (drawn.mermaid() if form == "mermaid" else drawn.dot()).encode()


def _picture(text: str, form: str) -> bytes:
    dot = shutil.which("dot")
    if dot is None:
        raise Mistake(
            f"{form} needs Graphviz, whose program `dot` is not on the PATH (apt-get install graphviz, brew install "
            "graphviz, or graphviz.org/download); mermaid and dot need nothing"
        )
    done = subprocess.run([dot, f"-T{form}"], input=text.encode(), capture_output=True, check=False)  # noqa: S603 - dot
    if done.returncode:
        raise Failure(f"dot failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _put(drawing: bytes, output: Path | None) -> None:
    if output is None:
        # As bytes: a drawing is UTF-8, whatever the encoding of the output.
        sys.stdout.buffer.write(drawing)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(drawing)
    except OSError as error:
        raise Mistake(f"{output} cannot be written: {error.strerror}") from error
