"""Chats for the tests of this room."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from tests.support.repl.chats import LOOPS, PlainChat, RichChat


@pytest.fixture(params=LOOPS)
def chat(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> PlainChat:
    """A chat in plain lines, on each loop."""
    return PlainChat(request.param, monkeypatch, capsys)


@pytest.fixture
def rich(monkeypatch: pytest.MonkeyPatch) -> Iterator[RichChat]:
    """A chat in a terminal of 80 by 20."""
    for name, value in {"TERM": "xterm-256color", "ASWARM_HISTORY": "", "COLUMNS": "80", "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    with (
        os.fdopen(theirs) as stdin,
        create_pipe_input() as keys,
        create_app_session(input=keys, output=DummyOutput()),
    ):
        yield RichChat(monkeypatch, keys, stdin)
    os.close(ours)
