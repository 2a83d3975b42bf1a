"""Renders Markdown that arrives piece by piece. `Blocks` splits it into finished blocks.

The whole text is shown: HTML is shown as text, and each line end stays a line end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.text import Text

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
