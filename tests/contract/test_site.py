"""The site of the documentation: what makes its build fail. `nox -s docs` builds it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from _site import checks, copies, pages, pictures, reference, source, tables

WRITE = "it is not current: PYTHONPATH=docs python -m _site write"


def test_every_public_name_has_one_entry_in_the_reference() -> None:
    """A page of the reference describes each name of each `__all__`, once."""
    assert reference.missing_names() == []


def test_every_page_can_be_reached_from_the_first_one() -> None:
    """The index of a folder links to each of its pages, and the first page to each folder."""
    assert pages.orphans() == []


@pytest.mark.parametrize("name", tables.MADE)
def test_a_table_that_is_made_from_the_code_is_current(name: str) -> None:
    """`PYTHONPATH=docs python -m _site write` brings all of them up to date."""
    text = tables.blocks()[name].read_text(encoding="utf-8")
    assert tables.current(name, text) == text, WRITE


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_a_picture_that_is_made_from_the_code_is_current(name: str) -> None:
    """The same command draws all of them again."""
    assert (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == str(pictures.DRAWN[name]()), WRITE


def test_events_come_in_the_order_of_the_picture() -> None:
    """Each event of some runs may follow the one before it."""
    for names in anyio.run(pictures.order_of_runs):
        assert all(after in pictures.ORDER[before] for before, after in pairwise(["", *names])), names
        assert names[-1] == "RunFinished"


# --- each mistake is found --------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty project with a first page."""
    monkeypatch.setattr(pages, "DOCS", tmp_path / "docs")
    (tmp_path / "docs/guides").mkdir(parents=True)
    (tmp_path / "docs/index.md").write_text("# First\n\n[Guides](guides/index.md)\n", encoding="utf-8")
    (tmp_path / "docs/guides/index.md").write_text("# Guides\n\n[Tools](tools.md)\n", encoding="utf-8")
    (tmp_path / "docs/guides/tools.md").write_text("# Tools\n\n[Back](index.md#guides)\n", encoding="utf-8")
    return tmp_path


def test_a_page_without_a_link_to_it_is_an_orphan(project: Path) -> None:
    """A link from a page that is no index does not count."""
    assert pages.orphans() == []
    (project / "docs/guides/lost.md").write_text("# Lost\n", encoding="utf-8")
    (project / "docs/guides/tools.md").write_text("# Tools\n\n[Lost](lost.md)\n", encoding="utf-8")
    pages.forget()
    assert pages.orphans() == ["guides/lost.md"]


def test_a_link_to_no_file_is_an_error(project: Path, tmp_path: Path) -> None:
    """The text names the page and the link."""
    (project / "docs/guides/tools.md").write_text("# Tools\n\n[Back](../nothing.md)\n", encoding="utf-8")
    assert pages.write_copy(tmp_path / "copy") == ["docs/guides/tools.md: ../nothing.md leads to no file"]


def test_a_link_to_no_heading_is_an_error(project: Path, tmp_path: Path) -> None:
    """A heading in a block of code is none."""
    page = "# Tools\n\n[Back](index.md#nothing) [Here](#a-comment)\n\n```python\n# A comment\n```\n"
    (project / "docs/guides/tools.md").write_text(page, encoding="utf-8")
    pages.write_copy(tmp_path / "copy")
    places = ["index.md#nothing", "#a-comment"]
    assert pages.broken_links(tmp_path / "copy") == [f"broken link on guides/tools.md: {place}" for place in places]


def test_a_link_out_of_the_pages_leads_to_the_source(project: Path, tmp_path: Path) -> None:
    """What is a file of the project and no page is shown where the project is kept."""
    (project / "program.py").write_text("", encoding="utf-8")
    (project / "docs/guides/tools.md").write_text("# Tools\n\n[It](../../program.py)\n", encoding="utf-8")
    pages.write_copy(tmp_path / "copy")
    assert f"[It]({pages.HOME}/blob/main/program.py)" in (tmp_path / "copy/guides/tools.md").read_text("utf-8")


def test_the_page_of_an_example_shows_its_code(project: Path, tmp_path: Path) -> None:
    """A link to a shown file leads to its place on the page; the scripted model is left out."""
    example = project / "examples/shop"
    example.mkdir(parents=True)
    (example / "README.md").write_text("# Shop\n\n[Agents](agents.py), [script](script.py)\n", encoding="utf-8")
    (example / "agents.py").write_text('"""Agents.\n\n```text\nx\n```\n"""\n', encoding="utf-8")
    (example / "script.py").write_text("SCRIPT = 1\n", encoding="utf-8")
    pages.forget()
    assert pages.write_copy(tmp_path / "copy") == []
    copy = (tmp_path / "copy/examples/shop.md").read_text("utf-8")
    assert f"[Agents](#agentspy), [script]({pages.HOME}/blob/main/examples/shop/script.py)" in copy
    assert "### `agents.py`\n\n````python\n" in copy
    assert "SCRIPT" not in copy


def test_the_first_mention_of_a_name_leads_to_the_reference() -> None:
    """Of a class, of a member, of a module; not in a heading, and not in a link."""
    text = (
        "# `Agent`\n\nAn `Agent`, an `Agent`; `AsyncSwarm.stream()`, `aswarm.guards`, [`Budget`](budgets.md), `tool`."
    )
    links = pages.with_links(pages.DOCS / "guides/tools.md", text, lambda match: match[0])
    entry = "(../reference/aswarm.md#"
    assert links == (
        f"# `Agent`\n\nAn [`Agent`]{entry}class-agent), an `Agent`; [`AsyncSwarm.stream()`]{entry}asyncswarmstream), "
        "[`aswarm.guards`](../reference/guards.md), [`Budget`](budgets.md), `tool`."
    )


def test_a_name_without_an_entry_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that a page describes twice, or that does not exist."""
    for page in reference.FOLDER.glob("*.md"):
        text = (
            page.read_text(encoding="utf-8")
            .replace(" RefusalDelta", "")
            .replace(": Budget ", ": Budget Budget Nothing ")
        )
        (tmp_path / page.name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    assert reference.missing_names() == ["aswarm.Budget", "aswarm.Nothing", "aswarm.RefusalDelta"]


def test_a_name_without_a_docstring_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of a class too."""
    code = ast.parse('def f(): ...\nclass A:\n    """An A."""\n    def b(self): ...').body
    found = {
        name: source.Definition("aswarm", name, node, ast.get_docstring(node) or "")
        for name, node in zip("fA", code, strict=True)
    }
    monkeypatch.setattr(reference, "definition", lambda _, name: found[name])
    monkeypatch.setattr(reference, "home_of", lambda _: "aswarm")
    for name, missing in (("f", r"aswarm\.f "), ("A", r"aswarm\.A\.b ")):
        with pytest.raises(reference.UndocumentedName, match=missing):
            reference.entry("aswarm", name)


def test_a_docstring_becomes_markdown() -> None:
    """Described arguments become a list, and the first mention of a public name leads to its entry."""
    entry = reference.entry("aswarm", "CompletionError")
    assert "### exception `CompletionError`" in entry
    assert "- `retryable`: whether the same request may well succeed later" in entry
    assert "[`Response`](aswarm.md#class-response)" in reference.entry("aswarm", "AswarmError")
    assert "Raises [`AnswersRefused`](serve.md#exception-answersrefused)" in reference.entry(
        "aswarm.durable", "DurableRun"
    )


def test_errors_stand_below_the_list_of_arguments() -> None:
    """They are no part of the last argument."""
    assert "\n\nRaises [`ConfigurationError`]" in reference.entry("aswarm.guards", "hold_answer")


def test_an_entry_shows_public_bases_alone() -> None:
    """A private base is replaced by its own public ones."""
    assert "class Blocked(RunError)" in reference.entry("aswarm.guards", "Blocked")
    assert "class MemoryStore(Store)" in reference.entry("aswarm.conversations", "MemoryStore")


def test_assistants_get_a_copy_of_each_page_and_a_list(project: Path, tmp_path: Path) -> None:
    """The list has the question that a page answers; the copy has no comments for tests."""
    page = "# Tools\n\n*What may a function do?*\n\n<!-- figure -->\n```text\n<!-- x -->\n```\n"
    (project / "docs/guides/tools.md").write_text(page, encoding="utf-8")
    pages.write_copy(tmp_path / "copy")
    copies.write_copies(tmp_path / "copy", tmp_path / "site")
    assert "- [Tools](guides/tools.md): What may a function do?" in (tmp_path / "site/llms.txt").read_text("utf-8")
    copy = (tmp_path / "site/guides/tools.md").read_text("utf-8")
    assert "figure" not in copy and "<!-- x -->" in copy


def test_the_copy_of_a_page_has_its_pictures(project: Path, tmp_path: Path) -> None:
    """The link in the copy leads to a file of the site; without the file, the check of the site fails."""
    (project / "docs/guides/tools.md").write_text("# Tools\n\n![Boxes](boxes.svg)\n", encoding="utf-8")
    (project / "docs/guides/boxes.svg").write_text("<svg/>", encoding="utf-8")
    pages.write_copy(tmp_path / "copy")
    copies.write_copies(tmp_path / "copy", tmp_path / "site")
    assert checks.check(tmp_path / "site") == []
    (tmp_path / "site/pictures/boxes.svg").unlink()
    assert checks.check(tmp_path / "site") == ["guides/tools.md shows ../pictures/boxes.svg, which is not there"]


def test_a_page_of_the_reference_says_since_when_its_names_are_there() -> None:
    """Below its title, also in the copy for assistants."""
    assert pages.text_of(reference.page_of("aswarm.guards")).splitlines()[2] == reference.SINCE


@pytest.mark.parametrize(
    "loads",
    [
        '<script src="https://unpkg.com/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/x.css">',
        '<img src="http://x.example/pixel.gif">',
        '<style>@import "https://fonts.example/x.css";</style>',
        '<p style="background: url(https://x.example/pixel.gif)"></p>',
    ],
)
def test_a_page_that_loads_from_another_host_is_found(loads: str, tmp_path: Path) -> None:
    """A link to another host is none of these."""
    (tmp_path / "index.html").write_text(f'<a href="https://example.com">x</a>{loads}', encoding="utf-8")
    assert [line.partition(" loads ")[0] for line in checks.check(tmp_path)] == ["index.html"]


def test_a_link_in_the_built_site_to_nothing_is_found(tmp_path: Path) -> None:
    """Neither to a page, nor to a place on a page."""
    page = '<h1 id="top"></h1><a href="#top">1</a><a href="#gone">2</a><a href="gone.html">3</a><a href="index.html#no">4</a>'
    (tmp_path / "index.html").write_text(page, encoding="utf-8")
    assert [line.split()[3] for line in checks.check(tmp_path)] == ["#gone,", "gone.html,", "index.html#no,"]
