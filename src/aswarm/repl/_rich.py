"""The display for a capable terminal, with rich: colours, Markdown, and answers that grow in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from aswarm._events import (
    CompletionFinished,
    Event,
    HandedOff,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallFinished,
    TurnStarted,
)
from aswarm._messages import text_of
from aswarm._text import clean, counted, one_line, shortened
from aswarm._usage import Usage

from ._live import LiveArea
from ._markdown import Blocks, MarkdownText
from ._text import BANNER, formatted_calls, usage_text

_COLOURS = ("bright_blue", "bright_yellow", "bright_cyan", "bright_magenta", "bright_green")
_RESULT_LINES = 6  # of a tool's result that are shown
_ARGUMENTS = 1000  # characters of a call's arguments that are shown
_FOLLOWS = {"text": ("name",), "call": ("name", "call"), "note": ("note",)}  # directly, without a blank line


class RichDisplay:
    """Shows a conversation on a rich console. `live`: show answers while the model writes them."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._is_live = live
        self._transcript = Transcript(console)
        self._live_area = LiveArea(console)
        self._blocks = Blocks()
        self._speaker = ""

    def greet(self, hint: str) -> None:
        """Print the first lines."""
        self._transcript.note(BANNER, "bold yellow")
        self._transcript.note(hint)

    def show_event(self, event: Event) -> None:
        """Show an event of a run."""
        match event:
            case TurnStarted(agent=agent):
                self._speaker = agent.name
                self._live_area.show_spinner(one_line(agent.name, 40))
            case TextDelta(text) | RefusalDelta(text) if self._is_live:
                self._show_piece(clean(text))
            case ReasoningDelta(text) if self._is_live:
                self._live_area.show_reasoning(clean(text))
            case CompletionFinished(message=message):
                self._show_completion(message)
            case ToolCallFinished(name=name, content=content, error=error):
                self._transcript.tool_result(name, content, failed=error is not None)
            case HandedOff(source=source, target=target):
                self._transcript.handoff(source.name, target.name)
            case _:
                pass

    def _show_piece(self, piece: str) -> None:
        self._live_area.remove_spinner()
        finished = self._blocks.feed(piece)
        with self._console:  # one write for all, so that no text is shown twice or missing in between
            self._transcript.speaker(self._speaker)
            for block in finished:
                self._transcript.text(block)
            blank_line = self._transcript.needs_blank_line("text")
            self._live_area.show_markdown(self._blocks.rest, blank_line=blank_line, immediately=bool(finished))

    def _show_completion(self, message: Mapping[str, Any]) -> None:
        self._print_rest()
        if not self._is_live:
            self._print_text(self._speaker, message)
        self.show_calls(self._speaker, message)

    def _print_rest(self) -> None:
        self._live_area.clear()
        rest, self._blocks = self._blocks.rest, Blocks()
        if rest.strip():
            self._transcript.text(rest)

    def show_calls(self, agent: str, message: Mapping[str, Any]) -> None:
        """Print the calls of a message."""
        for name, arguments in formatted_calls(message):
            self._transcript.speaker(agent)
            self._transcript.call(name, arguments)

    def _print_text(self, agent: str, message: Mapping[str, Any]) -> None:
        text = text_of(message.get("content")) or str(message.get("refusal") or "")
        if text.strip():
            self._transcript.speaker(agent)
            self._transcript.text(clean(text))

    def end_run(self) -> None:
        """Print the rest of an unfinished answer."""
        self._print_rest()
        self._transcript.forget_speaker()

    def show_usage(self, used: Usage) -> None:
        """Print one line below the answer."""
        self._transcript.note(usage_text(used))

    def show_text(self, text: str) -> None:
        """Print a dim text."""
        self._transcript.note(text)

    def show_error(self, text: str) -> None:
        """Print one red line."""
        self._transcript.note(one_line(text), "red")

    def show_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Print messages as they looked during the run."""
        for message in messages:
            match message["role"]:
                case "assistant":
                    agent = str(message.get("sender") or "Assistant")
                    self._print_text(agent, message)
                    self.show_calls(agent, message)
                case "tool":
                    name = str(message.get("tool_name") or "tool")
                    self._transcript.tool_result(name, text_of(message["content"]), failed=False)
                case role:
                    self._transcript.user(f"{role.capitalize()}: {text_of(message.get('content'))}")
        self._transcript.forget_speaker()


class Transcript:
    """Prints the pieces of a conversation, with a blank line where the kind of piece changes.

    Each agent has its own colour.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colours: dict[str, str] = {}
        self._speaker: str | None = None
        self._last_kind = ""

    def forget_speaker(self) -> None:
        """Name the next speaker again, also if it is the same one."""
        self._speaker = None

    def speaker(self, agent: str) -> None:
        """Print the name of the agent whose pieces follow, unless it was the last speaker."""
        if agent != self._speaker:
            self._print("name", self._coloured(agent))
        self._speaker = agent

    def text(self, text: str) -> None:
        """Print a block of Markdown."""
        self._separate("text")
        self._console.print(MarkdownText(text))

    def call(self, name: str, arguments: str) -> None:
        """Print a call of a tool."""
        self._print("call", Text.assemble(("  → ", "dim"), (name, "magenta"), f"({shortened(arguments, _ARGUMENTS)})"))

    def tool_result(self, name: str, content: str, *, failed: bool) -> None:
        """Print the first lines of a tool's result."""
        lines = clean(content).splitlines() or [""]
        shown = [one_line(line) for line in lines[:_RESULT_LINES]]
        if len(lines) > _RESULT_LINES:
            shown.append(f"… {counted(len(lines) - _RESULT_LINES, 'more line')}")
        mark, style = ("✗", "red") if failed else ("←", "dim")
        self._print("call", Text(f"  {mark} {one_line(name)}: " + "\n    ".join(shown), style=style))

    def handoff(self, source: str, target: str) -> None:
        """Print that one agent hands off to another."""
        self._print("call", Text.assemble("  ", self._coloured(source), " ⇒ ", self._coloured(target)))

    def note(self, text: str, style: str = "dim") -> None:
        """Print a text of the chat itself."""
        self._print("note", Text(clean(text), style=style))

    def user(self, text: str) -> None:
        """Print a message of the user, or of another role that is no agent."""
        self.forget_speaker()
        self._print("user", Text(clean(text), style="green"))

    def needs_blank_line(self, kind: str) -> bool:
        """Whether there would be a blank line before a piece of this kind."""
        return self._last_kind not in _FOLLOWS.get(kind, ())

    def _coloured(self, agent: str) -> Text:
        colour = self._colours.setdefault(agent, _COLOURS[len(self._colours) % len(_COLOURS)])
        return Text(one_line(agent), style=f"bold {colour}")

    def _print(self, kind: str, line: Text) -> None:
        self._separate(kind)
        self._console.print(line, soft_wrap=False)

    def _separate(self, kind: str) -> None:
        if self.needs_blank_line(kind):
            self._console.print()
        self._last_kind = kind
