"""`aswarm chat`: its options reach the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runs import AGENTS, invoke, model, refused

from aswarm.testing import call


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    """A module `agents` in the current directory."""
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")


def test_a_conversation() -> None:
    """Lines of stdin are user messages; context, model and handoffs last from one message to the next."""
    steps = [call("transfer_to_orders"), "Which one?", call("look_up", order_id=7), "It is on its way."]
    with model(*steps) as server:
        said = "Where is my order?\n7\nexit\n"
        result = invoke("chat", "agents:triage", "-c", "user=Ann", "-m", "tiny", server=server, stdin=said)
    assert result.exit_code == 0
    assert "Which one?" in result.stdout
    assert "It is on its way." in result.stdout
    assert server.requests[3]["messages"][-1]["content"] == "Order 7 of Ann"
    assert [request["model"] for request in server.requests] == ["tiny"] * 4
    assert all(request["stream"] for request in server.requests)


def test_without_a_key() -> None:
    """The missing key is reported before the first message."""
    result = invoke("chat", "agents:triage", stdin="Hello\n")
    assert result.exit_code == 2
    assert "OPENAI_API_KEY" in result.stderr


def test_options() -> None:
    """--no-stream, --base-url and --max-turns."""
    with model(call("look_up", order_id=7)) as server:
        options = ["--no-stream", "--max-turns", "1", "--base-url", server.base_url]
        result = invoke("chat", "agents:orders", "-c", "user=Ann", *options, stdin="?\n")
    assert result.exit_code == 0
    assert len(server.requests) == 1
    assert not server.requests[0].get("stream")


def test_the_chat_continues_after_a_failure() -> None:
    """The failure of a provider is shown in the conversation; the exit code at its end is 0."""
    with model(refused("400 Bad Request", "no such model"), "Better now.") as server:
        result = invoke("chat", "agents:triage", server=server, stdin="one\ntwo\n")
    assert result.exit_code == 0
    assert "no such model" in result.output
    assert "Better now." in result.stdout


def test_an_agent_that_is_not_there() -> None:
    """The exit code is 2, as in every command."""
    assert invoke("chat", "agents:nobody", stdin="").exit_code == 2
