"""`/save` and `/load` in a chat in memory: a conversation in a file, which is a store with one conversation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent
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
    """`/load` restores messages, agent and context, and keeps variables that are not JSON."""
    sales = Agent(name="Sales")

    def to_sales() -> Agent:
        """Hand over."""
        return sales

    agent = Agent(name="Bot", functions=[to_sales])
    chat, path = PlainChat(loop, monkeypatch, capsys), tmp_path / "my chat.sqlite"
    model = ScriptedModel([call("to_sales"), "Hello!"])
    out = chat(["Hi", f"/save {path}"], agent, model, context_variables={"lock": object(), "n": 1})
    assert "4 messages saved, without the context variables that are not JSON: lock." in out.splitlines()

    model = ScriptedModel(["Still here."])
    lock = object()
    out = chat([f"/load {path}", "And?", "/context"], agent, model, context_variables={"lock": lock, "n": 2})
    assert "4 messages loaded. The active agent is Sales." in out.splitlines()
    assert "Sales: Still here." in out.splitlines()
    assert out.splitlines()[-3:-1] == [f"lock = {lock!r}", "n = 1"]
    assert [role for role, _ in sent(model, 0)] == ["user", "assistant", "tool", "assistant", "user"]
    assert len(saved(path)) == 4


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


def test_only_conversations_are_overwritten(chat, tmp_path):
    """A conversation can be saved again, and any other file stays unchanged."""
    path, other = tmp_path / "chat.sqlite", tmp_path / "agents.py"
    other.write_text("import aswarm")
    lines = [f"/save {path}", "Hi", *[f"/save {path}"] * 2, f"/save {other}"]
    out = chat(lines, BOT, ScriptedModel(["Hello!"])).splitlines()
    assert out.count("There are no messages to save.") == 1
    assert out.count("2 messages saved.") == 2
    assert any(line.startswith(f"ConfigurationError: the store {other} cannot be opened") for line in out)
    assert other.read_text() == "import aswarm"
    assert sorted(place.name for place in tmp_path.iterdir()) == ["agents.py", "chat.sqlite"]


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

    lines: list[Line] = ["Hi", save, "", save, "no", save, "/exit", look, " Yes ", "Ho", save]
    model = ScriptedModel(["Hello!", "Hey!"])
    out = chat(lines, BOT, model).splitlines()
    question = f"{path} has another conversation (1 message). Replace it? Type yes, or anything else to keep it."
    assert out.count(question) == 4
    assert out.count("Not saved.") == 3
    assert kept == [["Other"]]
    assert [line for line in out if line.endswith("messages saved.")] == ["2 messages saved.", "4 messages saved."]
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


def test_values_that_json_would_change_are_left_out(chat, tmp_path):
    """Context variables that JSON would change are not saved, and a line names them."""
    path = tmp_path / "chat.sqlite"
    context = {"a": [1, {"b": None}], "t": (1, 2), "k": {1: 2}, "s": {1}, 7: 7}
    out = chat(["Hi", f"/save {path}"], BOT, ScriptedModel(["Hello!"]), context_variables=context)
    assert "2 messages saved, without the context variables that are not JSON: t, k, s, 7." in out.splitlines()
    assert (kept := stored(str(path), "conversation")) is not None
    assert kept.context_variables == {"a": [1, {"b": None}]}
