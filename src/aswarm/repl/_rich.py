"""The face for a terminal that can do more: colours, Markdown, answers that grow in place, by rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

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
from aswarm._usage import Usage

from ._live import Stage
from ._markdown import Blocks
from ._page import Page
from ._text import BANNER, clean, one_line, usage_text, written_calls


class RichFace:
    """Shows a conversation on a rich console. `live`: answers are shown as they come."""

    def __init__(self, console: Console, *, live: bool) -> None:
        self._console = console
        self._is_live = live
        self._page = Page(console)
        self._stage = Stage(console)
        self._blocks = Blocks()
        self._speaker = ""

    def greet(self, hint: str) -> None:
        """The first lines."""
        self._page.note(BANNER, "bold yellow")
        self._page.note(hint)

    def show(self, event: Event) -> None:
        """One event of a run."""
        match event:
            case TurnStarted(agent=agent):
                self._speaker = agent.name
                self._stage.wait(one_line(agent.name, 40))
            case TextDelta(text) | RefusalDelta(text) if self._is_live:
                self._grow(clean(text))
            case ReasoningDelta(text) if self._is_live:
                self._stage.think(clean(text))
            case CompletionFinished(message=message):
                self._finish(message)
            case ToolCallFinished(name=name, content=content, error=error):
                self._page.answer(name, content, failed=error is not None)
            case HandedOff(source=source, target=target):
                self._page.handoff(source.name, target.name)
            case _:
                pass

    def _grow(self, piece: str) -> None:
        self._stage.end_waiting()
        finished = self._blocks.feed(piece)
        with self._console:  # written at once, so that nothing is seen twice or missing meanwhile
            self._page.speaker(self._speaker)
            for block in finished:
                self._page.text(block)
            self._stage.grow(self._blocks.rest, apart=self._page.is_apart("text"), now=bool(finished))

    def _finish(self, message: Mapping[str, Any]) -> None:
        self._flush()
        if not self._is_live:
            self._text(self._speaker, message)
        self.calls(self._speaker, message)

    def _flush(self) -> None:
        self._stage.clear()
        rest, self._blocks = self._blocks.rest, Blocks()
        if rest.strip():
            self._page.text(rest)

    def calls(self, agent: str, message: Mapping[str, Any]) -> None:
        """The calls of a message."""
        for name, arguments in written_calls(message):
            self._page.speaker(agent)
            self._page.call(name, arguments)

    def _text(self, agent: str, message: Mapping[str, Any]) -> None:
        text = text_of(message.get("content")) or str(message.get("refusal") or "")
        if text.strip():
            self._page.speaker(agent)
            self._page.text(clean(text))

    def settle(self) -> None:
        """Print what an answer that has not ended has said, and begin anew."""
        self._flush()
        self._page.begin()

    def usage(self, used: Usage) -> None:
        """One line under the answer."""
        self._page.note(usage_text(used))

    def say(self, text: str) -> None:
        """A text, dim."""
        self._page.note(text)

    def complain(self, text: str) -> None:
        """One line, red."""
        self._page.note(one_line(text), "red")

    def history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Messages as they looked when they came."""
        for message in messages:
            match message["role"]:
                case "assistant":
                    agent = str(message.get("sender") or "Assistant")
                    self._text(agent, message)
                    self.calls(agent, message)
                case "tool":
                    self._page.answer(
                        str(message.get("tool_name") or "tool"), text_of(message["content"]), failed=False
                    )
                case role:
                    self._page.user(f"{role.capitalize()}: {text_of(message.get('content'))}")
        self._page.begin()
