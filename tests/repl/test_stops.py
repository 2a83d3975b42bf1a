"""Ctrl-C stops an answer and keeps the conversation; twice at the prompt, it leaves the chat."""

from __future__ import annotations

import functools
import re
import signal
import threading
import time

import anyio
import pytest

from aswarm import Agent
from aswarm.repl import run_demo_loop_async
from aswarm.repl._loop import on_interrupt
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.repl.chats import LOOPS, PlainChat, TypedLines, interrupt_when, sent

HINT = "To leave, press Ctrl-C again or Ctrl-D, or type /exit."


@pytest.fixture(params=LOOPS)
def chat(request, monkeypatch, capsys) -> PlainChat:
    return PlainChat(request.param, monkeypatch, capsys)


@pytest.mark.parametrize("stream", [False, True])
def test_ctrl_c_stops_an_answer_and_the_chat_continues(chat, stream):
    """The response is closed, and the next request has what was read of the answer, with a mark, between both messages."""

    def slowly(_) -> ScriptedAnswer:
        interrupt_when(lambda: model.open_streams if stream else len(model.requests))
        return ScriptedAnswer("x" * 10_000, pause=0.01, delay=0 if stream else 60)

    model = ScriptedModel([slowly, "Shorter."], cut=1)
    out = chat(["Tell me all", "Shorter"], Agent(name="Bot"), model, stream=stream).splitlines()
    assert out[-4:] == ["Stopped.", "Shorter", "Bot: Shorter.", ""]
    [asked, (role, stopped), shorter] = sent(model, 1)
    assert (asked, role, shorter) == (("user", "Tell me all"), "assistant", ("user", "Shorter"))
    assert re.fullmatch(r"(x+\n)?\[stopped by the user\]", stopped)
    assert stream or stopped == "[stopped by the user]"


def test_another_message_skips_open_calls(chat):
    """One call was stopped and one never began; the next request says so of each."""
    started, ran = [], []
    out = chat(["Go", "And?"], stopped_between(started, ran), model := two_calls("Well."))
    assert "Stopped. Not run yet: later. /resume runs these calls, another message skips them." in out.splitlines()
    assert [text for role, text in sent(model, 1) if role == "tool"] == [
        "cancelled; its outcome is unknown",
        "not run: interrupted",
    ]
    assert ran == []


def test_resume_runs_open_calls(chat):
    """`/resume` runs the calls that never began, and no call twice."""
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
    """Once, it may be a mistake; the next message is answered."""
    model = ScriptedModel(["Hello!"])
    out = chat([KeyboardInterrupt(), "Hi", KeyboardInterrupt(), "exit"], Agent(name="Bot"), model).splitlines()
    assert out.count(HINT) == 2
    assert "Bot: Hello!" in out


def test_ctrl_c_twice_leaves(chat):
    """Two in a row leave the chat."""
    chat([KeyboardInterrupt(), KeyboardInterrupt(), "never said"], Agent(), ScriptedModel([]))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_at_the_prompt_of_the_async_loop(backend, monkeypatch, capsys):
    """After the first one, the thread in `input` still waits; the second one abandons the thread and returns."""
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
    while not has_shown("never said"):  # the abandoned thread ends here too
        time.sleep(0.001)


# --- the signal -------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_signal_handler_is_set_only_within_the_block():
    """Afterwards the previous handler is set again."""
    before = signal.getsignal(signal.SIGINT)
    called = anyio.Event()
    with on_interrupt(called.set):
        signal.raise_signal(signal.SIGINT)
        with anyio.fail_after(60):
            await called.wait()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.anyio
async def test_a_process_that_ignores_the_signal_still_ignores_it():
    """As a process in the background of a shell does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with on_interrupt(pytest.fail):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_loop_in_another_thread_leaves_signals_alone(monkeypatch, capsys):
    """Only the main thread can set signal handlers."""
    monkeypatch.setattr("builtins.input", TypedLines(["Hi"]))
    loop = functools.partial(run_demo_loop_async, Agent(name="Bot"), client=ScriptedModel(["Hello!"]).client())
    thread = threading.Thread(target=anyio.run, args=[loop])
    thread.start()
    thread.join(120)
    assert "Bot: Hello!" in capsys.readouterr().out
