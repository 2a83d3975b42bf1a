"""The reader for a terminal: a prompt of prompt_toolkit, with editing, a history, completion and a status line.

`Prompt` only reads lines; `Chat` processes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import sniffio
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from aswarm._values.text import counted, one_line

from ._chat import COMMANDS
from ._reader import LineThread
from ._session import Session

_STYLE = Style.from_dict({"user": "bold ansigreen", "bottom-toolbar": "noreverse ansibrightblack"})


class Prompt:
    """A prompt for a text of one or more lines.

    Enter sends the text, Alt-Enter starts a new line, and pasted lines stay together. Ctrl-C empties the text; if it is already
    empty, Ctrl-C raises KeyboardInterrupt. Ctrl-X Ctrl-E opens the text in `$EDITOR`. `history`: texts of earlier conversations.
    """

    def __init__(self, session: Session, history: History) -> None:
        self._session = session
        self._prompt: PromptSession[str] = PromptSession(
            [("class:user", "User: ")],
            history=history,
            completer=_LineCompleter(session),
            auto_suggest=AutoSuggestFromHistory(),
            key_bindings=_key_bindings(),
            multiline=True,
            prompt_continuation="      ",
            placeholder=[("ansibrightblack", "a message, or /help")],
            bottom_toolbar=self._status,
            style=_STYLE,
            enable_open_in_editor=True,
            enable_suspend=True,
        )
        self._thread = LineThread(self._prompt.prompt)

    def read(self) -> str:
        # A prompt needs its own event loop. If this thread already runs an event loop, the prompt runs in another thread.
        try:
            has_loop = bool(sniffio.current_async_library())
        except sniffio.AsyncLibraryNotFoundError:
            has_loop = False
        return self._prompt.prompt(in_thread=has_loop)

    async def read_async(self) -> str:
        """Return the next text. Other tasks run while the user types."""
        if sniffio.current_async_library() == "asyncio":
            return await self._prompt.prompt_async()
        # prompt_toolkit supports only asyncio.
        return await self._thread.line()

    def _status(self) -> StyleAndTextTuples:
        session = self._session
        parts = [
            one_line(session.agent.name, 40),
            one_line(session.agent.model, 40),
            counted(len(session.history), "message"),
            counted(session.usage.total_tokens, "token"),
            "Alt-Enter: new line",
        ]
        return [("", "  ".join(parts))]


def user_history() -> History:
    """Return the history of the user, which is in a private file. ASWARM_HISTORY is the path; if it is empty, there is no file."""
    default = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state", "aswarm", "history")
    named = os.environ.get("ASWARM_HISTORY", str(default))
    if not named:
        return InMemoryHistory()
    with suppress(OSError, RuntimeError):
        path = Path(named).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        return _FileHistory(path)
    return InMemoryHistory()


class _FileHistory(FileHistory):
    """A history that ignores write errors: a full disk does not end a conversation."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


class _LineCompleter(Completer):
    """Completes the commands and their arguments."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        line = document.text_before_cursor
        name, space, argument = line[1:].partition(" ")
        if not line.startswith("/"):
            return
        if not space:
            for command_name, command in COMMANDS.items():
                if command_name.startswith(name):
                    yield Completion(command_name, -len(name), display_meta=command.help)
        elif name == "agent":
            yield from (Completion(a, -len(argument)) for a in self._session.agents if a.startswith(argument))
        elif name in COMMANDS and COMMANDS[name].names_conversation and not self._session.has_store:
            yield from self._paths.get_completions(Document(argument), complete_event)


def _key_bindings() -> KeyBindings:
    keys = KeyBindings()
    at_prompt = has_focus(DEFAULT_BUFFER)  # and not in a search of the history

    @keys.add("enter", filter=at_prompt)
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=at_prompt)
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c", filter=at_prompt)
    @keys.add("<sigint>")
    def _interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys
