"""`aswarm graph`: formats, files, and the message without Graphviz."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.cli_runs import AGENTS, invoke

MORE = """
def route(name: str):
    return AGENTS[name]

router = Agent(name="Router ü", functions=[route])
"""


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    """A module `agents` in the current directory."""
    (folder / "agents.py").write_text(AGENTS + MORE, encoding="utf-8")


def test_mermaid_is_the_default() -> None:
    """The drawing is on stdout, and possible handoffs are notes on stderr."""
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
    """`-o -` writes to stdout, and makes no file."""
    result = invoke("graph", "agents:triage", "-o", "-")
    assert (result.exit_code, result.stdout[:9]) == (0, "flowchart")
    assert not (folder / "-").exists()


def test_dot() -> None:
    """--format is the format, and a graph of certain handoffs has only notes on concurrency."""
    result = invoke("graph", "agents:triage", "--format", "dot")
    assert result.stdout.startswith("digraph agents {\n")
    assert result.stderr == (
        "Note: Triage: calls of transfer_to_orders run together.\n"
        "Note: Triage: calls of stop run alone, because plain functions run one at a time.\n"
        "Note: Orders: calls of look_up run alone, because they may change context_variables; with the hint Mapping, or "
        "a read-only type, they only read.\n"
    )


@pytest.mark.parametrize(
    ("name", "start"), [("a.mmd", "flowchart"), ("a.mermaid", "flowchart"), ("a.gv", "digraph"), ("A.DOT", "digraph")]
)
def test_the_ending_of_the_file_decides_the_format(folder: Path, name: str, start: str) -> None:
    """--output writes a file in the format of its ending, and nothing to stdout."""
    result = invoke("graph", "agents:triage", "-o", name)
    assert (result.exit_code, result.stdout) == (0, "")
    assert (folder / name).read_text(encoding="utf-8").startswith(start)


def test_the_format_counts_more_than_the_ending(folder: Path) -> None:
    """With --format the file may have any ending."""
    assert invoke("graph", "agents:triage", "-o", "agents.txt", "-f", "mermaid").exit_code == 0
    assert (folder / "agents.txt").read_text(encoding="utf-8").startswith("flowchart")


@pytest.mark.processes
def test_the_input_of_graphviz(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphviz gets the format and the graph in DOT, and its output stays unchanged."""
    program = folder / "dot"
    program.write_text("#!/bin/sh\necho \"$@\"\ncat\nprintf '\\377'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    given = invoke("graph", "agents:triage", "-f", "dot").stdout_bytes
    assert invoke("graph", "agents:triage", "-f", "png").stdout_bytes == b"-Tpng\n" + given + b"\xff"


@pytest.mark.parametrize("form", ["svg", "png"])
def test_without_graphviz(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture without Graphviz is a usage error, and makes no file."""
    monkeypatch.setenv("PATH", str(folder))
    result = invoke("graph", "agents:triage", "-o", f"agents.{form}")
    assert result.exit_code == 2
    assert f"Error: {form} needs Graphviz" in result.stderr
    assert not (folder / f"agents.{form}").exists()


@pytest.mark.processes
def test_graphviz_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of Graphviz is exit code 1 with its message."""
    program = folder / "dot"
    program.write_text("#!/bin/sh\necho 'out of ink' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    result = invoke("graph", "agents:triage", "-f", "svg")
    assert result.exit_code == 1
    assert result.stderr == "Error: dot failed: out of ink\n"
