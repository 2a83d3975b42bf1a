"""Ctrl-C stops an answer and keeps the conversation; at the prompt it leaves when it comes twice."""

from __future__ import annotations

import functools
import signal
import threading
import time

import anyio
import pytest
from talking import LOOPS, Lines, Talk, interrupt_when, sent

from aswarm import Agent
from aswarm.repl import run_demo_loop_async
from aswarm.repl._interrupts import on_interrupt
from aswarm.testing import Answer, ScriptedModel, call

HINT = "Ctrl-C again, Ctrl-D or /exit leaves."


@pytest.fixture(params=LOOPS)
def talk(request, monkeypatch, capsys) -> Talk:
    return Talk(request.param, monkeypatch, capsys)


@pytest.mark.parametrize("stream", [False, True])
def test_ctrl_c_stops_an_answer_and_the_conversation_goes_on(talk, stream):
    """The response is closed, and the next request has both messages of the user."""

    def slowly(_) -> Answer:
        interrupt_when(lambda: model.open_streams if stream else len(model.requests))
        return Answer("x" * 10_000, pause=0.01, delay=0 if stream else 60)

    model = ScriptedModel([slowly, "Shorter."], cut=1)
    out = talk(["Tell me all", "Shorter"], Agent(name="Bot"), model, stream=stream).splitlines()
    assert out[-4:] == ["Stopped.", "Shorter", "Bot: Shorter.", ""]
    assert sent(model, 1) == [("user", "Tell me all"), ("user", "Shorter")]


def test_calls_that_never_ran_are_answered_as_such(talk):
    """One call was stopped, one never began; both are answered when something else is said."""
    started, ran = [], []
    out = talk(["Go", "And?"], stopped_between(started, ran), model := two_calls("Well."))
    assert (
        "Stopped. Not yet run: later. /resume runs what is open, another message leaves it undone." in out.splitlines()
    )
    assert [text for role, text in sent(model, 1) if role == "tool"] == [
        "cancelled; its outcome is unknown",
        "not run: interrupted",
    ]
    assert ran == []


def test_calls_that_never_ran_run_when_the_user_says_so(talk):
    """`/resume` runs what is open, and nothing twice."""
    started, ran = [], []
    out = talk(["Go", "/resume", "/resume"], stopped_between(started, ran), model := two_calls("Done."))
    assert (len(started), ran) == (1, [1])
    assert [line for line in out.splitlines()[-7:] if line] == [
        "/resume",
        "Bot: later()",
        "  later: late",
        "Bot: Done.",
        "/resume",
        "Nothing has stopped; say something.",
    ]
    assert [text for role, text in sent(model, 1) if role == "tool"] == ["cancelled; its outcome is unknown", "late"]


def stopped_between(started: list[int], ran: list[int]) -> Agent:
    """An agent with a function during which Ctrl-C comes, and one that runs after it."""

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


def test_ctrl_c_at_the_prompt_says_how_to_leave(talk):
    """Once is a mistake; what is said afterwards is heard."""
    model = ScriptedModel(["Hello!"])
    out = talk([KeyboardInterrupt(), "Hi", KeyboardInterrupt(), "exit"], Agent(name="Bot"), model).splitlines()
    assert out.count(HINT) == 2
    assert "Bot: Hello!" in out


def test_ctrl_c_twice_leaves(talk):
    """Two in a row."""
    talk([KeyboardInterrupt(), KeyboardInterrupt(), "never said"], Agent(), ScriptedModel([]))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_at_the_prompt_of_the_async_loop(backend, monkeypatch, capsys):
    """The thread that waits in `input` waits on after the first; the second leaves it alone and returns."""
    may_end = threading.Event()
    asked = []

    def waiting() -> str:
        asked.append(1)
        interrupt_when(lambda: True)
        interrupt_when(lambda: HINT in capsys.readouterr().out)
        may_end.wait(10)
        return "never said"

    async def chat() -> None:
        await run_demo_loop_async(Agent(), client=ScriptedModel([]).client())
        may_end.set()

    monkeypatch.setattr("builtins.input", Lines([waiting]))
    anyio.run(chat, backend=backend)
    assert asked == [1]
    while "never said" not in capsys.readouterr().out:  # the thread that was left alone ends here too
        time.sleep(0.001)


# --- the signal -------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_signal_is_ours_only_within_the_block():
    """Afterwards the handler of before is back."""
    before = signal.getsignal(signal.SIGINT)
    called = anyio.Event()
    with on_interrupt(called.set):
        signal.raise_signal(signal.SIGINT)
        with anyio.fail_after(5):
            await called.wait()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.anyio
async def test_a_process_that_ignores_the_signal_goes_on_to():
    """As one in the background of a shell does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with on_interrupt(pytest.fail):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_loop_in_another_thread_leaves_signals_alone(monkeypatch, capsys):
    """Only the main thread may say what they do."""
    monkeypatch.setattr("builtins.input", Lines(["Hi"]))
    chat = functools.partial(run_demo_loop_async, Agent(name="Bot"), client=ScriptedModel(["Hello!"]).client())
    thread = threading.Thread(target=anyio.run, args=[chat])
    thread.start()
    thread.join(10)
    assert "Bot: Hello!" in capsys.readouterr().out
