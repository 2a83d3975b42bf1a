"""Mistakes of users: exit code 2 and one line, before anything is sent."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.cli.cli_runs import AGENTS, invoke, model, stored

KEPT = "--store chats.sqlite --conversation ann"
BROKEN = """
def odd(a, /):
    pass

broken = Agent(functions=[odd])
bad = Agent(functions=[7])
"""


@pytest.fixture
def more(project: Path) -> None:
    """Agents that cannot run, and agents with the same names in another module."""
    (project / "agents.py").write_text(AGENTS + BROKEN, encoding="utf-8")
    (project / "other.py").write_text(AGENTS, encoding="utf-8")
    (project / "cases.json").write_text('[{"conversation": "a", "function": "None"}]', encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("", "Usage: aswarm"),
        ("nothing", "No such command 'nothing'"),
        ("run", "Missing argument 'AGENT'"),
        ("run agents:triage ? --max-turns -1", "--max-turns"),
        ("run agents:triage ? -c text", "--context"),
        ("run agents:triage ? -c =x", "--context"),
        ("run agents:triage ? -c {1}", "--context"),
        ("run agents:triage ? -c {", "--context"),
        ("run agents:triage ? --base-url localhost:8080", "http://"),
        ("run agents:triage ? --budget 5", "the limits are turns, "),
        ("run agents:triage ? --budget turns=x", "expected limits such as"),
        ("run agents:triage ? --budget turns=", "expected limits such as"),
        ("run agents:triage ? --budget trns=5", "the limits are turns, "),
        ("run agents:triage ? --budget turns=0", "of a Budget must be"),
        ("run agents:triage ? --budget then=ask", "of a Budget must be"),
        ("run agents:triage ? --budget prices=3", "the limits are turns, "),
        ("run agents:triage ? --budget ''", "the limits are turns, "),
        ("run agents:broken ?", "positional-only"),
        (f"run agents:triage {KEPT} --resume -", "has nothing to resume"),
        ("run agents:triage Hi --output agents", "expected module:attribute"),
        ("run agents:triage Hi --output agents:Nothing", "agents has no attribute 'Nothing'"),
        ("run agents:triage Hi --output agents:7", "expected module:attribute"),
        ("chat agents:nobody", "agents has no attribute 'nobody'"),
        ("chat agents:triage --store agents.py", "Error: the store agents.py cannot be opened"),
        ("chat agents:triage --conversation x", "--conversation needs --store"),
        ("chat agents:triage --store postgresql://127.0.0.1:1/x --conversation x", "the store cannot be opened"),
        ("chat agents:triage --store chats.sqlite --conversation ''", "the id of a conversation"),
        ("eval cases.json --results cases.json/x.json --agent agents:triage", "x.json cannot be written"),
        ("eval cases.json", "the case 'a' has no agent"),
        ("eval nowhere.json", "nowhere.json"),
        ("graph agents:triage -o agents.txt", "--format"),
        (
            "graph agents:triage -o nowhere/agents.mmd",
            "nowhere/agents.mmd cannot be written: No such file or directory",
        ),
        ("graph agents:bad", "7 cannot be used as a function"),
        ("serve agents:triage --host 0.0.0.0", "ASWARM_TOKEN"),
        ("serve agents:triage --host 'no host' --token t", "cannot listen at no host"),
        ("serve agents:triage other:triage", "its own name"),
        ("serve agents:triage --base-url localhost:8080", "expected an address that starts with http:// or https://"),
        ("serve", "Missing argument 'AGENT...'"),
    ],
)
@pytest.mark.usefixtures("more")
def test_a_mistake_is_a_usage_error(command: str, text: str) -> None:
    """A mistake is exit code 2 with a line that names it, and nothing is sent."""
    with model() as server:
        result = invoke(*shlex.split(command), server=server, stdin="true")
    assert (result.exit_code, server.requests) == (2, [])
    assert text in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "command",
    [
        "run agents:triage Hi",
        f"run agents:triage Hi {KEPT}",
        "chat agents:triage",
        f"chat agents:triage {KEPT}",
        "serve agents:triage --port 0",
    ],
)
def test_a_missing_key_is_reported_first(command: str) -> None:
    """Without a key and a base URL, one line names both before anything is written or served."""
    result = invoke(*shlex.split(command), stdin="Hello\n")
    assert (result.exit_code, result.stdout) == (2, "")
    for named in ("OPENAI_API_KEY", "--base-url", "OPENAI_BASE_URL"):
        assert named in result.stderr
    assert "client=" not in result.stderr and "http://127.0.0.1" not in result.stderr
    assert result.stderr.count("\n") == 1
    assert stored() is None
