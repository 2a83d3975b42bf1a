"""The words of the pages and of the docstrings: plain English, for readers whose first language is another one."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs._site import pages
from tests.support.contract.documentation import PROJECT

# CONTRIBUTING has the reason, and quotes them.
AVOIDED = re.compile(
    r"\b(anew|whoever|nobody|somebody|none is none|(?:that|what|who) is none\b(?! )|belongs? into|(?:go|goes|gone|went) on with"
    r"|to be mended|simply|obviously|of course|basically|please note|easily|utili[sz]e[sd]?|leverages?|in order to"
    r"|e\.g\.|i\.e\.|etc\.)",
    re.IGNORECASE,
)
TEXTS = [page for page in pages.site_pages() if page.name != "CONTRIBUTING.md"]
TEXTS += [PROJECT / "README.md", *sorted((PROJECT / "src/aswarm").rglob("*.py"))]


def avoided(text: str) -> list[str]:
    """The words to avoid in a text, outside of blocks of code."""
    return [match[0] for match in AVOIDED.finditer(pages.FENCE.sub("", text))]


def test_pages_and_source_avoid_words_that_are_hard_to_read() -> None:
    """The subject of a sentence has a noun, and no word is there for its sound."""
    found = {path.relative_to(PROJECT).as_posix(): avoided(path.read_text(encoding="utf-8")) for path in TEXTS}
    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "text", ["Whoever took it.", "It goes on with the next.", "Simply call it.", "A dict, e.g. this."]
)
def test_such_a_word_is_found(text: str) -> None:
    """Whatever its case; in code it is not looked for."""
    assert avoided(text)
    assert not avoided(f"```text\n{text}\n```\n")


@pytest.mark.parametrize(
    "page", [page for page in pages.site_pages() if "docs" in page.parts], ids=pages.site_pages().get
)
def test_a_page_has_one_title_and_says_which_question_it_answers(page: Path) -> None:
    """The question in italics below the title stands in `llms.txt` too; lists of pages, and pages of names, need none."""
    text = pages.FENCE.sub("", page.read_text(encoding="utf-8"))
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1
    if page.name != "index.md" and "<!-- names" not in text:
        assert re.match(r"# .*\n\n\*[^*]+\*\n", text), "below the title there is no question in italics"


# --- phrases that a reader has to decode --------------------------------------------------------------------------------

# Per 1,000 sentences of docstrings and comments, or of pages. anyio, httpx and openai stay below these limits.
LIMITS = {
    r"(?:^|[ ,:;(])[Ww]hat (?!(?:to|a mess|if|is|are|happens|does|did|do|kind|about)\b)[a-z`]": 8,  # a clause as a noun
    r"\b([Tt]hat of|[Tt]hose of|[Tt]he one that|[Tt]hose that|[Tt]hat from)\b": 3,
    r"\b(has|have|had) (begun|ended|gone)\b": 3,
    r"\b([Ss]ays|[Ss]aid|[Tt]old|[Tt]ells|[Ss]ay)\b": 6,
    r"\b[Bb]eg(in|ins|an|un|inning)\b": 5,
}
OF_SOURCE = [PROJECT / "src/aswarm"]
OF_PAGES = [PROJECT / name for name in ("docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples")]


def texts_of_python(path: Path) -> Iterator[str]:
    """The docstrings and the comments of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and not token.string.startswith(
                ("# ruff", "# type", "# pyright", "# noqa")
            ):
                yield token.string.lstrip("# ")


def texts_of_page(path: Path) -> Iterator[str]:
    """The paragraphs of a page, without code."""
    text = pages.FENCE.sub("", path.read_text(encoding="utf-8"))
    yield from (re.sub(r"`[^`]*`", "x", paragraph) for paragraph in text.split("\n\n"))


def sentences(places: list[Path]) -> list[str]:
    """All sentences of more than two words."""
    files = [file for place in places for file in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    texts = [text for file in files if file.suffix == ".py" for text in texts_of_python(file)]
    texts += [text for file in files if file.suffix == ".md" for text in texts_of_page(file)]
    found = [each for text in texts for each in re.split(r"(?<=[.:])\s+", " ".join(text.split()))]
    return [each for each in found if len(each.split()) > 2]


@pytest.mark.parametrize("places", [OF_SOURCE, OF_PAGES], ids=["source", "pages"])
def test_phrases_that_a_reader_has_to_decode_are_rare(places: list[Path]) -> None:
    """A sentence may use one of them if it is the natural word; many together are a dialect."""
    everything = sentences(places)
    over = {}
    for phrase, limit in LIMITS.items():
        matches = [sentence for sentence in everything if re.search(phrase, sentence)]
        if 1000 * len(matches) > limit * len(everything):
            over[phrase] = matches
    assert over == {}
