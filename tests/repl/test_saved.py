"""`/save` and `/load`: a conversation in a file."""

from __future__ import annotations

import json
import os

import pytest
from chats import ANSWER, ASKING, LOOPS, USER, PlainChat, sent

from aswarm import Agent, Response
from aswarm.repl._chat import Chat
from aswarm.repl._plain import PlainDisplay
from aswarm.repl._saved import SavedConversation, from_json, read_conversation, to_json, write_conversation
from aswarm.repl._session import Session, StartRun
from aswarm.testing import Answer, ScriptedModel, call, response

BOT = Agent(name="Bot")


@pytest.fixture
def chat() -> Chat:
    return Chat(Session(Agent(name="Bot"), {"lock": object(), "n": 1}), PlainDisplay(live=False))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_saved_conversation_is_continued(loop, monkeypatch, capsys, tmp_path):
    """Messages, agent and context are restored; variables that are not JSON have the values of the new chat."""
    sales = Agent(name="Sales")

    def to_sales() -> Agent:
        """Hand over."""
        return sales

    agent = Agent(name="Bot", functions=[to_sales])
    chat, path = PlainChat(loop, monkeypatch, capsys), tmp_path / "my chat.json"
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


def test_a_conversation_over_the_responses_api_is_saved_with_its_items(monkeypatch, capsys, tmp_path):
    """Loaded again, the reasoning is sent back as it came."""
    chat, path = PlainChat("blocking", monkeypatch, capsys), tmp_path / "chat.json"
    answer = Answer("Hello!", extra={"reasoning_content": "Hm"})
    chat(["Hi", f"/save {path}"], BOT, ScriptedModel([answer], api="responses"))
    model = ScriptedModel(["Still here."], api="responses")
    assert "Bot: Still here." in chat([f"/load {path}", "And?"], BOT, model).splitlines()
    assert model.requests[0].body["input"][1:3] == response(answer)["output"]


def test_calls_in_a_file_are_not_run_by_another_message(chat, tmp_path, capsys):
    """Loading a file names the open calls, and only `/resume` runs them."""
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"agent": "Bot", "messages": [USER, ASKING]}))
    assert chat.process_line(f"/load {path}") is None
    assert "Not run yet: look_up. /resume runs these calls" in capsys.readouterr().out
    said, resumed = chat.process_line("And?"), chat.process_line("/resume")
    assert (said.resume, resumed.resume) == (False, True)


def test_an_unknown_agent_is_named(chat, tmp_path, capsys):
    """The first agent continues the conversation."""
    path = tmp_path / "chat.json"
    write_conversation(str(path), to_json(SavedConversation("Gone", {}, [USER, ANSWER]))[0])
    chat.process_line(f"/load {path}")
    assert "There is no agent 'Gone' here. 2 messages loaded. The active agent is Bot." in capsys.readouterr().out


def test_a_list_of_messages_is_enough(chat, tmp_path, capsys):
    """Without the name of an agent, the first one continues."""
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": [USER]}))
    chat.process_line(f"/load {path}")
    assert capsys.readouterr().out == "1 message loaded. The active agent is Bot.\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", 'it has no list "messages"'),
        ('{"messages": {}}', 'it has no list "messages"'),
        ('{"messages": [], "agent": 1}', '"agent" must be a string'),
        ('{"messages": [], "context_variables": []}', '"context_variables" an object'),
        ('{"messages": [{"role": "boss"}]}', "messages[0] has the role 'boss'"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "without a tool_call_id"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_file_is_a_line_and_changes_nothing(chat, tmp_path, capsys, text, error):
    """The line says what is wrong; the conversation stays as it was."""
    path = tmp_path / "chat.json"
    path.write_text(text)
    chat.session.end_run(chat.session.send("Hi"), Response(agent=BOT, messages=[ANSWER]), failed=False)
    chat.process_line(f"/load {path}")
    out = capsys.readouterr().out
    assert error in out
    assert len(out.splitlines()) == 1
    assert chat.session.history == [USER, ANSWER]


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("nowhere.json", "nowhere.json: No such file or directory"),
        (os.devnull, f"{os.devnull}: not a regular file"),
        ("a\0b", "a␀b: "),
        ("~no such user/x", "~no such user/x: Could not determine home directory."),
    ],
)
def test_a_file_that_cannot_be_read_is_a_line(chat, tmp_path, monkeypatch, capsys, path, error):
    """Also a device, which may have no end."""
    monkeypatch.chdir(tmp_path)
    chat.process_line(f"/load {path}")
    assert capsys.readouterr().out.startswith(error)


def test_bytes_that_are_not_utf_8_are_a_line(chat, tmp_path, capsys):
    """A file of another kind, such as a picture, is an error on one line."""
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    chat.process_line(f"/load {tmp_path / 'x.png'}")
    assert "can't decode byte" in capsys.readouterr().out


# --- writing ----------------------------------------------------------------------------------------------------------


def test_only_saved_conversations_are_overwritten(chat, tmp_path, capsys):
    """A conversation can be saved again; any other file stays as it is."""
    path, other = tmp_path / "chat.json", tmp_path / "agents.py"
    other.write_text("import aswarm")
    for _ in range(2):
        chat.process_line(f"/save {path}")
    chat.process_line(f"/save {other}")
    assert capsys.readouterr().out.splitlines()[2] == (
        f"{other}: the file is not a saved conversation and was not overwritten; choose another path"
    )
    assert other.read_text() == "import aswarm"
    assert sorted(place.name for place in tmp_path.iterdir()) == ["agents.py", "chat.json"]


def test_saving_over_another_conversation_asks(chat, tmp_path, capsys):
    """Only yes replaces it; any other line keeps it, and is no message. The file of this conversation is not asked about."""
    path = tmp_path / "chat.json"
    write_conversation(str(path), to_json(SavedConversation("Bot", {}, [{"role": "user", "content": "Other"}]))[0])
    before = path.read_text()
    chat.session.history, chat.session.context = [USER, ANSWER], {}
    for answer in ("", "no", "/exit"):
        assert chat.process_line(f"/save {path}") is None
        assert chat.process_line(answer) is None
        assert path.read_text() == before
    assert not chat.is_over
    chat.process_line(f"/save {path}")
    assert chat.process_line(" Yes ") is None
    assert read_conversation(str(path)).messages == [USER, ANSWER]
    chat.session.history = [USER, ANSWER, USER]
    chat.process_line(f"/save {path}")
    question = f"{path} has another conversation (1 message). Replace it? Type yes, or anything else to keep it."
    assert capsys.readouterr().out.splitlines() == [
        *[question, "Not saved."] * 3,
        question,
        "2 messages saved.",
        "3 messages saved.",
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EOFError()])
def test_ctrl_c_at_the_question_keeps_the_file(chat, tmp_path, capsys, error):
    """The chat says that it has not saved; the next line is a message, and no answer to the question."""
    path = tmp_path / "chat.json"
    write_conversation(str(path), to_json(SavedConversation("Bot", {}, [{"role": "user", "content": "Other"}]))[0])
    before = path.read_text()
    chat.session.history, chat.session.context = [USER, ANSWER], {}
    chat.process_line(f"/save {path}")
    chat.on_read_error(error)
    assert capsys.readouterr().out.splitlines()[1] == "Not saved."
    assert isinstance(chat.process_line("yes"), StartRun)
    assert path.read_text() == before


def test_a_file_that_cannot_be_written_is_a_line(chat, tmp_path, capsys):
    """A missing folder is an error on one line."""
    chat.process_line(f"/save {tmp_path / 'nowhere' / 'chat.json'}")
    assert "No such file or directory" in capsys.readouterr().out


def test_a_file_is_complete_or_missing(tmp_path):
    """A write that fails leaves no file behind."""
    with pytest.raises(UnicodeEncodeError):
        write_conversation(str(tmp_path / "chat.json"), "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_private(tmp_path):
    """Only its owner can read it."""
    path = tmp_path / "chat.json"
    write_conversation(str(path), to_json(SavedConversation("Bot", {}, []))[0])
    assert path.stat().st_mode & 0o077 == 0
    assert read_conversation(str(path)) == SavedConversation("Bot", {}, [])


# --- the JSON ---------------------------------------------------------------------------------------------------------


def test_values_that_json_would_change_are_left_out():
    """A tuple would come back as a list, and a number as a key as a string, and functions would fail."""
    endless: list = []
    endless.append(endless)
    context = {"a": [1, {"b": None}], "t": (1, 2), "k": {1: 2}, "s": {1}, "e": endless, 7: 7, "nan": float("nan")}
    text, left_out = to_json(SavedConversation("Bot", context, []))
    assert from_json(text).context == {"a": [1, {"b": None}]}
    assert left_out == ["t", "k", "s", "e", "7", "nan"]


def test_every_text_can_be_saved():
    """Also half of a surrogate pair, which a model may have sent, is saved."""
    message = {"role": "user", "content": "\ud83d ü 🐝"}
    text, _ = to_json(SavedConversation("Bot", {}, [message]))
    assert from_json(text.encode().decode()).messages == [message]
