"""The commands of a chat, the messages that it keeps, and the agents that it knows."""

from __future__ import annotations

import pytest

from aswarm import Agent, Result
from aswarm.testing import ScriptedAnswer, ScriptedCall, ScriptedModel, call
from tests.support.repl.chats import PlainChat, sent

BOT = Agent(name="Bot")
COMMANDS = ("help", "agent", "history", "context", "usage", "resume", "prompt", "reset", "save", "load", "exit", "quit")


@pytest.fixture
def chat(monkeypatch, capsys) -> PlainChat:
    return PlainChat("blocking", monkeypatch, capsys)


@pytest.mark.parametrize(
    ("line", "message"),
    [(" /help", "/help"), (" And? \n", "And?"), ("exit is what I want", "exit is what I want")],
)
def test_a_line_that_is_no_command_is_a_message(chat, line, message):
    """A line with a space before a slash, and a sentence that starts with "exit", are messages."""
    chat([line], BOT, model := ScriptedModel(["Hello!"]))
    assert sent(model, 0) == [("user", message)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/nope", "There is no command /nope."),
        ("/", "There is no command /."),
        ("/HELPS me", "There is no command /HELPS."),
        ("/save", "/save needs the path of a file."),
        ("/load  ", "/load needs the path of a file."),
        ("/history", "There are no messages yet."),
        ("/context", "There are no context variables."),
        ("/resume", "There is nothing to resume. Send a message."),
    ],
)
def test_a_command_without_an_effect_is_a_line(chat, line, text):
    """An unknown command, a command without its file, and a command with nothing to show print a line."""
    assert text in chat([line], BOT, ScriptedModel([]))


def test_the_help_names_every_command(chat):
    """`/help` in any case lists all commands."""
    lines = chat(["/HELP"], BOT, ScriptedModel([])).splitlines()
    assert [line.split()[0] for line in lines if line.startswith("/")][1:] == [f"/{name}" for name in COMMANDS]


def test_context_variables_of_any_kind_are_shown(chat):
    """Each context variable is one line, also if its repr fails."""

    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    context = {"user": "Ada", "cart": [1, 2], "broken": Broken()}
    out = chat(["/context"], BOT, ScriptedModel([]), context_variables=context)
    assert "user = 'Ada'\ncart = [1, 2]\nbroken = <Broken: its repr failed: no>\n" in out


def test_a_reset_starts_again(chat):
    """`/reset` returns to the first agent and context without messages, and keeps the usage."""
    other = Agent(name="Other")

    def change(context_variables: dict) -> Result:
        context_variables["cart"].append(1)
        return Result(agent=other, context_variables={"n": 1})

    model = ScriptedModel([call("change"), "Done.", "Hello!"])
    given = {"cart": []}
    lines = ["Go", "/reset", "/context", "/history", "Hi", "/usage"]
    out = chat(lines, Agent(name="Bot", functions=[change]), model, context_variables=given).splitlines()
    assert "New conversation. The active agent is Bot." in out
    assert out[out.index("/context") + 1 : out.index("/history")] == ["cart = []"]
    assert "There are no messages yet." in out and "Bot: Hello!" in out
    assert sent(model, 2) == [("user", "Hi")]
    assert "45 tokens (30 in, 15 out), 3 requests" in out


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"city": "Oslo", "n": [1, {"a": null}]}', 'city="Oslo", n=[1, {"a": null}]'),
        ('{"at": "12:30"}', 'at="12:30"'),
        ('{"name": "Jürgen"}', 'name="Jürgen"'),
        ("{}", ""),
        ("", ""),
        ('{"cut', '{"cut'),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 297 + "..."),
        ('{"x": "\\u001b[1m\\u009b"}', 'x="\\u001b[1m\ufffd"'),
    ],
)
def test_a_call_is_shown_with_its_arguments(chat, arguments, shown):
    """Arguments are shown as keywords, and invalid arguments as the model wrote them."""
    made = ScriptedAnswer(calls=[ScriptedCall("look_up", arguments, "c1")])
    assert f"Bot: look_up({shown})" in chat(["Hi"], BOT, ScriptedModel([made, "Done."])).splitlines()


def test_a_custom_call_is_shown_with_its_input(chat):
    """A call of a custom tool has an input in place of arguments."""
    made = ScriptedAnswer(calls=[ScriptedCall("sql", "select 1", "c1", kind="custom")])
    assert "Bot: sql(select 1)" in chat(["Hi"], BOT, ScriptedModel([made, "Done."])).splitlines()


# --- agents -----------------------------------------------------------------------------------------------------------

sales = Agent(name="Sales")


def to_sales() -> Agent:
    """Hand off."""
    return sales


def test_the_active_agent_can_be_changed(chat):
    """`/agent` shows the active agent, and with a name it changes the agent of the next message."""
    lines = ["/agent", "/agent Unknown", "/agent Sales", "Hi"]
    out = chat(lines, Agent(name="Bot", functions=[to_sales]), ScriptedModel(["Hello!"])).splitlines()
    assert "Bot (gpt-6-luna); functions: to_sales; known agents: Bot, Sales" in out
    assert "Sales (gpt-6-luna); functions: none; known agents: Bot, Sales" in out
    assert "There is no agent 'Unknown'. Known agents: Bot, Sales." in out
    assert "Sales: Hello!" in out


def test_an_agent_that_was_active_is_known(chat):
    """The chat knows an agent that was active, also if no function refers to it."""

    def make(name: str) -> Agent:
        return Agent(name=name)

    lines = ["Hi", "/reset", "/agent Made"]
    model = ScriptedModel([call("make", name="Made"), "Hello!"])
    out = chat(lines, Agent(name="Bot", functions=[make]), model)
    assert "Made (gpt-6-luna); functions: none; known agents:" in out
