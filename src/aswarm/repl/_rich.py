"""The display of rich for a capable terminal: colours, Markdown, and answers that grow while the model writes them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, TextIO

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

from aswarm._values.text import clean, counted, one_line, shortened
from aswarm._values.usage import Usage

from ._display import BANNER, Display, is_terminal, usage_text
from ._reader import termios

_SMALL = 4096  # up to this number of characters, an unfinished block is parsed again at each line
_GROWTH = 1.25  # a larger block is parsed again after it has grown by this factor, so that the cost stays linear


def _parser() -> MarkdownIt:
    # Without reference links. The definition of such a link may be in a later block, and a definition is not shown itself.
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")


class Blocks:
    """Splits a text that arrives in pieces into blocks: a paragraph, a list, a table, a piece of code.

    `rest`: the text of the unfinished block. The whole text is all blocks and `rest`, joined.
    """

    def __init__(self) -> None:
        self.rest = ""
        self._parsed = 0  # number of characters of `rest` that were parsed without finding a finished block
        self._parser = _parser()
        self._parser.core.ruler.enableOnly(["normalize", "block"])  # find the blocks, and do not parse their content

    def feed(self, piece: str) -> list[str]:
        """Add a piece. Returns the finished blocks. A block is finished when another block follows it."""
        self.rest += piece
        if "\n" not in piece:
            return []
        # Only complete lines, because an unfinished line may still become any kind of block.
        complete = self.rest[: self.rest.rindex("\n") + 1]
        if _SMALL < len(complete) < self._parsed * _GROWTH:
            return []
        lines = [0, *(position + 1 for position, character in enumerate(complete) if character == "\n")]
        starts = [lines[token.map[0]] for token in self._parser.parse(complete) if token.level == 0 and token.map]
        finished = [self.rest[begin:end] for begin, end in pairwise([0, *starts[1:]])]
        self.rest = self.rest[sum(map(len, finished)) :]
        self._parsed = 0 if finished else len(complete)
        return finished


class MarkdownText:
    """A Markdown text for rich. It shows the address of each link, so that a link cannot hide its target."""

    def __init__(self, text: str) -> None:
        tokens = _parser().parse(text)
        _keep_line_ends(tokens)
        starts = [position for position, token in enumerate(tokens) if token.level == 0 and token.nesting >= 0]
        self._blocks = [_Markdown(tokens[begin:end]) for begin, end in pairwise([*starts, len(tokens)])]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show the blocks with one blank line between them. Rich itself shows two blank lines around lists, tables and code."""
        for position, block in enumerate(self._blocks):
            if position:
                yield Segment.line()
            for line in _filled(console.render_lines(block, options, pad=False)):
                yield from line
                yield Segment.line()


def _filled(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Return the lines without blank lines at the start and the end, and without spaces at the ends of lines."""
    bare = [_bare(line) for line in lines]
    filled = [position for position, line in enumerate(bare) if line]
    return bare[filled[0] : filled[-1] + 1] if filled else []


def _bare(line: list[Segment]) -> list[Segment]:
    end = len(line)
    while end and not line[end - 1].text.strip():
        end -= 1
    return [*line[: end - 1], Segment(line[end - 1].text.rstrip(), line[end - 1].style)] if end else []


class _Heading(Heading):
    """A heading that is on the left. Rich itself centres it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    """Markdown of rich, from parsed tokens. Code has the terminal's own colours, which fit its background."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = tokens


def _keep_line_ends(tokens: Sequence[Token]) -> None:
    for token in tokens:
        if token.type == "softbreak":
            token.type = "hardbreak"
        _keep_line_ends(token.children or ())


class MarkdownTail:
    """The end of an unfinished text: as much as fits on the screen.

    A text larger than the screen is shown plain, because rendering it many times a second is too slow.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(options.size.height - 2, 1)  # the other two lines have the speaker's name and the cursor
        lines = self._text.split("\n")[-room:]
        small = len(self._text) <= room * options.max_width and len(lines) == self._text.count("\n") + 1
        shown = MarkdownText(self._text) if small else Text("\n".join(lines)[-room * options.max_width :])
        for line in console.render_lines(shown, options, pad=False)[-room:]:
            yield from line
            yield Segment.line()


_COLOURS = ("bright_blue", "bright_yellow", "bright_cyan", "bright_magenta", "bright_green")
_RESULT_LINES = 6  # at most this number of lines of a tool's result is shown
_ARGUMENTS = 1000  # at most this number of characters of a call's arguments is shown
# For each kind of piece, the kinds after which such a piece needs no blank line.
_FOLLOWS = {"text": ("name",), "call": ("name", "call"), "note": ("note",)}
_REASONING = 400  # the last characters of a model's reasoning that are shown
_REST = 4.0  # after a refresh that took n seconds, the next refresh comes at least 4 * n seconds later


class RichDisplay(Display):
    """A display in a terminal, with rich. Each agent has its own colour. A blank line separates pieces of different kinds."""

    def __init__(self, stdout: TextIO, *, live: bool, details: bool = True) -> None:
        super().__init__(live=live, details=details)
        self._console = Console(file=stdout, highlight=False)
        self._live_area = LiveArea(self._console)
        self._blocks = Blocks()
        self._colours: dict[str, str] = {}
        self._named: str | None = None  # the last printed name; None if the next name must be printed in any case
        self._last_kind = ""

    def greet(self, hint: str) -> None:
        self._print("note", Text(BANNER, style="bold yellow"))
        self.show_text(hint)

    def show_text(self, text: str) -> None:
        self._print("note", Text(clean(text), style="dim"))

    def show_error(self, text: str) -> None:
        self._print("note", Text(one_line(text), style="red"))

    def show_usage(self, used: Usage) -> None:
        self.show_text(usage_text(used))

    def end_run(self) -> None:
        super().end_run()
        self._named = None

    def _show_turn(self, agent: str) -> None:
        self._live_area.show_spinner(one_line(agent, 40))

    def _show_reasoning(self, piece: str) -> None:
        self._live_area.show_reasoning(clean(piece))

    def _show_piece(self, piece: str) -> None:
        self._live_area.remove_spinner()
        finished = self._blocks.feed(clean(piece))
        with self._console:  # writes everything at once, so that the screen never shows a text twice or not at all
            self._name(self._speaker)
            for block in finished:
                self._print_markdown(block)
            blank_line = self._needs_blank_line("text")
            self._live_area.show_markdown(self._blocks.rest, blank_line=blank_line, immediately=bool(finished))

    def _show_rest(self) -> None:
        self._live_area.refresh()

    def _end_answer(self) -> None:
        self._live_area.clear()
        rest, self._blocks = self._blocks.rest, Blocks()
        if rest.strip():
            self._print_markdown(rest)

    def _show_answer(self, agent: str, text: str) -> None:
        if text.strip():
            self._name(agent)
            self._print_markdown(clean(text))

    def _show_call(self, agent: str, name: str, arguments: str) -> None:
        self._name(agent)
        self._print("call", Text.assemble(("  → ", "dim"), (name, "magenta"), f"({shortened(arguments, _ARGUMENTS)})"))

    def _show_result(self, name: str, content: str, *, failed: bool) -> None:
        lines = clean(content).splitlines() or [""]
        shown = [one_line(line) for line in lines[:_RESULT_LINES]]
        if len(lines) > _RESULT_LINES:
            shown.append(f"… {counted(len(lines) - _RESULT_LINES, 'more line')}")
        mark, style = ("✗", "red") if failed else ("←", "dim")
        self._print("call", Text(f"  {mark} {one_line(name)}: " + "\n    ".join(shown), style=style))

    def _show_handoff(self, source: str, target: str) -> None:
        self._print("call", Text.assemble("  ", self._coloured(source), " ⇒ ", self._coloured(target)))

    def _show_line(self, text: str) -> None:
        self._named = None
        self._print("user", Text(clean(text), style="green"))

    # --- pieces ---

    def _name(self, agent: str) -> None:
        """Print the name of the agent, if another agent was the last speaker."""
        if agent != self._named and self._has_details:
            self._print("name", self._coloured(agent))
        self._named = agent

    def _coloured(self, agent: str) -> Text:
        colour = self._colours.setdefault(agent, _COLOURS[len(self._colours) % len(_COLOURS)])
        return Text(one_line(agent), style=f"bold {colour}")

    def _print_markdown(self, text: str) -> None:
        self._separate("text")
        self._console.print(MarkdownText(text))

    def _print(self, kind: str, line: Text) -> None:
        self._separate(kind)
        self._console.print(line)

    def _separate(self, kind: str) -> None:
        if self._needs_blank_line(kind):
            self._console.print()
        self._last_kind = kind

    def _needs_blank_line(self, kind: str) -> bool:
        return self._last_kind not in ("", *_FOLLOWS.get(kind, ()))


class LiveArea:
    """The part of the screen that still changes: a spinner, a model's reasoning, or the unfinished end of an answer.

    The area is below the printed text, and is removed completely at its end. Until then, the terminal does not echo keys.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._echo = Echo()
        self._live: Live | None = None
        self._reasoning = ""
        self._has_spinner = False
        self._next_refresh = 0.0  # in seconds of `time.monotonic`
        self._is_stale = False  # whether the screen does not have the last pieces

    def show_spinner(self, name: str) -> None:
        self.clear()
        self._reasoning = ""
        self._has_spinner = True
        # A thread of rich redraws the spinner. Remove the spinner before you print, because two threads would mix their
        # outputs.
        self._begin(Live(Spinner("dots", Text(name, style="dim")), console=self._console, transient=True))

    def remove_spinner(self) -> None:
        if self._has_spinner:
            self.clear()

    def show_reasoning(self, piece: str) -> None:
        """Add a piece to the model's reasoning, and show the end of the reasoning."""
        self._reasoning = (self._reasoning + piece)[-_REASONING:]
        self._show(Text(self._reasoning.strip(), style="dim italic"), immediately=False)

    def show_markdown(self, text: str, *, blank_line: bool, immediately: bool) -> None:
        """Show the end of an unfinished text.

        `blank_line`: put a blank line before the text. `immediately`: refresh now, even directly after the last refresh.
        """
        tail = MarkdownTail(text)
        self._show(Group("", tail) if blank_line else tail, immediately=immediately)

    def refresh(self) -> None:
        """Show the last pieces, if they are not on the screen yet."""
        if self._live is not None and self._is_stale:
            self._live.refresh()
        self._is_stale = False

    def clear(self) -> None:
        live, self._live = self._live, None
        self._has_spinner = False
        try:
            if live is not None:
                live.stop()
        finally:
            self._echo.restore()

    def _begin(self, live: Live) -> None:
        self._echo.off()
        self._live = live
        live.start()

    def _show(self, shown: RenderableType, *, immediately: bool) -> None:
        self.remove_spinner()
        live = self._live
        if live is None:
            live = Live(console=self._console, auto_refresh=False, transient=True)
            self._begin(live)
        begun = time.monotonic()
        is_due = immediately or begun >= self._next_refresh
        self._is_stale = not is_due
        live.update(shown, refresh=is_due)
        if is_due:
            ended = time.monotonic()
            self._next_refresh = ended + _REST * (ended - begun)


def _is_in_background(terminal: TextIO) -> bool:
    """Return whether the process runs in the background of a shell: the system would stop it if it changed the terminal."""
    try:
        return os.tcgetpgrp(terminal.fileno()) != os.getpgrp()
    except OSError:  # no shell controls this terminal
        return False


class Echo:
    """The echo of the terminal on stdin. Without echo, pressed keys are kept for the next prompt."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def off(self) -> None:
        """Stop the echo, because echoed keys would damage the live area. Ctrl-C still interrupts."""
        if termios is None or not is_terminal(sys.stdin) or _is_in_background(sys.stdin):
            return
        self._before = termios.tcgetattr(sys.stdin)
        silent = list(termios.tcgetattr(sys.stdin))
        silent[3] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)

    def restore(self) -> None:
        """Restore the settings that the terminal had before `off`."""
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, self._before)
        self._before = None
