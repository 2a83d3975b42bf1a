"""The display of a run: which events, messages and texts it shows, and in which order.

`Display` is the interface. `PlainDisplay` prints lines, for pipes and for terminals without the extra `repl`; `RichDisplay` draws in
a capable terminal. `aswarm run`, `aswarm demo` and the chat use them. A text of a model or a tool must not control the terminal, so
each display makes it safe.
"""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TextIO

from aswarm._values.events import (
    CallWaiting,
    CompletionFinished,
    Event,
    HandedOff,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnStarted,
)
from aswarm._values.json import is_object
from aswarm._values.messages import call_input, call_name, text_of
from aswarm._values.text import clean, counted, has_colours, one_line
from aswarm._values.usage import Usage

BANNER = "Starting Swarm CLI ~~~~:>"
BLUE, PURPLE = "\033[94m", "\033[95m"
END = "\033[0m"


class Display(ABC):
    """Shows runs. `live`: whether to show answers while the model writes them. `details`: whether to show more than the answers.

    The details are the names of agents, calls, results and handoffs.
    """

    def __init__(self, *, live: bool, details: bool = True) -> None:
        self._is_live = live
        self._has_details = details
        self._speaker = ""
        self._has_turn = False  # whether the run has asked a model; until then, its calls are of an earlier run

    def show_event(self, event: Event) -> None:
        match event:
            case TurnStarted(agent=agent):
                self._end_answer()  # a budget may have cut off the last completion
                self._speaker, self._has_turn = agent.name, True
                self._show_turn(agent.name)
            case TextDelta(text) | RefusalDelta(text) if self._is_live:
                self._show_piece(text)
            case ReasoningDelta(text) if self._is_live:
                self._show_reasoning(text)
            case ToolCallDelta():
                self._show_rest()
            case CompletionFinished(message=message, cache_miss=miss):
                self._end_answer()
                self._show_message(self._speaker, message, has_text=not self._is_live)
                if miss is not None and self._has_details:
                    self.show_text(f"  {one_line(miss)}")
            case _ if self._has_details:
                self._show_detail(event)
            case _:
                pass

    def _show_detail(self, event: Event) -> None:
        match event:
            case ToolCallStarted(name=name, arguments=arguments, agent=agent) if not self._has_turn:
                self._show_call(agent.name, one_line(name), formatted(arguments))
            case ToolCallFinished(name=name, content=content, error=error):
                self._show_result(name, content, failed=error is not None)
            case CallWaiting(name=name, reason=reason):
                self._show_result(name, f"waits: {reason}", failed=False)
            case HandedOff(source=source, target=target):
                self._show_handoff(source.name, target.name)
            case _:
                pass

    def show_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Show messages in the same form as during their run."""
        for message in messages:
            text = text_of(message.get("content"))
            match message["role"]:
                case "assistant":
                    self._show_message(answer_of(message)[0], message)
                case "tool":
                    self._show_result(str(message.get("tool_name") or "tool"), text, failed=False)
                case role:
                    self._show_line(f"{role.capitalize()}: {text}")
        self.end_run()

    def _show_message(self, agent: str, message: Mapping[str, Any], *, has_text: bool = True) -> None:
        _, text = answer_of(message)
        if has_text and (text.strip() or not message.get("tool_calls")):
            self._show_answer(agent, text)
        for call in (message.get("tool_calls") or ()) if self._has_details else ():
            self._show_call(agent, one_line(call_name(call)), formatted(call_input(call)))

    def end_run(self) -> None:
        """Finish the unfinished parts of the display. Call this however a run ends."""
        self._end_answer()
        self._has_turn = False

    def show_usage(self, used: Usage) -> None:  # noqa: B027 - optional
        """Show the tokens that a run has used."""

    @abstractmethod
    def greet(self, hint: str) -> None:
        """Show the first lines of a chat. `hint`: a hint for the user, or an empty text."""

    @abstractmethod
    def show_text(self, text: str) -> None:
        """Show a text of aswarm itself. It may have several lines."""

    @abstractmethod
    def show_error(self, text: str) -> None:
        """Show an error on one line."""

    def _show_turn(self, agent: str) -> None:  # noqa: B027 - optional
        """Show that the user waits for an agent."""

    def _show_reasoning(self, piece: str) -> None:  # noqa: B027 - optional
        """Show a piece of a model's reasoning."""

    @abstractmethod
    def _show_piece(self, piece: str) -> None:
        """Show a piece of the speaker's answer."""

    def _show_rest(self) -> None:  # noqa: B027 - optional
        """Show all pieces so far, because a long call may follow."""

    @abstractmethod
    def _end_answer(self) -> None:
        """Finish an answer that was shown in pieces, if there is one."""

    @abstractmethod
    def _show_answer(self, agent: str, text: str) -> None: ...

    @abstractmethod
    def _show_call(self, agent: str, name: str, arguments: str) -> None: ...

    @abstractmethod
    def _show_result(self, name: str, content: str, *, failed: bool) -> None: ...

    @abstractmethod
    def _show_handoff(self, source: str, target: str) -> None: ...

    @abstractmethod
    def _show_line(self, text: str) -> None:
        """Show a message that is neither of an assistant nor of a tool."""


class PrintingError(OSError):
    """An output cannot be written. `strerror` has the reason."""


def write(text: str, stream: TextIO | None = None) -> None:
    """Write to the stream, by default stdout, and flush. A character that its encoding does not have becomes a question mark.

    Raises PrintingError, or BrokenPipeError if the reader has closed the pipe.
    """
    out: TextIO = stream or sys.stdout
    try:
        try:
            out.write(text)
        except UnicodeEncodeError:
            out.write(text.encode(out.encoding, "replace").decode(out.encoding))
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise PrintingError(*error.args) from error


class PlainDisplay(Display):
    """A display that prints a conversation like Swarm, and also the results of tools. In a terminal, names and calls have colours.

    `stdout`: the stream of the answers. `stderr`: the stream of the other lines, by default the same; a name on another stream
    has its own line. `is_raw`: whether answers keep their control characters, for a program that reads them.
    """

    def __init__(
        self,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        *,
        live: bool,
        details: bool = True,
        is_raw: bool = False,
    ) -> None:
        super().__init__(live=live, details=details)
        self._stdout = stdout
        self._stderr = stderr or stdout
        self._is_raw = is_raw
        self._last = ""  # the last character of an unfinished answer

    def greet(self, hint: str) -> None:
        self.show_text(f"{BANNER}\n{hint}".rstrip())

    def show_text(self, text: str) -> None:
        write(clean(text) + "\n", self._stderr)

    _show_line = show_text

    def show_error(self, text: str) -> None:
        self.show_text(one_line(text))

    def _show_piece(self, piece: str) -> None:
        if not self._last:
            self._show_name(self._speaker)
        write(piece if self._is_raw else clean(piece), self._stdout)
        self._last = piece[-1:] or self._last

    def _show_name(self, name: str) -> None:
        if name and self._has_details:
            end = " " if self._stderr is self._stdout else "\n"
            write(self._painted(f"{name}:", BLUE) + end, self._stderr)

    def _end_answer(self) -> None:
        if self._last not in ("", "\n"):
            write("\n", self._stdout)
        self._last = ""

    def _show_answer(self, agent: str, text: str) -> None:
        write(f"{self._painted(agent, BLUE)}: {clean(text)}\n", self._stdout)

    def _show_call(self, agent: str, name: str, arguments: str) -> None:
        write(f"{self._painted(agent, BLUE)}: {self._painted(name, PURPLE)}({arguments})\n", self._stderr)

    def _show_result(self, name: str, content: str, *, failed: bool) -> None:  # noqa: ARG002 - the content shows the failure
        self.show_text(f"  {one_line(name)}: {one_line(content)}")

    def _show_handoff(self, source: str, target: str) -> None:
        self.show_text(f"{one_line(source)} -> {one_line(target)}")

    def _painted(self, text: str, colour: str) -> str:
        return f"{colour}{clean(text)}{END}" if has_colours(self._stderr) else clean(text)


def rich_display(stdout: TextIO, *, live: bool, details: bool = True) -> Display | None:
    """Return a display of rich. Return None if rich is not installed, or if stdout is not a capable terminal."""
    if not (is_capable(stdout) and find_spec("rich")):
        return None
    # Imported here, because rich is of an extra, and its import is slow.
    from ._rich import RichDisplay  # noqa: PLC0415

    return RichDisplay(stdout, live=live, details=details)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal. None is not a terminal."""
    return stream is not None and stream.isatty()


def is_capable(stdout: TextIO | None) -> bool:
    """Return whether stdout is a terminal that can move the cursor and show all characters."""
    encoding = str(getattr(stdout, "encoding", None) or "").lower()
    return is_terminal(stdout) and os.environ.get("TERM") != "dumb" and encoding.replace("-", "").startswith("utf")


# --- texts ---


def usage_text(used: Usage) -> str:
    """Return tokens and requests as a text: "15 tokens (10 in, 5 out), 1 request"."""
    tokens = f"{counted(used.total_tokens, 'token')} ({used.prompt_tokens:,} in, {used.completion_tokens:,} out)"
    return f"{tokens}, {counted(used.requests, 'request')}"


def answer_of(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the agent that wrote an assistant message, and its text or refusal."""
    text = text_of(message.get("content")) or str(message.get("refusal") or "")
    return str(message.get("sender") or "Assistant"), text


def formatted(arguments: str) -> str:
    """Return the arguments of a call, such as `city="Oslo"`. `arguments`: JSON text."""
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not is_object(parsed):
        return one_line(arguments)
    return clean(", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in parsed.items()))
