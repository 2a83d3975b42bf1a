"""`aswarm run` and `aswarm chat` with `--store FILE --conversation ID`: each step of the conversation is kept."""

from __future__ import annotations

import builtins
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from aswarm.testing import ScriptedAnswer, call
from tests.support.cli.cli_runs import AGENTS, invoke, model, refused, stored, texts
from tests.support.repl.chats import TypedLines, interrupt_when

CLERK = '''
from aswarm import tool

@tool(approve=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"

clerk = Agent(name="Clerk", functions=[refund])
'''
KEPT = ("--store", "chats.sqlite", "--conversation", "ann")


@pytest.fixture(autouse=True)
def clerk(project: Path) -> None:
    """An agent whose function needs an approval."""
    (project / "agents.py").write_text(AGENTS + CLERK, encoding="utf-8")


# --- run ---


@pytest.mark.parametrize("option", ["--stream", "--no-stream"])
def test_a_question_after_another(option: str) -> None:
    """The second question continues with the agent, the context and the messages of the first question."""
    with model(call("transfer_to_orders"), "Which one?", call("look_up", order_id=7), "On its way.") as server:
        first = invoke("run", option, "agents:triage", "Where?", *KEPT, "-c", "user=Ann", server=server)
        second = invoke("run", option, "agents:triage", "7", *KEPT, server=server)
    assert (first.exit_code, first.stdout, second.exit_code, second.stdout) == (0, "Which one?\n", 0, "On its way.\n")
    assert texts()[4:] == ["7", None, "Order 7 of Ann", "On its way."]
    assert [bool(request.get("stream")) for request in server.requests] == [option == "--stream"] * 4


@pytest.mark.parametrize("option", ["--stream", "--no-stream"])
def test_a_failure_leaves_the_question_in_the_store(option: str) -> None:
    """A failed run keeps the question, and `--resume` with true asks the model again."""
    with model(refused("400 Bad Request", "no"), "Hi.") as server:
        failed = invoke("run", option, "agents:orders", "Hello", *KEPT, "--json", server=server)
        assert texts() == ["Hello"]
        again = invoke("run", "agents:orders", *KEPT, "--resume", "-", server=server, stdin="true")
    assert (failed.exit_code, json.loads(failed.stdout.splitlines()[-1])["type"]) == (1, "RunFailed")
    assert (again.exit_code, texts()) == (0, ["Hello", "Hi."])


def test_ctrl_c_in_a_tool() -> None:
    """Ctrl-C in a tool keeps the messages of the run, and the outcome of the call is unknown."""
    with model(ScriptedAnswer("One moment.", [call("stop")])) as server:
        result = invoke("run", "agents:triage", "Hello", *KEPT, "--json", server=server)
    assert (result.exit_code, json.loads(result.stdout.splitlines()[-1])["type"]) == (130, "RunStopped")
    assert "the outcome of these calls is unknown: stop" in result.stderr
    assert texts()[:2] == ["Hello", "One moment."]


# --- chat ---


def test_a_conversation_that_continues() -> None:
    """A second chat continues with the agent, the context and the messages."""
    steps = [call("transfer_to_orders"), "Which one?", call("look_up", order_id=7), "It is on its way."]
    with model(*steps) as server:
        first = invoke("chat", "agents:triage", *KEPT, "-c", "user=Ann", server=server, stdin="Where is my order?\n")
        second = invoke("chat", "agents:triage", *KEPT, server=server, stdin="7\n")
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "loaded" not in first.stdout
    assert "4 messages loaded. The active agent is Orders." in second.stdout
    assert server.requests[3]["messages"][-1]["content"] == "Order 7 of Ann"
    assert (found := stored()) is not None
    assert (found.agent, len(found.messages), found.stop) == ("Orders", 8, "answer")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_the_context_of_the_command_in_a_stored_conversation(command: str) -> None:
    """The next run sets its variables, and keeps the other variables. Later commands find them."""
    with model("Hi.", "And?", "Yes.") as server:
        invoke("run", "agents:triage", "Hello", *KEPT, "-c", "user=Ann", "-c", "tier=gold", server=server)
        for text, context in (("Me", ["-c", "user=Bob"]), ("Still", [])):
            given = [text] if command == "run" else []
            result = invoke(
                command, "agents:triage", *given, *KEPT, *context, server=server, stdin=f"/context\n{text}\n"
            )
            assert result.exit_code == 0
            assert stored().context_variables == {"user": "Bob", "tier": "gold"}
            assert command == "run" or "user = 'Bob'" in result.stdout


def test_a_call_that_waits_for_the_next_command() -> None:
    """A second chat asks again about a call that waits, and keeps its result."""
    with model(call("refund", call_id="c1", order=7), "Refunded.") as server:
        first = invoke("chat", "agents:clerk", *KEPT, server=server, stdin="Refund 7\n")
        second = invoke("chat", "agents:clerk", *KEPT, server=server, stdin="/resume\ny\n")
    assert "refund" in first.stdout
    assert "Not run yet: refund." in second.stdout and "Refunded." in second.stdout
    assert texts()[2:] == ["refunded 7", "Refunded."]


def test_a_message_whose_run_failed_at_once() -> None:
    """The message of a run that failed at once is removed, and `/resume` sends it again."""
    with model("Hi.", refused("400 Bad Request", "no"), "Now.") as server:
        result = invoke("chat", "agents:orders", *KEPT, server=server, stdin="Hi\nBad\n/history\n")
        assert "CompletionError" in result.stdout
        assert texts() == ["Hi", "Hi."]
    with model(refused("400 Bad Request", "no"), "Now.") as server:
        invoke("chat", "agents:orders", *KEPT, server=server, stdin="Bad\n/resume\n")
    assert texts() == ["Hi", "Hi.", "Bad", "Now."]


def test_a_history_that_is_reset() -> None:
    """`/reset` removes the messages from the store, and keeps the first context."""
    with model("Hi.") as server:
        invoke("chat", "agents:orders", *KEPT, "-c", "user=Ann", server=server, stdin="Hi\n/reset\n")
    assert (found := stored()) is not None
    assert (found.messages, found.context_variables) == ([], {"user": "Ann"})


def test_a_copy_and_a_return_to_it() -> None:
    """`/save` copies the conversation to another id, and `/load` continues another conversation."""
    lines = "Hi\n/save copy\nMore\n/load copy\nOther\n/load nowhere\n/save copy\n"
    with model("Hi.", "Much more.", "Another.") as server:
        result = invoke("chat", "agents:orders", *KEPT, "-c", "user=Ann", server=server, stdin=lines)
    assert "2 messages saved as 'copy'. The chat continues as 'ann'." in result.stdout
    assert "2 messages loaded. The active agent is Orders." in result.stdout
    assert "chats.sqlite has no conversation with the id 'nowhere'." in result.stdout
    assert "This conversation is already in chats.sqlite as 'copy'" in result.stdout
    assert texts() == ["Hi", "Hi.", "More", "Much more."]
    assert texts(conversation_id="copy") == ["Hi", "Hi.", "Other", "Another."]
    assert (found := stored(conversation_id="copy")) is not None
    assert found.context_variables == {"user": "Ann"}
    assert not Path("copy").exists()


def test_a_copy_replaces_another_conversation_after_a_question() -> None:
    """A copy replaces an earlier state without a question, and another conversation after yes."""
    with model("Hi.", "More.", "Ho.") as server:
        first = "Hi\n/save copy\nMore\n/save copy\n/reset\n/save copy\nHo\n/save copy\nno\n/save copy\n"
        result = invoke("chat", "agents:orders", *KEPT, server=server, stdin=first)
        assert result.stdout.count("copy has another conversation (4 messages). Replace it?") == 2
        assert "Not saved." in result.stdout
        assert texts(conversation_id="copy") == ["Hi", "Hi.", "More", "More."]
        invoke("chat", "agents:orders", *KEPT, server=server, stdin="/save copy\nyes\n")
    assert texts(conversation_id="copy") == ["Ho", "Ho."]


def test_an_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chat shows an error of the store, and continues."""

    def damage() -> str:
        with closing(sqlite3.connect("chats.sqlite", isolation_level=None)) as other:
            other.execute("DROP TABLE aswarm_message")
        return "Ho"

    monkeypatch.setattr(builtins, "input", TypedLines(["Hi", damage, "/exit"]))
    with model("Hi.", "Ho.") as server:
        result = invoke("chat", "agents:orders", *KEPT, server=server)
    assert result.exit_code == 0
    assert "no such table: aswarm_message" in result.stdout
    assert len(server.requests) == 1


def test_an_answer_that_is_stopped() -> None:
    """The store keeps the received part of a stopped answer, with a mark. `/resume` asks again without it."""
    with model(ScriptedAnswer("Hello, " * 50, pause=0.05), "Next.") as server:
        interrupt_when(lambda: server.requests)
        result = invoke("chat", "agents:orders", *KEPT, server=server, stdin="Hi\n")
        assert "Stopped." in result.stdout
        assert texts()[-1].endswith("[stopped by the user]")
        resumed = invoke("chat", "agents:orders", *KEPT, server=server, stdin="/resume\n/resume\n")
    assert "Orders: Next." in resumed.stdout
    assert "There is nothing to resume." in resumed.stdout
    assert texts() == ["Hi", "Next."]
    assert [message["content"] for message in server.requests[1]["messages"][1:]] == ["Hi"]
