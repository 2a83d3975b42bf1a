"""The words of the pages and of the docstrings: plain English, for readers whose first language is another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _site import pages
from documentation import PROJECT

# CONTRIBUTING says why, and quotes them.
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
