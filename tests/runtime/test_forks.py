"""Clients and the event loop in a fork, as far as one process can show it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest

from aswarm._blocking.caller import in_callers_thread
from aswarm._blocking.event_loop import EventLoopThread
from aswarm._runtime.backend import PerProcess
from tests.support.blocking.blocking import do


async def answer() -> str:
    return "answer"


Fork = Callable[[], None]


@pytest.fixture
def fork(monkeypatch: pytest.MonkeyPatch) -> Fork:
    """From its call on, this process has another id."""
    ids = iter(range(os.getpid() + 1, os.getpid() + 10))

    def become_child() -> None:
        child = next(ids)
        monkeypatch.setattr(os, "getpid", lambda: child)

    return become_child


def test_one_value_for_each_process(fork: Fork) -> None:
    """A fork makes its own. The inherited value is kept: nothing of it is collected, and so closed."""
    collected: list[str] = []

    class Value:
        def __del__(self) -> None:
            collected.append("collected")

    values = PerProcess(Value)
    first = id(values.get())
    assert id(values.get()) == first
    fork()
    assert id(values.get()) != first
    assert collected == []
    values.pop()
    gc.collect()
    assert collected == ["collected"]
    assert values.pop() is None
    fork()
    assert values.pop() is None
    assert values.get() is values.get()
    assert collected == ["collected"]


def test_a_fork_while_another_thread_makes_the_value(fork: Fork) -> None:
    """The lock that the thread held at that moment does not hold up the child, in which there is no such thread."""
    making, gate = threading.Event(), threading.Event()

    def make() -> str:
        if not making.is_set():
            making.set()
            gate.wait(120)
        return "made"

    values = PerProcess(make)
    thread = threading.Thread(target=values.get)
    thread.start()
    making.wait(120)
    fork()
    assert values.get() == "made"
    assert thread.is_alive()
    gate.set()
    thread.join()


def test_an_event_loop_in_a_fork(monkeypatch: pytest.MonkeyPatch, fork: Fork) -> None:
    """It is not used there, and closing it there does nothing to it: the parent goes on."""
    loop = EventLoopThread()
    assert do(loop, answer) == "answer"
    with monkeypatch.context():
        fork()
        assert not loop.is_usable
        with pytest.raises(RuntimeError, match="not to its fork"):
            do(loop, answer)
        loop.close()
        monkeypatch.undo()
    assert do(loop, answer) == "answer"
    loop.close()


@pytest.mark.parametrize("raises", [False, True])
def test_a_function_that_forks(raises: bool, monkeypatch: pytest.MonkeyPatch, fork: Fork) -> None:
    """In the child, its exception leaves at once; the run is the parent's and does not go on here."""

    def function() -> None:
        fork()
        if raises:
            raise SystemExit(4)

    async def work() -> None:
        await in_callers_thread(function)

    loop = EventLoopThread()
    with pytest.raises(SystemExit if raises else RuntimeError):
        do(loop, work)
    monkeypatch.undo()
    loop.close()
