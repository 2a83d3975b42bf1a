"""Chats in tests: the messages of a short chat, and chats in plain lines and in a terminal."""

from __future__ import annotations

import builtins
import functools
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from prompt_toolkit.input import PipeInput

from aswarm import Agent
from aswarm.repl import run_demo_loop, run_demo_loop_async
from aswarm.testing import ScriptedModel, check_history
from tests.support.repl.screen import Screen

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello!", "sender": "Bot", "tool_calls": None}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
ASKING = {"role": "assistant", "content": None, "sender": "Bot", "tool_calls": [CALL]}

LOOPS = ("blocking", "asyncio", "trio")
Line = str | BaseException | Callable[[], str]


@dataclass
class PlainChat:
    """A chat with the blocking loop, or with the async loop on one of the backends. A call returns the output."""

    loop: str
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, lines: Iterable[Line], agent: Agent, model: ScriptedModel | None, **options: Any) -> str:
        self.monkeypatch.setattr(builtins, "input", TypedLines(lines))
        client = None if model is None else model.client()
        if self.loop == "blocking":
            run_demo_loop(agent, client=client, **options)
        else:
            anyio.run(functools.partial(run_demo_loop_async, agent, client=client, **options), backend=self.loop)
        if model is not None:
            assert not model.open_streams
            for request in model.requests:
                check_history(request.messages)
        return self.capsys.readouterr().out


class TypedLines:
    """Replaces `input`: returns the lines, raises the exceptions, and raises EOFError after the last one."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = iter(lines)

    def __call__(self, prompt: str = "") -> str:
        line = next(self._lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line if isinstance(line, str) else line()


def interrupt_when(condition: Callable[[], object]) -> None:
    """Send this process SIGINT, as Ctrl-C does, when the condition is true."""

    def wait() -> None:
        while not condition():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def sent(model: ScriptedModel, number: int) -> list[tuple[str, Any]]:
    """Return the roles and contents of the messages in a request, without the system message."""
    return [(message["role"], message.get("content")) for message in model.requests[number].messages[1:]]


class Tty(io.StringIO):
    """A stream that is a terminal, with an encoding."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@dataclass
class RichChat:
    """A chat of the blocking loop in a terminal in memory. A call returns the lines on the screen, without the first lines."""

    monkeypatch: pytest.MonkeyPatch
    keys: PipeInput
    stdin: Any
    stdout: Tty = field(default_factory=Tty)

    def __call__(
        self, lines: Iterable[str], agent: Agent, model: Any, *, stream: bool = True, **options: Any
    ) -> list[str]:
        self.type(*lines)
        run_demo_loop(
            agent, client=model.client() if isinstance(model, ScriptedModel) else model, stream=stream, **options
        )
        assert "Ctrl-D leaves." in self.stdout.getvalue()
        return self.seen

    def type(self, *lines: str) -> None:
        """Type the lines, and Ctrl-D. Replaces stdin and stdout in the test, because pytest replaces stdout when a test starts."""
        self.monkeypatch.setattr(sys, "stdin", self.stdin)
        self.monkeypatch.setattr(sys, "stdout", self.stdout)
        self.keys.send_text("".join(f"{line}\r" for line in lines) + "\x04")

    @property
    def seen(self) -> list[str]:
        """The lines on the screen now, without the first lines."""
        screen = Screen(80)
        screen.feed(self.stdout.getvalue().replace("\n", "\r\n"))
        return screen.text.partition("Ctrl-D leaves.\n")[2].splitlines()
