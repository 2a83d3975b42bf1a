"""How the pieces of a conversation look on a rich console, one under the other. Knows no events and changes nothing."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ._markdown import Said
from ._text import clean, one_line, shortened

_COLOURS = ("bright_blue", "bright_yellow", "bright_cyan", "bright_magenta", "bright_green")
_LINES = 6  # of what a tool has answered
_FOLLOWS = {"text": ("name",), "call": ("name", "call"), "note": ("note",)}  # directly, without a blank line
_ARGUMENTS = 1000  # characters of them


class Page:
    """Prints pieces, with a blank line where the kind of piece changes. Every agent has a colour of its own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colours: dict[str, str] = {}
        self._speaker: str | None = None
        self._last = ""

    def begin(self) -> None:
        """Something new begins: the next speaker is named."""
        self._speaker = None

    def speaker(self, agent: str) -> None:
        """Name who speaks, unless that was the last one to speak."""
        if agent != self._speaker:
            self._line("name", self._named(agent))
        self._speaker = agent

    def text(self, text: str) -> None:
        """A block of Markdown."""
        self._gap("text")
        self._console.print(Said(text))

    def call(self, name: str, arguments: str) -> None:
        """A call of a tool."""
        self._line("call", Text.assemble(("  → ", "dim"), (name, "magenta"), f"({shortened(arguments, _ARGUMENTS)})"))

    def answer(self, name: str, content: str, *, failed: bool) -> None:
        """What a tool has answered, as far as there is room."""
        lines = clean(content).splitlines() or [""]
        shown = [one_line(line) for line in lines[:_LINES]]
        if len(lines) > _LINES:
            shown.append(f"… {len(lines) - _LINES} more lines")
        mark, style = ("✗", "red") if failed else ("←", "dim")
        self._line("call", Text(f"  {mark} {one_line(name)}: " + "\n    ".join(shown), style=style))

    def handoff(self, source: str, target: str) -> None:
        """One agent hands over to another."""
        self._line("call", Text.assemble("  ", self._named(source), " ⇒ ", self._named(target)))

    def note(self, text: str, style: str = "dim") -> None:
        """A text of the loop's own."""
        self._line("note", Text(clean(text), style=style))

    def user(self, text: str) -> None:
        """What the user, or another who is no agent, has said."""
        self.begin()
        self._line("user", Text(clean(text), style="green"))

    def _named(self, agent: str) -> Text:
        colour = self._colours.setdefault(agent, _COLOURS[len(self._colours) % len(_COLOURS)])
        return Text(one_line(agent), style=f"bold {colour}")

    def _line(self, kind: str, line: Text) -> None:
        self._gap(kind)
        self._console.print(line, soft_wrap=False)

    def is_apart(self, kind: str) -> bool:
        """Whether a piece of this kind would have a blank line before it now."""
        return self._last not in _FOLLOWS.get(kind, ())

    def _gap(self, kind: str) -> None:
        if self.is_apart(kind):
            self._console.print()
        self._last = kind
