"""`aswarm serve` and `aswarm demo --serve`: what is refused, and a real process that is ended."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.cli.cli_runs import AGENTS, invoke, model
from tests.support.cli.cli_server import running


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    """A module `agents` in the current directory."""
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")


@pytest.mark.heavy
def test_other_machines_need_a_token() -> None:
    """A host that they reach is refused without one, before anything is served."""
    result = invoke("serve", "agents:triage", "--host", "0.0.0.0")
    assert result.exit_code == 2
    assert "ASWARM_TOKEN" in result.stderr


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says which."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = invoke("serve", "agents:triage", "--port", str(port))
    assert result.exit_code == 2
    assert f"cannot listen at 127.0.0.1:{port}: " in result.stderr


def test_a_host_that_cannot_be_resolved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says which."""
    result = invoke("serve", "agents:triage", "--host", "no host", "--token", "t")
    assert result.exit_code == 2
    assert "no host" in result.stderr


@pytest.mark.heavy
def test_agents_of_one_name_are_refused() -> None:
    """Clients name agents, so each needs its own name."""
    Path("other.py").write_text(AGENTS, encoding="utf-8")
    result = invoke("serve", "agents:triage", "other:triage")
    assert result.exit_code == 2
    assert "its own name" in result.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("module", ["uvicorn", "starlette"])
def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Without uvicorn or Starlette, the error says what to install."""
    for name in [name for name in sys.modules if name == module or name.startswith((f"{module}.", "aswarm.serve"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    result = invoke("serve", "agents:triage")
    assert result.exit_code == 2
    assert f'serving needs the package {module}: install the extra "serve"' in result.stderr


@pytest.mark.heavy
def test_a_missing_key_is_reported_before_anything_is_served() -> None:
    """As in the other commands that ask a model."""
    result = invoke("serve", "agents:triage", "--port", "0")
    assert result.exit_code == 2
    assert "there is no API key: set OPENAI_API_KEY" in result.stderr
    assert "http://127.0.0.1" not in result.stderr


@pytest.mark.heavy
def test_an_address_of_the_model_that_is_no_url_is_refused() -> None:
    """As in every other command."""
    result = invoke("serve", "agents:triage", "--base-url", "localhost:8080")
    assert result.exit_code == 2
    assert "expected an address that starts with http:// or https://" in result.stderr


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0 and then nothing of it"])
def test_a_store_that_is_no_database_is_refused(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """One line with the file, before an address is printed; the file stays as it is."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    Path("notes.txt").write_bytes(content)
    result = invoke("serve", "agents:triage", "--port", "0", "--store", "notes.txt")
    assert result.exit_code == 2
    assert "notes.txt" in result.stderr
    assert "http://" not in result.stderr
    assert Path("notes.txt").read_bytes() == content


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.processes
def test_the_demo_is_served_until_it_is_interrupted() -> None:
    """The scripted agents answer over HTTP without a key; after the script they say so; Ctrl-C is exit code 130."""
    with (
        running("demo", "--serve") as (process, url),
        httpx.Client(base_url=url, trust_env=False, timeout=30) as browser,
    ):
        texts = []
        for text in ("My lamp is broken.", "And now?"):
            answer = browser.post("/conversations/1/runs", json={"text": text}, headers={"accept": "text/event-stream"})
            texts.append(answer.text)
        assert "You get 39.90 EUR back" in texts[0]
        assert "is a script, and it ends here" in texts[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130


@pytest.mark.processes
@pytest.mark.slow
def test_a_served_agent_wants_its_token(folder: Path) -> None:
    """With `--token`, all wires want it; the conversations are in the file."""
    command = ["serve", "agents:triage", "--token", "secret", "--store", "chats.sqlite"]
    with running(*command) as (_, url), httpx.Client(base_url=url, trust_env=False, timeout=30) as browser:
        assert browser.get("/v1/models").status_code == 401
        models = browser.get("/v1/models", headers={"authorization": "Bearer secret"}).json()
        assert [model["id"] for model in models["data"]] == ["Triage"]
        assert (folder / "chats.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.processes
def test_the_model_of_all_agents() -> None:
    """`--model` is the model of every agent that can be reached, in requests and on the page."""
    with (
        model("Hello.") as server,
        running("serve", "agents:triage", "-m", "another", "--base-url", server.base_url) as (_, url),
        httpx.Client(base_url=url, trust_env=False, timeout=30) as browser,
    ):
        browser.post("/conversations/1/runs", json={"text": "Hi"}, headers={"accept": "text/event-stream"})
        graph = browser.get("/graph").json()["graphs"]["Triage"]
        assert [request["model"] for request in server.requests] == ["another"]
        assert [agent["model"] for agent in graph["agents"]] == ["another", "another"]
