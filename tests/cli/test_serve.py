"""`aswarm serve` and `aswarm demo --serve`: refused options, and real processes."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli.cli_runs import invoke
from tests.support.cli.cli_server import running


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that another program uses is a usage error."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("serve", "agents:triage", "--port", str(port))
    assert result.exit_code == 2
    assert f"cannot listen at 127.0.0.1:{port}: " in result.stderr


@pytest.mark.parametrize("module", [pytest.param("uvicorn", marks=pytest.mark.heavy), "starlette"])
def test_the_error_names_the_missing_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Without uvicorn or Starlette, the error names the package and the extra."""
    for name in [name for name in sys.modules if name == module or name.startswith((f"{module}.", "aswarm.serve"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    result = invoke("serve", "agents:triage")
    assert result.exit_code == 2
    assert f'serving needs the package {module}: install the extra "serve"' in result.stderr


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0 and nothing more"])
def test_a_store_that_is_no_database_is_refused(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Another file in place of a database is an error before an address is printed, and stays unchanged."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    Path("notes.txt").write_bytes(content)
    result = invoke("serve", "agents:triage", "--port", "0", "--store", "notes.txt")
    assert result.exit_code == 2
    assert "notes.txt" in result.stderr
    assert "http://" not in result.stderr
    assert Path("notes.txt").read_bytes() == content


@pytest.mark.processes
@pytest.mark.slow
def test_a_served_agent_needs_its_token(folder: Path) -> None:
    """With `--token` all wires need it, and the file of the conversations is private."""
    command = ["serve", "agents:triage", "--token", "secret", "--store", "chats.sqlite"]
    with running(*command) as (_, url), httpx.Client(base_url=url, trust_env=False, timeout=30) as browser:
        assert browser.get("/v1/models").status_code == 401
        models = browser.get("/v1/models", headers={"authorization": "Bearer secret"}).json()
        assert [model["id"] for model in models["data"]] == ["Triage"]
        assert (folder / "chats.sqlite").stat().st_mode & 0o777 == 0o600


def test_the_page_shows_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--model` is the model of all agents."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    served: list[Any] = []
    monkeypatch.setattr("aswarm.cli.commands.serve.serve_until_stopped", lambda *args, **_: served.extend(args))
    assert invoke("serve", "agents:triage", "--model", "small").exit_code == 0
    assert served[1][0].model == "small"
