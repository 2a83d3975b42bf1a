"""Ctrl-C stops an answer and keeps the conversation; twice at the prompt, it leaves the chat."""

from __future__ import annotations

import functools
import re
import signal
import threading
import time
from typing import Any

import anyio
import pytest

from aswarm import Agent
from aswarm.repl import run_demo_loop_async
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.repl.chats import TypedLines, interrupt_when, sent

HINT = "To leave, press Ctrl-C again or Ctrl-D, or type /exit."


@pytest.mark.parametrize("stream", [False, True])
def test_ctrl_c_stops_an_answer_and_the_chat_continues(chat, stream):
    """Ctrl-C closes the response, the history has the received part with a mark, and `/resume` asks again without it."""

    def slowly(_) -> ScriptedAnswer:
        number = len(model.requests)
        interrupt_when(lambda: model.open_streams if stream else len(model.requests) >= number)
        return ScriptedAnswer("x" * 10_000, pause=0.01, delay=0 if stream else 60)

    before = signal.getsignal(signal.SIGINT)
    model = ScriptedModel([slowly, "Shorter.", slowly, "All."], cut=1)
    lines = ["Tell me all", "Shorter", "/reset", "Tell me all", "/resume"]
    out = chat(lines, Agent(name="Bot"), model, stream=stream).splitlines()
    assert signal.getsignal(signal.SIGINT) is before
    assert "Bot: Shorter." in out and out[-4:] == ["Stopped.", "/resume", "Bot: All.", ""]
    assert sent(model, 3) == [("user", "Tell me all")]
    [asked, (role, stopped), shorter] = sent(model, 1)
    assert (asked, role, shorter) == (("user", "Tell me all"), "assistant", ("user", "Shorter"))
    assert re.fullmatch(r"(x+\n)?\[stopped by the user\]", stopped)
    assert stream or stopped == "[stopped by the user]"


def test_another_message_skips_open_calls(chat):
    """The next request answers the stopped call and the call that was never started."""
    started, ran = [], []
    out = chat(["Go", "And?"], stopped_between(started, ran), model := two_calls("Well."))
    assert "Stopped. Not run yet: later. /resume runs these calls, another message skips them." in out.splitlines()
    answers = ["cancelled; its outcome is unknown", "not run: interrupted"]
    assert sent(model, 1) == [
        ("user", "Go"),
        ("assistant", None),
        *(("tool", text) for text in answers),
        ("user", "And?"),
    ]
    assert ran == []


def test_resume_runs_open_calls(chat):
    """`/resume` runs the calls that were never started, and no call twice."""
    started, ran = [], []
    out = chat(["Go", "/resume", "/resume"], stopped_between(started, ran), model := two_calls("Done."))
    assert (len(started), ran) == (1, [1])
    assert [line for line in out.splitlines()[-7:] if line] == [
        "/resume",
        "Bot: later()",
        "  later: late",
        "Bot: Done.",
        "/resume",
        "There is nothing to resume. Send a message.",
    ]
    assert [text for role, text in sent(model, 1) if role == "tool"] == ["cancelled; its outcome is unknown", "late"]


def stopped_between(started: list[int], ran: list[int]) -> Agent:
    """An agent with a function that Ctrl-C interrupts, and a function that runs after it."""

    async def slow() -> str:
        """Slow."""
        started.append(1)
        interrupt_when(lambda: True)
        await anyio.sleep_forever()
        return ""

    def later() -> str:
        """Later."""
        ran.append(1)
        return "late"

    return Agent(name="Bot", functions=[slow, later])


def two_calls(then: str) -> ScriptedModel:
    return ScriptedModel([[call("slow"), call("later")], then])


# --- at the prompt ----------------------------------------------------------------------------------------------------


def test_ctrl_c_at_the_prompt_shows_how_to_leave(chat):
    """One Ctrl-C at the prompt shows how to leave, and the next message is answered."""
    model = ScriptedModel(["Hello!"])
    out = chat([KeyboardInterrupt(), "Hi", KeyboardInterrupt(), "exit"], Agent(name="Bot"), model).splitlines()
    assert out.count(HINT) == 2
    assert "Bot: Hello!" in out


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_at_the_prompt_of_the_async_loop(backend, monkeypatch, capsys):
    """The first signal leaves the thread in `input`, and the second signal abandons it and returns."""
    may_end = threading.Event()
    asked, shown = [], []

    def has_shown(text: str) -> bool:
        shown.append(capsys.readouterr().out)
        return text in "".join(shown)

    def waiting() -> str:
        asked.append(1)
        interrupt_when(lambda: True)
        interrupt_when(lambda: has_shown(HINT))
        may_end.wait(60)
        return "never said"

    async def loop() -> None:
        await run_demo_loop_async(Agent(), client=ScriptedModel([]).client())
        may_end.set()

    monkeypatch.setattr("builtins.input", TypedLines([waiting]))
    anyio.run(loop, backend=backend)
    assert asked == [1]
    while not has_shown("never said"):  # the abandoned thread finishes here too
        time.sleep(0.001)


# --- the signal -------------------------------------------------------------------------------------------------------


def test_a_process_that_ignores_the_signal_still_ignores_it(chat):
    """A chat in the background of a shell keeps ignoring SIGINT."""
    handlers: list[Any] = []

    def look() -> str:
        handlers.append(signal.getsignal(signal.SIGINT))
        return "exit"

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        chat([look], Agent(), ScriptedModel([]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert handlers == [signal.SIG_IGN]


def test_a_loop_in_another_thread_leaves_signals_alone(monkeypatch, capsys):
    """A loop in another thread sets no signal handlers."""
    monkeypatch.setattr("builtins.input", TypedLines(["Hi"]))
    loop = functools.partial(run_demo_loop_async, Agent(name="Bot"), client=ScriptedModel(["Hello!"]).client())
    thread = threading.Thread(target=anyio.run, args=[loop])
    thread.start()
    thread.join(120)
    assert "Bot: Hello!" in capsys.readouterr().out
