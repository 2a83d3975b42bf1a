"""`aswarm chat`: its options reach the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import AGENTS, invoke, model, refused


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


def test_an_error_of_reading_is_not_one_of_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an error of writing says that stdout cannot be written."""

    def read(_: str) -> str:
        raise OSError(5, "Input/output error")

    with model() as server:
        monkeypatch.setattr("aswarm.repl._plain.PlainReader.read", read)
        result = invoke("chat", "agents:triage", server=server)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: OSError: [Errno 5] Input/output error")


def test_a_saved_conversation(folder: Path) -> None:
    """--load continues it: what was said, the agent and the context."""
    with model("I am well.", call("look_up", order_id=7), "It is on its way.") as server:
        first = invoke("chat", "agents:orders", "-c", "user=Ann", server=server, stdin="How are you?\n/save a.sqlite\n")
        assert "2 messages saved." in first.stdout
        result = invoke("chat", "agents:triage", "--load", "a.sqlite", server=server, stdin="And my order?\n")
    assert "2 messages loaded. The active agent is Orders." in result.stdout
    texts = [message.get("content") for message in server.requests[2]["messages"][1:]]
    assert texts == ["How are you?", "I am well.", "And my order?", None, "Order 7 of Ann"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("nowhere.sqlite", "nowhere.sqlite: No such file"), ("agents.py", "the store agents.py cannot be opened")],
)
def test_a_conversation_that_cannot_be_loaded(name: str, said: str) -> None:
    """Exit code 2, before the first prompt."""
    result = invoke("chat", "agents:triage", "--load", name, "--base-url", "http://127.0.0.1:9/v1")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: --load: {said}")


def test_an_empty_answer() -> None:
    """The chat says so, where otherwise nothing would be seen; a refusal is no empty answer."""
    with model("", ScriptedAnswer(extra={"refusal": "I will not."})) as server:
        result = invoke("chat", "agents:triage", server=server, stdin="Hi\nHi\n")
    assert result.stdout.count("The answer is empty.") == 1


@pytest.mark.parametrize(("api", "key"), [("auto", "messages"), ("responses", "input")])
def test_options(api: str, key: str) -> None:
    """--no-stream, --base-url, --api and --max-turns."""
    with model(call("look_up", order_id=7)) as server:
        options = ["--no-stream", "--max-turns", "1", "--base-url", server.base_url, "--api", api]
        result = invoke("chat", "agents:orders", "-c", "user=Ann", *options, stdin="?\n")
    assert result.exit_code == 0
    assert len(server.requests) == 1
    assert not server.requests[0].get("stream")
    assert key in server.requests[0]


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
