"""Calls that wait, in a chat: what is asked, what a line decides, and that leaving a question leaves its call open."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import anyio
import pytest
from rich.console import Console

from aswarm import Agent, Hold, Swarm, current_call, external_tool, tool
from aswarm._blocking.sync_swarm import engine_of, wait_on_event_loop
from aswarm.repl._chat import Chat
from aswarm.repl._kept import ChatOptions, KeptChat, conversation_in
from aswarm.repl._rich import RichDisplay
from aswarm.repl._session import Session, StartRun
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.repl.chats import LOOPS, PlainChat, sent

CHOICES = "y: run it, n [REASON]: deny it, e {ARGUMENTS}: run it with other arguments, a TEXT: answer it (Ctrl-C leaves it open)"
OPEN = "Not run yet: refund. /resume asks about these calls, another message skips them."


@pytest.fixture(params=LOOPS)
def chat(request, monkeypatch, capsys) -> PlainChat:
    return PlainChat(request.param, monkeypatch, capsys)


class Shop:
    """An agent with calls that wait, and what ran."""

    def __init__(self) -> None:
        self.ran: list[Any] = []

        @tool(approve=True)
        def refund(order: int) -> str:
            """Refund."""
            self.ran.append(order)
            return f"refunded {order}"

        @tool(may_wait=True)
        async def ask(what: str) -> str:
            """Ask."""
            if current_call().answer is None:
                raise Hold(f"Which {what}?", data={"of": what})
            self.ran.append(current_call().answer)
            return f"took {current_call().answer}"

        browser = external_tool(
            name="browser", description="Opens a page.", parameters={"type": "object", "properties": {}}
        )
        self.agent = Agent(name="Bot", functions=[refund, ask, browser])


def asks(then: str = "Done.") -> ScriptedModel:
    """The model asks for a refund, and then says a word."""
    return ScriptedModel([call("refund", call_id="c1", order=7), then], cut=3)


def told(model: ScriptedModel) -> list[str]:
    """The answers to calls in the last request."""
    return [text for role, text in sent(model, -1) if role == "tool"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("lines", "ran", "answer"),
    [
        (["y"], [7], "refunded 7"),
        (["YES"], [7], "refunded 7"),
        (["n"], [], "not run: denied by the user"),
        (["n too late"], [], "not run: denied by the user: too late"),
        (['e {"order": 8}'], [8], '(run with arguments changed by the user: {"order": 8})\nrefunded 8'),
        (["edit", '{"order": 8}'], [8], '(run with arguments changed by the user: {"order": 8})\nrefunded 8'),
        (["a It was refunded."], [], "It was refunded."),
        (["answer", "n"], [], "n"),
    ],
    ids=["y", "yes", "n", "n reason", "e", "edit", "a", "answer"],
)
def test_a_line_decides(chat, stream, lines, ran, answer):
    """The question names the call and why it waits; the decision is carried out, and the model goes on."""
    shop = Shop()
    out = chat(["Refund!", *lines, "/usage"], shop.agent, model := asks(), stream=stream).splitlines()
    assert "Bot: refund(order=7) waits: needs approval" in out
    assert CHOICES in out
    assert "Bot: Done." in out
    assert (shop.ran, told(model)) == (ran, [answer])


def test_lines_that_decide_nothing_are_asked_again(chat):
    """A word that is no choice, arguments that are no object, arguments that do not fit the function."""
    shop = Shop()
    lines = ["Refund!", "yn", "", "y but only 50 euros", "e [1]", 'e {"order": "many"}', "e", "{", "y"]
    out = chat(lines, shop.agent, asks()).splitlines()
    assert out.count("Type one of y, n, e, a.") == 2
    assert out.count("Type y alone to run the call as it is, or e {ARGUMENTS} to run it with other arguments.") == 1
    assert out.count('The arguments must be a JSON object, such as {"order": 7}.') == 2
    assert sum("order" in line and "int" in line for line in out) == 1
    assert shop.ran == [7]


def test_each_call_is_asked_for_once(chat):
    """One question after another; an external tool can be answered or denied; the function that asks gets its answer."""
    shop = Shop()
    calls = [call("ask", what="account"), call("browser"), call("refund", order=7)]
    model = ScriptedModel([calls, "Done."])
    out = chat(["Go", "a the second", "y", "a opened", "n"], shop.agent, model).splitlines()
    assert 'Bot: ask(what="account") waits: Which account?' in out
    assert '  {"of": "account"}' in out
    assert "Type one of n, a." in out
    assert told(model) == ["took the second", "opened", "not run: denied by the user"]
    assert shop.ran == ["the second"]


def test_a_question_may_lead_to_another_one(chat):
    """A function that asks again is asked for again."""
    shop = Shop()
    model = ScriptedModel([call("ask", what="account"), "Done."])
    out = chat(["Go", "y", "a mine"], shop.agent, model).splitlines()
    assert out.count('Bot: ask(what="account") waits: Which account?') == 2
    assert shop.ran == ["mine"]


def test_an_answer_is_shown_where_its_call_needs_an_approval(chat):
    """The user approves what would run: the function with that answer."""
    shop = Shop()
    ask = tool(approve=True)(shop.agent.functions[1])
    shop.agent.functions = [ask]
    model = ScriptedModel([call("ask", what="account"), "Done."])
    out = chat(["Go", "y", "a mine", "y"], shop.agent, model).splitlines()
    assert out.count('Bot: ask(what="account") waits: needs approval') == 2
    assert out.count('  answered: "mine"') == 1
    assert (shop.ran, told(model)) == (["mine"], ["took mine"])


@pytest.mark.parametrize("leave", [KeyboardInterrupt(), "/context"], ids=["Ctrl-C", "a command"])
def test_a_question_that_is_left_leaves_the_call_open(chat, leave):
    """`/resume` asks again; nothing runs before the user says so."""
    shop = Shop()
    out = chat(["Refund!", leave, "/resume", "y"], shop.agent, model := asks()).splitlines()
    assert out.count("Bot: refund(order=7) waits: needs approval") == 2
    assert (OPEN in out) == isinstance(leave, KeyboardInterrupt)
    assert (shop.ran, told(model)) == ([7], ["refunded 7"])


def test_another_message_skips_the_calls(chat):
    """After Ctrl-C the next line is a message; the model is told that the call did not run."""
    shop = Shop()
    chat(["Refund!", KeyboardInterrupt(), "Never mind"], shop.agent, model := asks("Fine."))
    assert (shop.ran, told(model)) == ([], ["not run: interrupted"])


@pytest.mark.parametrize("leave", ["exit", EOFError(), "/exit"], ids=["exit", "Ctrl-D", "/exit"])
def test_the_user_may_leave_at_a_question(chat, leave):
    """The chat ends, and nothing runs."""
    shop = Shop()
    chat(["Refund!", leave, "y"], shop.agent, ScriptedModel([call("refund", order=7)]))
    assert shop.ran == []


def test_saved_and_loaded(chat, tmp_path):
    """The file keeps what the calls wait for; loading it asks nobody, and `/resume` does."""
    shop, path = Shop(), tmp_path / "talk.sqlite"
    chat(["Refund!", f"/save {path}"], shop.agent, ScriptedModel([call("refund", call_id="c1", order=7)]))
    saved = anyio.run(conversation_in, str(path)).messages
    check_history(saved, allow_open=True)
    assert saved[-1]["waiting"] == [{"index": 0, "reason": "needs approval", "approval": True}]
    model = ScriptedModel(["Done."])
    out = chat([f"/load {path}", "/resume", "n"], shop.agent, model).splitlines()
    assert f"2 messages loaded. The active agent is Bot. {OPEN}" in out
    assert (shop.ran, told(model)) == ([], ["not run: denied by the user"])


def test_an_agent_that_lost_its_function(chat, tmp_path):
    """The call can be denied or answered; nothing could run it."""
    path = tmp_path / "talk.sqlite"
    chat(["Refund!", f"/save {path}"], Shop().agent, ScriptedModel([call("refund", call_id="c1", order=7)]))
    model = ScriptedModel(["Done."])
    out = chat([f"/load {path}", "/resume", "y", "a gone"], Agent(name="Bot"), model).splitlines()
    assert "Type one of n, a." in out
    assert told(model) == ["gone"]


def test_functions_that_cannot_be_offered():
    """The question is still asked, without them; the run says what is wrong with them."""
    session = Session(Agent(name="Bot", functions=[3]))
    made = {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": "{}"}}
    session.history = [{"role": "assistant", "tool_calls": [made], "waiting": [{"index": 0, "reason": "Why?"}]}]
    questions = session.questions
    assert questions is not None
    assert questions.text.startswith(": refund() waits: Why?\nn [REASON]: deny it, a TEXT: answer it")


def test_the_rich_display_shows_the_question():
    """As a note, below the call; control characters of a model do not reach the terminal."""
    screen = io.StringIO()
    shop = Shop()
    session = Session(shop.agent)
    chat = Chat(session, RichDisplay(Console(file=screen, force_terminal=True, width=120), live=True))
    model = ScriptedModel([call("ask", what="\x1b[31mred"), "Done."])
    options = ChatOptions(deltas=True, debug=False, model_override=None, max_turns=100)
    with Swarm(model.client()) as swarm:
        kept = KeptChat(chat, engine_of(swarm), options)
        for line in ("Go", "a blue"):
            start = chat.process_line(line)
            assert isinstance(start, StartRun)
            with chat.running(start):
                wait_on_event_loop(partial(kept.follow, start))
    shown = screen.getvalue()
    assert "waits: Which" in shown
    assert "\x1b[31mred" not in shown
    assert shop.ran == ["blue"]
