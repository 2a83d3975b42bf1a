"""`aswarm chat`: its options reach the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import invoke, model


def test_a_conversation() -> None:
    """Lines of stdin are user messages, and the next message has the context, the model and the agent."""
    steps = [call("transfer_to_orders"), "Which one?", call("look_up", order_id=7), "It is on its way."]
    with model(*steps) as server:
        lines = "Where is my order?\n7\nexit\n"
        result = invoke("chat", "agents:triage", "-c", "user=Ann", "-m", "tiny", server=server, stdin=lines)
    assert result.exit_code == 0
    assert "Which one?" in result.stdout
    assert "It is on its way." in result.stdout
    assert server.requests[3]["messages"][-1]["content"] == "Order 7 of Ann"
    assert [request["model"] for request in server.requests] == ["tiny"] * 4
    assert all(request["stream"] for request in server.requests)


def test_an_error_of_reading_is_no_error_of_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error is one line with its type, and with the option for its traceback."""

    def read(_: str) -> str:
        raise OSError(5, "Input/output\nerror")

    with model() as server:
        monkeypatch.setattr("builtins.input", read)
        result = invoke("chat", "agents:triage", server=server)
    assert result.exit_code == 1
    assert result.stderr == ("Error: OSError: [Errno 5] Input/output error (--traceback prints the traceback too)\n")


def test_a_saved_conversation(folder: Path) -> None:
    """`--store` continues a conversation of `/save` with its messages, its agent and its context."""
    with model("I am well.", call("look_up", order_id=7), "It is on its way.") as server:
        first = invoke("chat", "agents:orders", "-c", "user=Ann", server=server, stdin="How are you?\n/save a.sqlite\n")
        assert "2 messages saved. The chat continues in a.sqlite." in first.stdout
        result = invoke("chat", "agents:triage", "--store", "a.sqlite", server=server, stdin="And my order?\n")
    assert "2 messages loaded. The active agent is Orders." in result.stdout
    texts = [message.get("content") for message in server.requests[2]["messages"][1:]]
    assert texts == ["How are you?", "I am well.", "And my order?", None, "Order 7 of Ann"]


def test_an_empty_answer() -> None:
    """The chat shows a note for an empty answer, and a refusal is not empty."""
    with model("", ScriptedAnswer(extra={"refusal": "I will not."})) as server:
        result = invoke("chat", "agents:triage", server=server, stdin="Hi\nHi\n")
    assert result.stdout.count("The answer is empty.") == 1


@pytest.mark.parametrize(("api", "key"), [("auto", "messages"), ("responses", "input")])
def test_options(api: str, key: str) -> None:
    """--no-stream, --base-url, --api and --max-turns reach the requests of a chat."""
    with model(call("look_up", order_id=7)) as server:
        options = ["--no-stream", "--max-turns", "1", "--base-url", server.base_url, "--api", api]
        result = invoke("chat", "agents:orders", "-c", "user=Ann", *options, stdin="?\n")
    assert result.exit_code == 0
    assert len(server.requests) == 1
    assert not server.requests[0].get("stream")
    assert key in server.requests[0]
