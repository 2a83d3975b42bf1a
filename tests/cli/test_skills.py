"""`--skills` of `run`, `chat` and `serve`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from aswarm.testing import call
from tests.support.cli.cli_runs import invoke, model
from tests.support.cli.cli_server import served_here
from tests.support.providers.loopback import LoopbackServer
from tests.support.skills.folders import write_skill


@pytest.fixture(autouse=True)
def skill(folder: Path) -> None:
    """A folder with one skill in the current directory."""
    write_skill(folder / "skills/forms", body="Fill all fields.")


def assert_loaded(server: LoopbackServer) -> None:
    """The skill is in the instructions of the first request, and its text in the second."""
    first, second = (json.dumps(request["messages"]) for request in server.requests)
    assert "- forms: Task of forms." in first
    assert "Fill all fields." not in first
    assert "Fill all fields." in second


LOAD = call("load_skill", name="forms")


def test_run_gives_the_agent_skills() -> None:
    """The skills are added for one command: another command in this process starts without them."""
    for _ in range(2):
        with model(LOAD, "Done.") as server:
            result = invoke("run", "agents:triage", "Go", "--skills", "skills", server=server)
        assert (result.exit_code, result.stdout) == (0, "Done.\n"), result.stderr
        assert_loaded(server)
    with model("Done.") as server:
        invoke("run", "agents:triage", "Go", server=server)
    assert "forms" not in str(server.requests)


def test_chat_gives_the_agent_skills() -> None:
    """The skills stay for the whole chat."""
    with model(LOAD, "Done.") as server:
        assert invoke("chat", "agents:triage", "--skills", "skills/forms", server=server, stdin="Go\n").exit_code == 0
    assert_loaded(server)


def test_serve_gives_its_first_agent_skills() -> None:
    """The skills stay until the service stops."""
    body: dict[str, Any] = {"model": "Triage", "messages": [{"role": "user", "content": "Go"}]}
    with model(LOAD, "Done.") as server:
        command = ("serve", "agents:triage", "--skills", "skills")
        served_here(*command, ask=lambda page: page.post("v1/chat/completions", json=body), server=server)
    assert_loaded(server)


def test_a_mistake_is_a_usage_error_before_the_first_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without skills, and a missing extra. A skill that is left out is a note."""
    with model() as server:
        result = invoke("run", "agents:triage", "Go", "--skills", "nowhere", server=server)
        assert (result.exit_code, "the folder" in result.stderr) == (2, True)
    write_skill(folder / "skills/empty", "nothing")
    with model("Done.") as server:
        result = invoke("run", "agents:triage", "Go", "--skills", "skills", server=server)
    assert result.exit_code == 0
    assert "empty: left out, because SKILL.md is not a text" in result.stderr
    for name in [name for name in sys.modules if name.startswith("aswarm.skills")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with model() as server:
        result = invoke("run", "agents:triage", "Go", "--skills", "skills", server=server)
    assert (result.exit_code, 'install the extra "skills"' in result.stderr) == (2, True)
