"""The prompt of the terminal: keys, completion, history, the status line."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.application.current import get_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.output import DummyOutput

from aswarm import Agent
from aswarm.repl import run_demo_loop, run_demo_loop_async
from aswarm.testing import ScriptedModel
from tests.support.repl.chats import sent

ALT_ENTER, CTRL_C = "\x1b\r", "\x03"
TRIAGE = Agent(name="Triage", functions=[Agent(name="Sales")])


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("Hi", "Hi"),
        ("Hi\n", "Hi"),
        (f"one{ALT_ENTER}two", "one\ntwo"),
        ("\x1b[200~one\ntwo\x1b[201~", "one\ntwo"),
        (f"a mistake{CTRL_C}Hi", "Hi"),
        ("world\x01Hello ", "Hello world"),
    ],
)
def test_a_line_is_typed(rich, typed, line):
    """Enter sends, Alt-Enter starts a line, pasted lines stay together, Ctrl-C empties, and lines can be edited."""
    rich([typed], TRIAGE, model := ScriptedModel(["Hello!"]))
    assert sent(model, 0) == [("user", line)]


def test_ctrl_c_in_an_empty_line_shows_how_to_leave(rich):
    """Ctrl-C in an empty line is a hint, and a second Ctrl-C leaves."""
    rich.type(f"{CTRL_C}{CTRL_C}never sent")
    run_demo_loop(TRIAGE, client=ScriptedModel([]).client())
    assert rich.seen[-1].startswith("To leave, press Ctrl-C again")


def test_earlier_lines_come_back(rich, tmp_path, monkeypatch):
    """The arrow up brings earlier lines, also of an earlier conversation."""
    (tmp_path / "history").write_text("\n# 2026-01-01\n+before\n")
    monkeypatch.setenv("ASWARM_HISTORY", str(tmp_path / "history"))
    typed = iter(["\x1b[A\r", "\x1b[A\x1b[A\r", "\x04"])

    def answer(_: Any) -> str:
        threading.Timer(0.2, rich.keys.send_text, [next(typed)]).start()  # a task of the next prompt loads the history
        return "Hello!"

    rich.monkeypatch.setattr("sys.stdin", rich.stdin)
    rich.monkeypatch.setattr("sys.stdout", rich.stdout)
    rich.keys.send_text("Hi\r")
    model = ScriptedModel(answer)
    run_demo_loop(TRIAGE, client=model.client())
    assert [sent(model, number)[-1] for number in range(3)] == [("user", "Hi"), ("user", "Hi"), ("user", "before")]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_other_tasks_run_meanwhile(rich, backend):
    """The prompt of the async loop does not block the event loop."""
    ticks = []
    model = ScriptedModel(["Hello!"])

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await run_demo_loop_async(TRIAGE, client=model.client())
            group.cancel_scope.cancel()

    async def tick() -> None:
        while True:
            ticks.append(1)
            if len(ticks) == 5:
                rich.type("Hi")
            await anyio.sleep(0.001)

    rich.monkeypatch.setattr("sys.stdin", rich.stdin)
    rich.monkeypatch.setattr("sys.stdout", rich.stdout)
    anyio.run(main, backend=backend)
    assert sent(model, 0) == [("user", "Hi")]


def test_a_prompt_inside_a_running_loop(rich):
    """The blocking loop may be called in an event loop."""

    async def main() -> None:
        rich(["Hi"], TRIAGE, model)

    model = ScriptedModel(["Hello!"])
    asyncio.run(main())
    assert sent(model, 0) == [("user", "Hi")]


def test_the_status_line(rich):
    """The status line has the agent, the model, the messages and the tokens."""
    written: list[str] = []

    class Recording(DummyOutput):
        def write(self, data: str) -> None:
            written.append(data)

    with create_app_session(input=rich.keys, output=Recording()):
        rich([], TRIAGE, ScriptedModel([]))
    assert "Triage  gpt-6-luna  0 messages  0 tokens  Alt-Enter: new line" in "".join(written)


def test_commands_are_completed(rich, tmp_path, monkeypatch):
    """Names of commands, and their arguments, such as agents and files, are completed."""
    (tmp_path / "abc.json").touch()
    monkeypatch.chdir(tmp_path)
    expected = {
        "/he": ["help"],
        "/re": ["resume", "reset"],
        "/agent ": ["Triage", "Sales"],
        "/agent S": ["Sales"],
        "/save a": ["bc.json"],
        "/reset a": [],
        "/nope a": [],
        "he": [],
        "": [],
    }
    found: dict[str, list[str]] = {}
    session = get_app_session()

    def complete() -> None:
        while session.app is None or not session.app.is_running:
            time.sleep(0.001)
        completer = session.app.current_buffer.completer
        for line in expected:
            found[line] = [each.text for each in completer.get_completions(Document(line), CompleteEvent())]
        rich.keys.send_text("\x04")

    rich.monkeypatch.setattr("sys.stdin", rich.stdin)
    rich.monkeypatch.setattr("sys.stdout", rich.stdout)
    thread = threading.Thread(target=complete)
    thread.start()
    run_demo_loop(TRIAGE, client=ScriptedModel([]).client())
    thread.join()
    assert found == expected


# --- the file of the history ------------------------------------------------------------------------------------------


def test_lines_are_kept_in_a_private_file(rich, tmp_path, monkeypatch):
    """The file is in the state folder, and only its owner can read it."""
    monkeypatch.delenv("ASWARM_HISTORY")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rich(["Hi"], TRIAGE, ScriptedModel(["Hello!"]))
    path = tmp_path / "aswarm" / "history"
    assert "+Hi" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("named", ["", "~no such user/x", "/dev/null/x"])
def test_without_a_file_the_history_lasts_as_long_as_the_program(rich, named, monkeypatch):
    """A chat runs without the file, if the user wants no file or no file can be made."""
    monkeypatch.setenv("ASWARM_HISTORY", named)
    assert "Hello!" in rich(["Hi"], TRIAGE, ScriptedModel(["Hello!"]))


def test_a_full_disk_does_not_stop_a_chat(rich, tmp_path, monkeypatch):
    """A chat continues if the file of the history cannot be written."""
    path = Path(tmp_path / "history")
    monkeypatch.setenv("ASWARM_HISTORY", str(path))

    def answer(_: Any) -> str:
        if path.is_file():
            path.unlink()
            path.mkdir()
        return "Hello!"

    rich(["Hi", "Ho"], TRIAGE, model := ScriptedModel(answer))
    assert len(model.requests) == 2
