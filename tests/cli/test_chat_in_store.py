"""`aswarm chat --store FILE --conversation ID`: a conversation that is kept as it happens."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm.conversations import SQLiteStore, Stored
from aswarm.testing import ScriptedAnswer, call, check_history
from tests.support.cli.cli_runs import AGENTS, invoke, model, refused
from tests.support.repl.chats import Line, TypedLines, interrupt_when

APPROVED = """\
from aswarm import Agent, tool

@tool(approve=True)
async def refund(order: int) -> str:
    '''Refund an order.'''
    return f"refunded {order}"

clerk = Agent(name="Clerk", functions=[refund])
"""


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    """Modules `agents` and `clerks` in the current directory."""
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")
    (folder / "clerks.py").write_text(APPROVED, encoding="utf-8")


KEPT = ("--store", "chats.sqlite", "--conversation", "ann")


def stored(conversation_id: str = "ann") -> Stored:
    """What the store has."""

    async def load() -> Stored | None:
        async with SQLiteStore("chats.sqlite") as store:
            return await store.load(conversation_id)

    found = anyio.run(load)
    assert found is not None
    check_history(found.messages, allow_open=True)
    return found


def texts(messages: Iterable[dict[str, Any]]) -> list[Any]:
    """Their contents."""
    return [message.get("content") for message in messages]


def test_a_conversation_that_continues() -> None:
    """With its agent, its context and its messages; the second command says what it has found."""
    steps = [call("transfer_to_orders"), "Which one?", call("look_up", order_id=7), "It is on its way."]
    with model(*steps) as server:
        first = invoke("chat", "agents:triage", *KEPT, "-c", "user=Ann", server=server, stdin="Where is my order?\n")
        second = invoke("chat", "agents:triage", *KEPT, server=server, stdin="7\n")
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "loaded" not in first.stdout
    assert "4 messages loaded. The active agent is Orders." in second.stdout
    assert server.requests[3]["messages"][-1]["content"] == "Order 7 of Ann"
    assert (stored().agent, len(stored().messages), stored().stop) == ("Orders", 8, "answer")


def test_a_call_that_waits_for_the_next_command() -> None:
    """The question is asked again, and the answer is kept."""
    with model(call("refund", call_id="c1", order=7), "Refunded.") as server:
        first = invoke("chat", "clerks:clerk", *KEPT, server=server, stdin="Refund 7\n")
        second = invoke("chat", "clerks:clerk", *KEPT, server=server, stdin="/resume\ny\n")
    assert "refund" in first.stdout
    assert "Not run yet: refund." in second.stdout and "Refunded." in second.stdout
    assert texts(stored().messages)[2:] == ["refunded 7", "Refunded."]


def test_a_message_whose_run_failed_at_once() -> None:
    """It is taken back, and `/resume` sends it again."""
    with model("Hi.", refused("400 Bad Request", "no"), "Now.") as server:
        result = invoke("chat", "agents:orders", *KEPT, server=server, stdin="Hi\nBad\n/history\n")
        assert "CompletionError" in result.stdout
        assert texts(stored().messages) == ["Hi", "Hi."]
    with model(refused("400 Bad Request", "no"), "Now.") as server:
        invoke("chat", "agents:orders", *KEPT, server=server, stdin="Bad\n/resume\n")
    assert texts(stored().messages) == ["Hi", "Hi.", "Bad", "Now."]


def test_a_history_that_is_reset() -> None:
    """The store has what the chat has."""
    with model("Hi.") as server:
        invoke("chat", "agents:orders", *KEPT, "-c", "user=Ann", server=server, stdin="Hi\n/reset\n")
    assert (stored().messages, stored().context_variables) == ([], {"user": "Ann"})


def test_a_copy_and_a_return_to_it() -> None:
    """`/save` copies to another id, and the chat continues under its own; `/load` continues under the other one."""
    lines = "Hi\n/save copy\nMore\n/load copy\nOther\n/load nowhere\n/save copy\n"
    with model("Hi.", "Much more.", "Another.") as server:
        result = invoke("chat", "agents:orders", *KEPT, "-c", "user=Ann", server=server, stdin=lines)
    assert "2 messages saved as 'copy'. The conversation continues as 'ann'." in result.stdout
    assert "2 messages loaded. The active agent is Orders." in result.stdout
    assert "The store has no conversation 'nowhere'." in result.stdout
    assert "This conversation is already in the store as 'copy'" in result.stdout
    assert texts(stored("ann").messages) == ["Hi", "Hi.", "More", "Much more."]
    assert texts(stored("copy").messages) == ["Hi", "Hi.", "Other", "Another."]
    assert stored("copy").context_variables == {"user": "Ann"}
    assert not Path("copy").exists()


def test_a_copy_replaces_another_conversation_only_if_the_user_says_so() -> None:
    """An earlier state of the conversation is replaced without a question."""
    with model("Hi.", "More.", "Ho.") as server:
        first = "Hi\n/save copy\nMore\n/save copy\n/reset\n/save copy\nHo\n/save copy\nno\n/save copy\n"
        result = invoke("chat", "agents:orders", *KEPT, server=server, stdin=first)
        assert result.stdout.count("copy has another conversation (4 messages). Replace it?") == 2
        assert "Not saved." in result.stdout
        assert texts(stored("copy").messages) == ["Hi", "Hi.", "More", "More."]
        invoke("chat", "agents:orders", *KEPT, server=server, stdin="/save copy\nyes\n")
    assert texts(stored("copy").messages) == ["Ho", "Ho."]


def test_a_save_or_load_without_an_id() -> None:
    """A line says what is missing; a conversation without messages is not copied, and the help names both meanings."""
    with model() as server:
        result = invoke("chat", "agents:orders", *KEPT, server=server, stdin="/save\n/load\n/save copy\n/help\n")
    assert "/save needs the id of a conversation." in result.stdout
    assert "/load needs the id of a conversation." in result.stdout
    assert "There are no messages to save." in result.stdout
    assert "with --store, a copy under this id" in result.stdout


def test_an_answer_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of it is kept, with its mark."""
    with model(ScriptedAnswer("Hello, " * 50, pause=0.05), "Next.") as server:
        interrupt_when(lambda: server.requests)
        result = invoke("chat", "agents:orders", *KEPT, server=server, stdin="Hi\n")
    assert "Stopped." in result.stdout
    assert stored().messages[-1]["content"].endswith("[stopped by the user]")


def test_the_loop_reads_lines_as_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the prompt twice leaves; nothing is lost."""
    lines: list[Line] = ["Hi", KeyboardInterrupt(), KeyboardInterrupt()]
    monkeypatch.setattr(builtins, "input", TypedLines(lines))
    with model("Hi.") as server:
        result = invoke("chat", "agents:orders", *KEPT, server=server)
    assert "To leave, press Ctrl-C again" in result.stdout
    assert texts(stored().messages) == ["Hi", "Hi."]


def test_an_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chat shows it, and continues until the user leaves."""

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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--conversation", "x"], "--conversation needs --store"),
        ([*KEPT, "--load", "a.sqlite"], "use one of them"),
        (["--store", "agents.py", "--conversation", "x"], "the store agents.py cannot be opened"),
        (["--store", "postgresql://127.0.0.1:1/x", "--conversation", "x"], "the store cannot be opened"),
        (["--store", "chats.sqlite", "--conversation", ""], "the id of a conversation"),
    ],
)
def test_options_that_do_not_fit(options: list[str], said: str) -> None:
    """Exit code 2, and a line that says what is wrong."""
    result = invoke("chat", "agents:triage", "--base-url", "http://127.0.0.1:9/v1", *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_without_a_key() -> None:
    """The missing key is reported before the first message."""
    result = invoke("chat", "agents:triage", *KEPT, stdin="Hello\n")
    assert result.exit_code == 2
    assert "OPENAI_API_KEY" in result.stderr
