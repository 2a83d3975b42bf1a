"""`aswarm graph`: formats, files, and the message without Graphviz."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cli.cli_runs import AGENTS, invoke

MORE = """
def route(name: str):
    return AGENTS[name]

router = Agent(name="Router ü", functions=[route])
"""
has_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    """A module `agents` in the current directory."""
    (folder / "agents.py").write_text(AGENTS + MORE, encoding="utf-8")


def test_mermaid_is_the_default() -> None:
    """The drawing is on stdout, handoffs that are not certain are listed on stderr."""
    result = invoke("graph", "agents:router")
    assert result.exit_code == 0
    assert result.stdout_bytes.decode().startswith('flowchart LR\n    a1["<b>Router ü</b><br/>route"]\n')
    assert result.stderr.splitlines()[0] == (
        "Note: route of Router ü may hand off to Orders; only a call shows whether it does."
    )
    assert (
        "Note: Router ü: calls of route run alone, because plain functions run one at a time."
        in result.stderr.splitlines()
    )


def test_a_dash_is_stdout(folder: Path) -> None:
    """`-o -` writes to stdout, as everywhere, and no file."""
    result = invoke("graph", "agents:triage", "-o", "-")
    assert (result.exit_code, result.stdout[:9]) == (0, "flowchart")
    assert not (folder / "-").exists()


def test_dot() -> None:
    """By --format; where every handoff is certain, stderr says only which tools run together."""
    result = invoke("graph", "agents:triage", "--format", "dot")
    assert result.stdout.startswith("digraph agents {\n")
    assert result.stderr == (
        "Note: Triage: calls of transfer_to_orders run together.\n"
        "Note: Triage: calls of stop run alone, because plain functions run one at a time.\n"
        "Note: Orders: calls of look_up run alone, because they may change context_variables; with the hint Mapping, or "
        "a read-only type, they only read.\n"
    )


@pytest.mark.parametrize(
    ("name", "begins"), [("a.mmd", "flowchart"), ("a.mermaid", "flowchart"), ("a.gv", "digraph"), ("A.DOT", "digraph")]
)
def test_the_ending_of_the_file_decides_the_format(folder: Path, name: str, begins: str) -> None:
    """--output writes a file, and nothing to stdout."""
    result = invoke("graph", "agents:triage", "-o", name)
    assert (result.exit_code, result.stdout) == (0, "")
    assert (folder / name).read_text(encoding="utf-8").startswith(begins)


def test_the_format_counts_more_than_the_ending(folder: Path) -> None:
    """--format allows any ending."""
    assert invoke("graph", "agents:triage", "-o", "agents.txt", "-f", "mermaid").exit_code == 0
    assert (folder / "agents.txt").read_text(encoding="utf-8").startswith("flowchart")


def test_an_unknown_ending() -> None:
    """The message lists the known ones."""
    result = invoke("graph", "agents:triage", "-o", "agents.txt")
    assert result.exit_code == 2
    assert "--format" in result.stderr
    assert ".svg" in result.stderr


def test_a_file_that_cannot_be_written() -> None:
    """The message has the reason of the system."""
    result = invoke("graph", "agents:triage", "-o", "nowhere/agents.mmd")
    assert result.exit_code == 2
    assert "nowhere/agents.mmd cannot be written: No such file or directory" in result.stderr


@has_dot
def test_pictures(folder: Path) -> None:
    """SVG and PNG by Graphviz, into a file or a pipe."""
    assert invoke("graph", "agents:router", "-o", "agents.svg").exit_code == 0
    assert "Router ü" in (folder / "agents.svg").read_text(encoding="utf-8")
    assert invoke("graph", "agents:router", "-f", "png").stdout_bytes.startswith(b"\x89PNG")


@pytest.mark.processes
def test_what_graphviz_is_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format, and the graph in DOT; its output is passed on unchanged."""
    program = folder / "dot"
    program.write_text("#!/bin/sh\necho \"$@\"\ncat\nprintf '\\377'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    given = invoke("graph", "agents:triage", "-f", "dot").stdout_bytes
    assert invoke("graph", "agents:triage", "-f", "png").stdout_bytes == b"-Tpng\n" + given + b"\xff"


@pytest.mark.parametrize("form", ["svg", "png"])
def test_without_graphviz(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How to install it, and which formats do not need it; exit code 2, and no file."""
    monkeypatch.setenv("PATH", str(folder))
    result = invoke("graph", "agents:triage", "-o", f"agents.{form}")
    assert result.exit_code == 2
    assert f"Error: {form} needs Graphviz" in result.stderr
    assert not (folder / f"agents.{form}").exists()


@pytest.mark.processes
def test_graphviz_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own message, and exit code 1."""
    program = folder / "dot"
    program.write_text("#!/bin/sh\necho 'out of ink' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    result = invoke("graph", "agents:triage", "-f", "svg")
    assert result.exit_code == 1
    assert result.stderr == "Error: dot failed: out of ink\n"


def test_an_agent_that_could_not_run(folder: Path) -> None:
    """An error in its functions is reported as in a run."""
    (folder / "bad.py").write_text("from aswarm import Agent\na = Agent(name='A', functions=[7])\n")
    result = invoke("graph", "bad:a")
    assert result.exit_code == 2
    assert "7 cannot be used as a function" in result.stderr
