"""Calls that wait in a chat: the questions, and the lines that decide."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import anyio
import pytest

from aswarm import Agent, Hold, current_call, external_tool, tool
from aswarm.repl import run_demo_loop_async
from aswarm.testing import ScriptedModel, call
from tests.support.cli.cli_runs import stored
from tests.support.repl.chats import TypedLines, interrupt_when, sent

CHOICES = "y: run it, n [REASON]: deny it, e {ARGUMENTS}: run it with other arguments, a TEXT: answer it (Ctrl-C leaves it open)"
OPEN = "Not run yet: refund. /resume asks about these calls, another message skips them."


class Shop:
    """An agent with calls that wait. `ran`: the arguments of the executed calls."""

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
    """Return a model that calls refund, and then answers."""
    return ScriptedModel([call("refund", call_id="c1", order=7), then], cut=3)


def answers(model: ScriptedModel) -> list[str]:
    """Return the answers to calls in the last request."""
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
    """The question has the call and its reason, and the model gets the result of the decision."""
    shop = Shop()
    out = chat(["Refund!", *lines, "/usage"], shop.agent, model := asks(), stream=stream).splitlines()
    assert "Bot: refund(order=7) waits: needs approval" in out
    assert CHOICES in out
    assert "Bot: Done." in out
    assert (shop.ran, answers(model)) == (ran, [answer])


def test_lines_that_decide_nothing_are_asked_again(chat):
    """An unknown choice and wrong arguments ask the question again."""
    shop = Shop()
    lines = ["Refund!", "yn", "", "y but only 50 euros", "e [1]", 'e {"order": "many"}', "e", "{", "y"]
    out = chat(lines, shop.agent, asks()).splitlines()
    assert out.count("Type one of y, n, e, a.") == 2
    assert out.count("Type y alone to run the call as it is, or e {ARGUMENTS} to run it with other arguments.") == 1
    assert out.count('The arguments must be a JSON object, such as {"order": 7}.') == 2
    assert sum("order" in line and "int" in line for line in out) == 1
    assert shop.ran == [7]


def test_each_call_is_asked_for_once(chat):
    """Each call has its question, an external tool is answered or denied, and a Hold gets its answer."""
    shop = Shop()
    calls = [call("ask", what="account"), call("browser"), call("refund", order=7)]
    model = ScriptedModel([calls, "Done."])
    out = chat(["Go", "a the second", "y", "a opened", "n"], shop.agent, model).splitlines()
    assert 'Bot: ask(what="account") waits: Which account?' in out
    assert '  {"of": "account"}' in out
    assert "Type one of n, a." in out
    assert answers(model) == ["took the second", "opened", "not run: denied by the user"]
    assert shop.ran == ["the second"]


def test_a_question_may_lead_to_another_one(chat):
    """A function that raises Hold again has another question."""
    shop = Shop()
    model = ScriptedModel([call("ask", what="account"), "Done."])
    out = chat(["Go", "y", "a mine"], shop.agent, model).splitlines()
    assert out.count('Bot: ask(what="account") waits: Which account?') == 2
    assert shop.ran == ["mine"]


def test_an_answer_is_shown_for_an_approval(chat):
    """The question for an approval shows the answer that the function would get."""
    shop = Shop()
    ask = tool(approve=True)(shop.agent.functions[1])
    shop.agent.functions = [ask]
    model = ScriptedModel([call("ask", what="account"), "Done."])
    out = chat(["Go", "y", "a mine", "y"], shop.agent, model).splitlines()
    assert out.count('Bot: ask(what="account") waits: needs approval') == 2
    assert out.count('  answered: "mine"') == 1
    assert (shop.ran, answers(model)) == (["mine"], ["took mine"])


@pytest.mark.parametrize("leave", [KeyboardInterrupt(), "/context"], ids=["Ctrl-C", "a command"])
def test_a_question_without_a_decision_keeps_the_call_open(chat, leave):
    """After Ctrl-C or a command the call is open, and `/resume` asks again."""
    shop = Shop()
    out = chat(["Refund!", leave, "/resume", "y"], shop.agent, model := asks()).splitlines()
    assert out.count("Bot: refund(order=7) waits: needs approval") == 2
    assert (OPEN in out) == isinstance(leave, KeyboardInterrupt)
    assert (shop.ran, answers(model)) == ([7], ["refunded 7"])


def test_another_message_skips_the_calls(chat):
    """After Ctrl-C the next line is a message, and the call is answered as not run."""
    shop = Shop()
    chat(["Refund!", KeyboardInterrupt(), "Never mind"], shop.agent, model := asks("Fine."))
    assert (shop.ran, answers(model)) == ([], ["not run: interrupted"])


@pytest.mark.parametrize("leave", ["exit", EOFError(), "/exit"], ids=["exit", "Ctrl-D", "/exit"])
def test_the_user_may_leave_at_a_question(chat, leave):
    """The user leaves at a question, and the call does not run."""
    shop = Shop()
    chat(["Refund!", leave, "y"], shop.agent, ScriptedModel([call("refund", order=7)]))
    assert shop.ran == []


def test_saved_and_loaded(chat, tmp_path):
    """A saved conversation has its waiting calls, and `/resume` asks about them."""
    shop, path = Shop(), tmp_path / "talk.sqlite"
    chat(["Refund!", f"/save {path}"], shop.agent, ScriptedModel([call("refund", call_id="c1", order=7)]))
    assert (saved := stored(str(path), "conversation")) is not None
    assert saved.messages[-1]["waiting"] == [{"index": 0, "reason": "needs approval", "approval": True}]
    model = ScriptedModel(["Done."])
    out = chat([f"/load {path}", "/resume", "n"], shop.agent, model).splitlines()
    assert f"2 messages loaded. The active agent is Bot. {OPEN}" in out
    assert (shop.ran, answers(model)) == ([], ["not run: denied by the user"])


def test_an_agent_that_lost_its_function(chat, tmp_path):
    """A call without its function can be denied or answered."""
    path = tmp_path / "talk.sqlite"
    chat(["Refund!", f"/save {path}"], Shop().agent, ScriptedModel([call("refund", call_id="c1", order=7)]))
    model = ScriptedModel(["Done."])
    out = chat([f"/load {path}", "/resume", "y", "a gone"], Agent(name="Bot"), model).splitlines()
    assert "Type one of n, a." in out
    assert answers(model) == ["gone"]


def test_functions_that_cannot_be_offered(chat, tmp_path):
    """The question is asked without the functions, and the run raises their error."""
    path = tmp_path / "talk.sqlite"
    chat(["Refund!", f"/save {path}"], Shop().agent, ScriptedModel([call("refund", call_id="c1", order=7)]))
    out = chat([f"/load {path}", "/resume", "n"], Agent(name="Bot", functions=[print]), ScriptedModel([])).splitlines()
    assert "Bot: refund(order=7) waits: needs approval" in out
    assert any(line.startswith("ConfigurationError: ") for line in out)


def test_the_rich_display_shows_the_question(rich):
    """A terminal shows the question below the call, without control characters of the model."""
    shop = Shop()
    seen = rich(["Go", "a blue"], shop.agent, ScriptedModel([call("ask", what="\x1b[31mred"), "Done."]))
    assert any("waits: Which" in line for line in seen)
    assert "\x1b[31mred" not in rich.stdout.getvalue()
    assert shop.ran == ["blue"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_line_that_was_begun_before_ctrl_c_decides_nothing(backend, monkeypatch, capsys):
    """On an event loop, the thread in `input` outlives Ctrl-C at a question, and its line is a message."""
    shop, shown = Shop(), []

    def has_left() -> bool:
        shown.append(capsys.readouterr().out)
        return OPEN in "".join(shown)

    def typed() -> str:
        interrupt_when(lambda: True)
        while not has_left():
            time.sleep(0.001)
        return "y"

    monkeypatch.setattr("builtins.input", TypedLines(["Refund!", typed]))
    model = asks("Fine.")
    anyio.run(partial(run_demo_loop_async, shop.agent, client=model.client()), backend=backend)
    assert sent(model, 1)[-1] == ("user", "y")
    assert (shop.ran, answers(model)) == ([], ["not run: interrupted"])
