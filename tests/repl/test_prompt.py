"""The prompt of the terminal: keys, completion, history, the status line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import to_plain_text
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from aswarm import Agent
from aswarm.repl._prompt import Prompt, _LineCompleter, user_history
from aswarm.repl._session import Session

ALT_ENTER, CTRL_C, CTRL_D = "\x1b\r", "\x03", "\x04"


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield keys


def prompt_of(keys: PipeInput, history: Any = None) -> Prompt:
    return Prompt(Session(Agent(name="Triage", functions=[Agent(name="Sales")])), history, keys, DummyOutput())


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("Hi\r", "Hi"),
        ("Hi\n", "Hi"),
        (f"one{ALT_ENTER}two\r", "one\ntwo"),
        ("\x1b[200~one\ntwo\x1b[201~\r", "one\ntwo"),
        (f"a mistake{CTRL_C}Hi\r", "Hi"),
        ("world\x01Hello \r", "Hello world"),
    ],
)
def test_a_line_is_typed(keys, typed, line):
    """Enter sends, Alt-Enter begins a line, pasted lines stay together, Ctrl-C empties, and lines can be edited."""
    keys.send_text(typed)
    assert prompt_of(keys).read() == line


@pytest.mark.parametrize(("typed", "raised"), [(CTRL_C, KeyboardInterrupt), (CTRL_D, EOFError)])
def test_keys_that_end_an_empty_line(keys, typed, raised):
    """Ctrl-C raises KeyboardInterrupt, Ctrl-D raises EOFError."""
    keys.send_text(typed)
    with pytest.raises(raised):
        prompt_of(keys).read()


def test_earlier_lines_come_back(keys):
    """The arrow up brings them, also those of an earlier conversation."""
    prompt = prompt_of(keys, InMemoryHistory(["before"]))
    keys.send_text("Hi\r")
    prompt.read()
    # A task of the prompt loads the history; keys before that would find no lines.
    lines = []
    for typed in ("\x1b[A\r", "\x1b[A\x1b[A\r"):
        keys.send_text(typed)
        lines.append(prompt.read())
    assert lines == ["Hi", "before"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_other_tasks_run_meanwhile(keys, backend):
    """The prompt does not block the event loop."""
    ticks = []

    async def main() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            line = await prompt_of(keys).read_async()
            group.cancel_scope.cancel()
        return line

    async def tick() -> None:
        while True:
            ticks.append(1)
            if len(ticks) == 5:
                keys.send_text("Hi\r")
            await anyio.sleep(0.001)

    assert anyio.run(main, backend=backend) == "Hi"
    assert len(ticks) >= 5


def test_a_prompt_inside_a_running_loop(keys):
    """The blocking loop may be called where an event loop runs; the prompt then has its own thread."""
    keys.send_text("Hi\r")

    async def main() -> str:
        return prompt_of(keys).read()

    assert asyncio.run(main()) == "Hi"


def test_the_status_line(keys):
    """It shows the agent, the model, the messages and the tokens."""
    assert to_plain_text(prompt_of(keys)._status()) == "Triage  gpt-6-luna  0 messages  0 tokens  Alt-Enter: new line"


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("/he", ["help"]),
        ("/re", ["resume", "reset"]),
        ("/agent ", ["Triage", "Sales"]),
        ("/agent S", ["Sales"]),
        ("/save a", ["bc.json"]),
        ("/reset a", []),
        ("/nope a", []),
        ("he", []),
        ("", []),
    ],
)
def test_commands_are_completed(line, completions, tmp_path, monkeypatch):
    """Their names, and their arguments: agents and files."""
    (tmp_path / "abc.json").touch()
    monkeypatch.chdir(tmp_path)
    completer = _LineCompleter(Session(Agent(name="Triage", functions=[Agent(name="Sales")])))
    found = completer.get_completions(Document(line), CompleteEvent())
    assert [completion.text for completion in found] == completions


# --- the file of the history ------------------------------------------------------------------------------------------


def test_lines_are_kept_in_a_private_file(tmp_path, monkeypatch):
    """The file is in the state folder, and only its owner can read it."""
    monkeypatch.delenv("ASWARM_HISTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    user_history().append_string("Hi")
    path = tmp_path / "aswarm" / "history"
    assert "+Hi" in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert list(user_history().load_history_strings()) == ["Hi"]


@pytest.mark.parametrize("named", ["", "~no such user/x", "/dev/null/x"])
def test_without_a_file_the_history_lasts_as_long_as_the_program(named, monkeypatch):
    """The user wants no file, or no file can be made."""
    monkeypatch.setenv("ASWARM_HISTORY", named)
    assert isinstance(user_history(), InMemoryHistory)


def test_a_full_disk_does_not_end_a_conversation(tmp_path, monkeypatch):
    """The typed line is then only in the history of this process."""
    monkeypatch.setenv("ASWARM_HISTORY", str(tmp_path / "history"))
    history = user_history()
    Path(tmp_path / "history").unlink()
    Path(tmp_path / "history").mkdir()
    history.append_string("Hi")
    assert history.get_strings() == ["Hi"]
