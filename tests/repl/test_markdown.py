"""Markdown that comes piece by piece: cut into finished blocks, and shown completely."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from aswarm.repl._markdown import Blocks, MarkdownTail, MarkdownText

LINES = [
    "text",
    "- item",
    "1. one",
    "2. two",
    "  more",
    "",
    "```",
    "```py",
    "| a | b |",
    "|---|---|",
    "# head",
    "> q",
    "---",
    "===",
]
texts = st.lists(st.sampled_from(LINES), max_size=12).map("\n".join)


def shown(renderable: object, *, width: int = 40, height: int = 20) -> str:
    """The text that a console of this size shows, without spaces at the ends of lines."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def blocks_of(text: str) -> list[str]:
    """The blocks of a whole text, with the last one."""
    tokens = MarkdownIt("commonmark", {"html": False}).enable("table").parse(text)
    starts = [token.map[0] for token in tokens if token.level == 0 and token.map]
    lines = text.split("\n")
    ends = [*starts[1:], len(lines)]
    return ["\n".join(lines[begin:end]) for begin, end in zip([0, *starts[1:]], ends, strict=bool(starts))]


@given(texts, st.lists(st.integers(1, 6), min_size=1))
def test_blocks_are_those_of_the_whole_text(text, sizes):
    """However the text is cut into pieces, the blocks are the same, and no text is lost."""
    blocks, finished, begin, number = Blocks(), [], 0, 0
    while begin < len(text):
        size = sizes[number % len(sizes)]
        finished += blocks.feed(text[begin : begin + size])
        begin, number = begin + size, number + 1
    assert "".join(finished) + blocks.rest == text
    whole = [block.rstrip("\n") for block in blocks_of(text)]
    assert [block.rstrip("\n") for block in finished] == whole[: len(finished)]


def test_a_block_is_finished_when_another_begins():
    """Not earlier, because a line or a list may continue."""
    blocks = Blocks()
    assert blocks.feed("- a\n\n") == []
    assert blocks.feed("- b\n\nText") == []
    assert blocks.rest == "- a\n\n- b\n\nText"
    assert blocks.feed(" continues\n") == ["- a\n\n- b\n\n"]
    assert blocks.rest == "Text continues\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# Head\n\ntext", ["Head", "", "text"]),
        ("## Head", ["Head"]),
        ("one\ntwo", ["one", "two"]),
        ("- a\n- b", [" • a", " • b"]),
        ("3. c\n4. d", [" 3 c", " 4 d"]),
        ("List<String> <b>x</b>", ["List<String> <b>x</b>"]),
        ("<div>\n\ntext", ["<div>", "", "text"]),
        ("[here](http://else.where)", ["here (http://else.where)"]),
        ("[bold]not markup[/bold] :bee:", ["[bold]not markup[/bold] :bee:"]),
        ("```python\nprint(1)\n```", [" print(1)"]),
        ("> one\n> two", ["▌ one", "▌ two"]),
        ("a ~~b~~ **c** `d`", ["a b c d"]),
        ("a\n\n```\nb\n```\n- c\n\n\n# d\n\ne", ["a", "", " b", "", " • c", "", "d", "", "e"]),
        ("", []),
        ("[a]: http://else.where", ["[a]: http://else.where"]),
    ],
)
def test_a_text_is_shown_completely(text, lines):
    """HTML is text, line ends stay, links show their addresses, and there are no blank lines around it."""
    assert shown(MarkdownText(text)).splitlines() == lines


def test_a_table_is_shown_as_a_table():
    """Its rows are lines; rich decides how they are ruled."""
    rows = [line.split() for line in shown(MarkdownText("| a | b |\n|---|---|\n| 1 | 2 |")).splitlines()]
    assert (rows[0], rows[-1]) == (["a", "b"], ["1", "2"])


def test_the_end_of_a_text_fits_the_screen():
    """A small text is rendered; of a large one, the last lines are shown as they came."""
    assert shown(MarkdownTail("**a**\n\nb"), height=10) == "a\n\nb"
    assert shown(MarkdownTail("\n\n".join("abcdef")), height=8).splitlines() == ["", "d", "", "e", "", "f"]
    assert shown(MarkdownTail("**a**\n" * 100), height=5).splitlines() == ["**a**", "**a**"]
    assert shown(MarkdownTail("- a\n- b\n- c\n- d"), height=6).splitlines() == [" • a", " • b", " • c", " • d"]
    assert len(shown(MarkdownTail("x" * 100_000), width=10, height=5).splitlines()) == 3
    assert shown(MarkdownTail("a b"), height=1) == "a b"
