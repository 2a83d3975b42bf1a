"""Which face a conversation gets, and what is done to the terminal meanwhile."""

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
from aswarm.repl._choice import face_and_reader
from aswarm.repl._keys import Keys
from aswarm.repl._plain import PlainFace, PlainReader
from aswarm.repl._prompt import Prompt
from aswarm.repl._rich import RichFace
from aswarm.repl._session import Session


class Tty(io.StringIO):
    """A stream that is a terminal; `encoding` is what it takes."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def sits(monkeypatch) -> Iterator[Callable[[], Tty]]:
    """Call it to sit at a terminal that can do everything; it returns what shows what is written there."""

    def sit() -> Tty:  # in the test, for pytest sets stdout anew when one begins
        monkeypatch.setattr(sys, "stdin", Tty())
        monkeypatch.setattr(sys, "stdout", out := Tty())
        return out

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("ASWARM_HISTORY", "")
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield sit


def chosen() -> tuple[type, type]:
    face, reader = face_and_reader(Session(Agent(name="Bot")), live=True)
    return type(face), type(reader)


def test_a_terminal_has_the_rich_face(sits):
    """It greets with the agent's name and what one may want to know."""
    terminal = sits()
    assert chosen() == (RichFace, Prompt)
    assert "Bot listens. /help shows the commands, Ctrl-D leaves." in terminal.getvalue()


@pytest.mark.parametrize("missing", ["rich", "prompt_toolkit"])
def test_without_the_extra_the_lines_are_plain(sits, monkeypatch, missing):
    """And say how to get the other face."""
    terminal = sits()
    monkeypatch.setitem(sys.modules, missing, None)
    assert chosen() == (PlainFace, PlainReader)
    assert 'pip install "aswarm[repl]"' in terminal.getvalue()


@pytest.mark.parametrize("stream", ["stdin", "stdout"])
def test_where_nobody_sits_the_lines_are_plain(sits, monkeypatch, stream):
    """A pipe on either side is enough; nothing is advertised then."""
    terminal = sits()
    monkeypatch.setattr(sys, stream, out := io.StringIO())
    assert chosen() == (PlainFace, PlainReader)
    written = out.getvalue() if stream == "stdout" else terminal.getvalue()
    assert written == "Starting Swarm CLI ~~~~:>\n"


def test_a_terminal_that_can_do_little_has_plain_lines(sits, monkeypatch):
    """One that says it is dumb, or whose encoding has no box to draw with."""
    sits()
    monkeypatch.setenv("TERM", "dumb")
    assert chosen() == (PlainFace, PlainReader)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Tty, "encoding", "cp437")
    assert chosen() == (PlainFace, PlainReader)


def test_what_is_typed_in_a_terminal_is_not_written_again(sits, monkeypatch):
    """The terminal echoes it."""
    terminal = sits()
    monkeypatch.setattr("builtins.input", lambda prompt: "Hi")
    assert PlainReader().read() == "Hi"
    assert terminal.getvalue() == ""


def test_the_echo_is_off_while_an_answer_is_shown(monkeypatch):
    """And back afterwards; restoring twice is harmless."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        keys, before = Keys(), termios.tcgetattr(stdin)
        keys.hush()
        assert termios.tcgetattr(stdin)[3] == before[3] & ~termios.ECHO
        keys.restore()
        keys.restore()
        assert termios.tcgetattr(stdin) == before
    os.close(ours)
