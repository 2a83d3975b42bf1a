"""`/save` and `/load`: a conversation in a file, which is data."""

from __future__ import annotations

import json
import os

import pytest
from chats import ANSWER, ASKING, USER
from talking import LOOPS, Talk, sent

from aswarm import Agent, Response
from aswarm.repl._chat import Chat
from aswarm.repl._files import read_conversation, write_conversation
from aswarm.repl._plain import PlainFace
from aswarm.repl._saved import Saved, from_json, to_json
from aswarm.repl._session import Session
from aswarm.testing import ScriptedModel, call


@pytest.fixture
def chat() -> Chat:
    return Chat(Session(Agent(name="Bot"), {"lock": object(), "n": 1}), PlainFace(live=False))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_conversation_goes_on_another_day(loop, monkeypatch, capsys, tmp_path):
    """Messages, agent and context come back; what JSON cannot hold comes from the new beginning."""
    sales = Agent(name="Sales")

    def to_sales() -> Agent:
        """Hand over."""
        return sales

    agent = Agent(name="Bot", functions=[to_sales])
    talk, path = Talk(loop, monkeypatch, capsys), tmp_path / "my chat.json"
    model = ScriptedModel([call("to_sales"), "Hello!"])
    out = talk(["Hi", f"/save {path}"], agent, model, context_variables={"lock": object(), "n": 1})
    assert "4 messages saved, without lock (not JSON)." in out.splitlines()

    model = ScriptedModel(["Still here."])
    lock = object()
    out = talk([f"/load {path}", "And?", "/context"], agent, model, context_variables={"lock": lock, "n": 2})
    assert "4 messages; Sales is active." in out.splitlines()
    assert "Sales: Still here." in out.splitlines()
    assert out.splitlines()[-3:-1] == [f"lock = {lock!r}", "n = 1"]
    assert [role for role, _ in sent(model, 0)] == ["user", "assistant", "tool", "assistant", "user"]


def test_calls_in_a_file_are_not_run_by_another_message(chat, tmp_path, capsys):
    """A file is data: loading says what is open, and only `/resume` runs it."""
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"agent": "Bot", "messages": [USER, ASKING]}))
    assert chat.take(f"/load {path}") is None
    assert "Not yet run: look_up. /resume runs what is open" in capsys.readouterr().out
    said, resumed = chat.take("And?"), chat.take("/resume")
    assert (said.resume, resumed.resume) == (False, True)


def test_an_agent_that_is_not_known_is_named(chat, tmp_path, capsys):
    """The first one takes the conversation over."""
    path = tmp_path / "chat.json"
    write_conversation(str(path), to_json(Saved("Gone", {}, [USER, ANSWER]))[0])
    chat.take(f"/load {path}")
    assert "No agent 'Gone' is known here. 2 messages; Bot is active." in capsys.readouterr().out


def test_a_list_of_messages_is_enough(chat, tmp_path, capsys):
    """Without an agent's name the first one goes on."""
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": [USER]}))
    chat.take(f"/load {path}")
    assert capsys.readouterr().out == "1 message; Bot is active.\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", "no list of messages"),
        ('{"messages": {}}', "no list of messages"),
        ('{"messages": [], "agent": 1}', "expected an agent's name"),
        ('{"messages": [], "context_variables": []}', "a dict of context variables"),
        ('{"messages": [{"role": "boss"}]}', "messages[0] has the role 'boss'"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "without a tool_call_id"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_broken_file_is_a_line_and_changes_nothing(chat, tmp_path, capsys, text, complaint):
    """It says what is wrong; the conversation is what it was."""
    path = tmp_path / "chat.json"
    path.write_text(text)
    chat.session.end_turn(chat.session.say("Hi"), Response(messages=[ANSWER]), failed=False)
    chat.take(f"/load {path}")
    out = capsys.readouterr().out
    assert complaint in out
    assert len(out.splitlines()) == 1
    assert chat.session.history == [USER, ANSWER]


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("nowhere.json", "nowhere.json: No such file or directory"),
        (os.devnull, f"{os.devnull}: not a file"),
        ("a\0b", "a␀b: "),
        ("~no such user/x", "~no such user/x: Could not determine home directory."),
    ],
)
def test_a_file_that_cannot_be_read_is_a_line(chat, tmp_path, monkeypatch, capsys, path, complaint):
    """Also what has no end, such as a device."""
    monkeypatch.chdir(tmp_path)
    chat.take(f"/load {path}")
    assert capsys.readouterr().out.startswith(complaint)


def test_bytes_that_are_no_text_are_no_conversation(chat, tmp_path, capsys):
    """A picture, say."""
    (tmp_path / "x.png").write_bytes(b"\x89PNG")
    chat.take(f"/load {tmp_path / 'x.png'}")
    assert "can't decode byte" in capsys.readouterr().out


# --- writing ----------------------------------------------------------------------------------------------------------


def test_nothing_else_is_overwritten(chat, tmp_path, capsys):
    """A conversation may be saved again; another file stays as it is."""
    path, other = tmp_path / "chat.json", tmp_path / "agents.py"
    other.write_text("import aswarm")
    for _ in range(2):
        chat.take(f"/save {path}")
    chat.take(f"/save {other}")
    assert capsys.readouterr().out.splitlines()[2] == (
        f"{other}: this is there already and is no saved conversation; nothing was written"
    )
    assert other.read_text() == "import aswarm"
    assert sorted(place.name for place in tmp_path.iterdir()) == ["agents.py", "chat.json"]


def test_a_file_that_cannot_be_written_is_a_line(chat, tmp_path, capsys):
    """A folder that is not there."""
    chat.take(f"/save {tmp_path / 'nowhere' / 'chat.json'}")
    assert "No such file or directory" in capsys.readouterr().out


def test_a_file_is_whole_or_not_there(tmp_path):
    """What fails on the way leaves nothing behind."""
    with pytest.raises(UnicodeEncodeError):
        write_conversation(str(tmp_path / "chat.json"), "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_for_its_owner(tmp_path):
    """Conversations are private."""
    path = tmp_path / "chat.json"
    write_conversation(str(path), to_json(Saved("Bot", {}, []))[0])
    assert path.stat().st_mode & 0o077 == 0
    assert read_conversation(str(path)) == Saved("Bot", {}, [])


# --- the form ---------------------------------------------------------------------------------------------------------


def test_what_json_would_change_is_left_out():
    """A tuple would come back as a list, and a number for a key as a text: functions would find something else."""
    endless: list = []
    endless.append(endless)
    context = {"a": [1, {"b": None}], "t": (1, 2), "k": {1: 2}, "s": {1}, "e": endless, 7: 7, "nan": float("nan")}
    text, left_out = to_json(Saved("Bot", context, []))
    assert from_json(text).context == {"a": [1, {"b": None}]}
    assert left_out == ["t", "k", "s", "e", "7", "nan"]


def test_every_text_can_be_saved():
    """Also half of a surrogate pair, which a model may have sent."""
    message = {"role": "user", "content": "\ud83d ü 🐝"}
    text, _ = to_json(Saved("Bot", {}, [message]))
    assert from_json(text.encode().decode()).messages == [message]
