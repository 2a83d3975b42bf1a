"""Which display a chat has, and what happens to the terminal meanwhile."""

from __future__ import annotations

import io
import os
import pty
import sys
import termios
from collections.abc import Callable, Iterator

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from aswarm import Agent
from aswarm._values.text import how_to_install
from aswarm.repl._loop import display_and_reader
from aswarm.repl._plain import PlainDisplay, PlainReader
from aswarm.repl._prompt import Prompt
from aswarm.repl._rich import Echo, RichDisplay
from aswarm.repl._session import Session


class Tty(io.StringIO):
    """A stream that is a terminal, with an encoding."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def at_terminal(monkeypatch) -> Iterator[Callable[[], Tty]]:
    """Call it to replace stdin and stdout by a capable terminal; it returns that stdout."""

    def replace() -> Tty:  # called in the test, because pytest replaces stdout when a test begins
        monkeypatch.setattr(sys, "stdin", Tty())
        monkeypatch.setattr(sys, "stdout", out := Tty())
        return out

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("ASWARM_HISTORY", "")
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield replace


def chosen() -> tuple[type, type]:
    display, reader = display_and_reader(Session(Agent(name="Bot")), live=True)
    return type(display), type(reader)


def test_a_terminal_has_the_rich_display(at_terminal):
    """It greets with the agent's name and a hint."""
    terminal = at_terminal()
    assert chosen() == (RichDisplay, Prompt)
    assert "You are talking to Bot. /help lists the commands, Ctrl-D leaves." in terminal.getvalue()


@pytest.mark.parametrize("missing", ["rich", "prompt_toolkit"])
def test_without_the_extra_the_lines_are_plain(at_terminal, monkeypatch, missing):
    """The first lines say how to install it."""
    terminal = at_terminal()
    monkeypatch.setitem(sys.modules, missing, None)
    assert chosen() == (PlainDisplay, PlainReader)
    assert how_to_install("repl") in terminal.getvalue()


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_without_a_terminal_the_lines_are_plain(at_terminal, monkeypatch, stream):
    """A pipe on either side is enough; then there is no hint about the extra."""
    terminal = at_terminal()
    monkeypatch.setattr(sys, stream, out := io.StringIO())
    assert chosen() == (PlainDisplay, PlainReader)
    written = out.getvalue() if stream == "stdout" else terminal.getvalue()
    assert written == "Starting Swarm CLI ~~~~:>\n"


def test_a_less_capable_terminal_has_plain_lines(at_terminal, monkeypatch):
    """A terminal with TERM=dumb, or without UTF."""
    at_terminal()
    monkeypatch.setenv("TERM", "dumb")
    assert chosen() == (PlainDisplay, PlainReader)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Tty, "encoding", "cp437")
    assert chosen() == (PlainDisplay, PlainReader)


def test_a_line_typed_at_a_terminal_is_not_printed(at_terminal, monkeypatch):
    """The terminal has echoed it."""
    terminal = at_terminal()
    monkeypatch.setattr("builtins.input", lambda prompt: "Hi")
    assert PlainReader().read() == "Hi"
    assert terminal.getvalue() == ""


def test_the_echo_is_off_while_an_answer_is_shown(monkeypatch):
    """It is restored afterwards; to restore it twice is harmless."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        echo, before = Echo(), termios.tcgetattr(stdin)
        echo.off()
        assert termios.tcgetattr(stdin)[3] == before[3] & ~termios.ECHO
        echo.restore()
        echo.restore()
        assert termios.tcgetattr(stdin) == before
    os.close(ours)
