"""`/save` and `/load` in a chat in memory open a file as the store of the chat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, Result
from aswarm.conversations import Change, SQLiteStore
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.cli.cli_runs import stored, texts
from tests.support.repl.chats import ANSWER, ASKING, LOOPS, USER, Line, PlainChat, sent

BOT = Agent(name="Bot")


@pytest.fixture
def chat(monkeypatch, capsys) -> PlainChat:
    return PlainChat("blocking", monkeypatch, capsys)


def write(path: Path, messages: list[dict[str, Any]], agent: str = "Bot") -> None:
    """Write a conversation to the file."""

    async def put() -> None:
        async with SQLiteStore(path) as store:
            await store.write("conversation", Change("", "1", 0, messages, agent, {}))

    anyio.run(put)


def saved(path: Path) -> list[Any]:
    """Return the contents of the messages in the file."""
    return texts(str(path), "conversation")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_saved_conversation_is_continued(loop, monkeypatch, capsys, tmp_path):
    """`/load` restores messages, agent and context, and the next messages are written to the file."""
    sales = Agent(name="Sales")

    def to_sales() -> Agent:
        """Hand over."""
        return sales

    agent = Agent(name="Bot", functions=[to_sales])
    chat, path = PlainChat(loop, monkeypatch, capsys), tmp_path / "my chat.sqlite"
    model = ScriptedModel([call("to_sales"), "Hello!"])
    out = chat(["Hi", f"/save {path}"], agent, model, context_variables={"n": 1})
    assert f"4 messages saved. The chat continues in {path}." in out.splitlines()

    model = ScriptedModel(["Still here."])
    out = chat([f"/load {path}", "And?", "/context"], agent, model, context_variables={"n": 2})
    assert "4 messages loaded. The active agent is Sales." in out.splitlines()
    assert "Sales: Still here." in out.splitlines()
    assert out.splitlines()[-2] == "n = 1"
    assert [role for role, _ in sent(model, 0)] == ["user", "assistant", "tool", "assistant", "user"]
    assert len(saved(path)) == 6


def test_a_conversation_over_the_responses_api_is_saved_with_its_items(chat, tmp_path):
    """The items of a loaded conversation are sent back unchanged."""
    path = tmp_path / "chat.sqlite"
    answer = ScriptedAnswer("Hello!", extra={"reasoning_content": "Hm"})
    chat(["Hi", f"/save {path}"], BOT, ScriptedModel([answer], api="responses"))
    model = ScriptedModel(["Still here."], api="responses")
    assert "Bot: Still here." in chat([f"/load {path}", "And?"], BOT, model).splitlines()
    reasoning, message = model.requests[0].body["input"][1:3]
    assert (reasoning["type"], message["type"], "Hm" in str(reasoning)) == ("reasoning", "message", True)
    assert (kept := stored(str(path), "conversation")) is not None
    assert reasoning in next(value for value in kept.messages[1].values() if isinstance(value, list))


def test_calls_in_a_file_are_not_run_by_another_message(chat, tmp_path):
    """Loading a file names the open calls, and only `/resume` runs them."""
    path = tmp_path / "chat.sqlite"
    write(path, [USER, ASKING])
    ran: list[int] = []

    def look_up() -> str:
        """Look up."""
        ran.append(1)
        return "found"

    agent = Agent(name="Bot", functions=[look_up])
    out = chat([f"/load {path}", "And?"], agent, ScriptedModel(["Well."]))
    assert "Not run yet: look_up. /resume runs these calls" in out
    assert not ran
    write(path := tmp_path / "again.sqlite", [USER, ASKING])
    chat([f"/load {path}", "/resume"], agent, ScriptedModel(["Found."]))
    assert ran == [1]


def test_an_unknown_agent_is_named(chat, tmp_path):
    """The first agent continues the conversation."""
    write(tmp_path / "chat.sqlite", [USER, ANSWER], "Gone")
    out = chat([f"/load {tmp_path / 'chat.sqlite'}"], BOT, None)
    assert "There is no agent 'Gone' here. 2 messages loaded. The active agent is Bot." in out


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("nowhere.sqlite", "nowhere.sqlite: No such file or directory"),
        (os.devnull, f"{os.devnull}: not a regular file"),
        ("a\0b", "a␀b: "),
        ("~no such user/x", "~no such user/x: Could not determine home directory."),
        ("x.png", "the store x.png cannot be opened"),
        ("empty.sqlite", "empty.sqlite: the store has no conversation"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_line(loop, tmp_path, monkeypatch, capsys, path, error):
    """A file that cannot be read is a line, makes no file, and keeps the conversation."""
    monkeypatch.chdir(tmp_path)
    Path("x.png").write_bytes(b"\x89PNG" * 300)
    Path("empty.sqlite").touch()
    chat = PlainChat(loop, monkeypatch, capsys)
    out = chat(["Hi", f"/load {path}", "/history"], BOT, ScriptedModel(["Hello!"])).splitlines()
    assert sum(error in line for line in out) == 1
    assert out[-3:-1] == ["User: Hi", "Bot: Hello!"]
    assert {place.name for place in tmp_path.iterdir()} == {"x.png", "empty.sqlite"}


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_chat_continues_in_the_file_that_it_was_saved_to(chat, tmp_path):
    """After `/save FILE`, each run is written to the file, and `/save` makes copies in it."""
    path = tmp_path / "chat.sqlite"
    lines = [f"/save {path}", "Hi", *[f"/save {path}"] * 2, "And?", "/save copy", "/load nowhere"]
    out = chat(lines, BOT, ScriptedModel(["Hello!", "Yes?"])).splitlines()
    assert out.count("There are no messages to save.") == 1
    assert out.count(f"2 messages saved. The chat continues in {path}.") == 1
    assert f"This conversation is already in {path} as 'conversation', and each run is saved there." in out
    assert "4 messages saved as 'copy'. The chat continues as 'conversation'." in out
    assert f"{path} has no conversation with the id 'nowhere'." in out
    assert saved(path) == texts(str(path), "copy") == ["Hi", "Hello!", "And?", "Yes?"]


def test_another_file_stays_unchanged(chat, tmp_path):
    """`/save` refuses a file that is not a store, and the chat stays in memory."""
    other = tmp_path / "agents.py"
    other.write_text("import aswarm")
    out = chat(["Hi", f"/save {other}", "And?"], BOT, ScriptedModel(["Hello!", "Yes?"])).splitlines()
    assert any(line.startswith(f"ConfigurationError: the store {other} cannot be opened") for line in out)
    assert "Bot: Yes?" in out
    assert other.read_text() == "import aswarm"


@pytest.mark.parametrize("loop", LOOPS)
def test_saving_over_another_conversation_asks(loop, monkeypatch, capsys, tmp_path):
    """Only yes replaces another conversation, and any other line is no message."""
    chat, path = PlainChat(loop, monkeypatch, capsys), tmp_path / "chat.sqlite"
    write(path, [{"role": "user", "content": "Other"}])
    save = f"/save {path}"
    kept: list[Any] = []

    def look() -> str:
        kept.append(saved(path))
        return save

    lines: list[Line] = ["Hi", save, "", save, "no", save, "/exit", look, " Yes ", "Ho"]
    model = ScriptedModel(["Hello!", "Hey!"])
    out = chat(lines, BOT, model).splitlines()
    question = f"{path} has another conversation (1 message). Replace it? Type yes, or anything else to keep it."
    assert out.count(question) == 4
    assert out.count("Not saved.") == 3
    assert kept == [["Other"]]
    assert out.count(f"2 messages saved. The chat continues in {path}.") == 1
    assert saved(path) == ["Hi", "Hello!", "Ho", "Hey!"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EOFError()])
def test_ctrl_c_at_the_question_keeps_the_file(chat, tmp_path, error):
    """Ctrl-C at the question saves nothing, and the next line is a message."""
    path = tmp_path / "chat.sqlite"
    write(path, [{"role": "user", "content": "Other"}])
    model = ScriptedModel(["Hello!", "Sure."][: 1 if isinstance(error, EOFError) else 2])
    out = chat(["Hi", f"/save {path}", error, "yes"], BOT, model)
    assert "Not saved." in out.splitlines()
    assert saved(path) == ["Other"]


@pytest.mark.parametrize("name", ["nowhere/chat.sqlite", "a\0b"])
def test_a_file_that_cannot_be_written_is_a_line(chat, tmp_path, monkeypatch, name):
    """A file that cannot be written is an error on one line, and the chat continues."""
    monkeypatch.chdir(tmp_path)
    out = chat(["Hi", f"/save {name}", "/usage"], BOT, ScriptedModel(["Hello!"])).splitlines()
    assert sum(line.startswith("ConfigurationError: ") for line in out) == 1


@pytest.mark.parametrize("where", ["start", "run"])
def test_context_variables_that_are_not_json_cannot_be_saved(chat, tmp_path, where):
    """`/save` names them, and the chat stays in memory."""

    def change(context_variables: dict) -> Result:
        """Add a variable."""
        return Result(context_variables={"s": {1}})

    context = {"s": {1}} if where == "start" else {}
    agent = Agent(name="Bot", functions=[change])
    model = ScriptedModel([call("change"), "Hello!", "Yes?"])
    out = chat(
        ["Hi", f"/save {tmp_path / 'chat.sqlite'}", "And?"], agent, model, context_variables=context
    ).splitlines()
    [error] = [line for line in out if line.startswith("ConfigurationError: ")]
    assert "s is {1}" in error
    assert "Bot: Yes?" in out
