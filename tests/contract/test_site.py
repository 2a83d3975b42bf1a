"""The site of the documentation: the mistakes that make its build fail. `nox -s docs` builds it, and asks its search."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from docs._site import checks, copies, pages, reference
from docs.pictures import pictures
from tests.support.contract import site_search, stability, tables

# Which events may follow an event, as the picture of docs/reference/events.md shows it.
ORDER: Mapping[str, tuple[str, ...]] = {
    "": ("TurnStarted", *pictures.OF_CALLS, "RunFinished"),  # a resumed run starts with its open calls
    "TurnStarted": (*pictures.DELTAS, "CompletionFinished"),
    **dict.fromkeys(pictures.DELTAS, (*pictures.DELTAS, "CompletionFinished")),
    "CompletionFinished": (*pictures.OF_CALLS, "TurnStarted", "RunFinished"),
    **dict.fromkeys(pictures.OF_CALLS, (*pictures.OF_CALLS, "HandedOff", "TurnStarted", "RunFinished")),
    "HandedOff": ("TurnStarted", "RunFinished"),
    "RunFinished": (),
}


def test_every_public_name_has_one_entry_in_the_reference() -> None:
    """A page of the reference describes each name of each `__all__`, once."""
    assert reference.missing_names() == []


def test_every_public_name_has_a_docstring() -> None:
    """The methods and properties of public classes too."""
    pytest.importorskip("mcp")  # without it, its page cannot be written
    assert reference.undocumented(reference.entries()) == []


def test_every_query_of_the_table_has_a_page() -> None:
    """`nox -s docs` looks for these pages among the first results of the search."""
    assert {f"{page}.md" for page in site_search.PAGES} - {*pages.site_pages().values()} == set()


@pytest.mark.parametrize("name", tables.MADE)
def test_a_table_that_is_made_from_the_code_is_current(name: str) -> None:
    """`python -m docs._site write` brings all of them up to date."""
    if name == "public_names":
        pytest.importorskip("mcp")  # it is not in all environments
    text = tables.blocks()[name].read_text(encoding="utf-8")
    assert tables.current(name, text) == text, "it is not current"


def test_the_page_of_public_names_has_a_type_or_a_value_of_each_name() -> None:
    """The check of stability compares these lines."""
    names = stability.names_of((pages.PROJECT / stability.PAGE).read_text(encoding="utf-8"))
    assert {*reference.entries()} <= {*names}
    assert [line for lines in names.values() for line in lines if re.fullmatch(r"`\w+`", line)] == []
    assert {*re.findall(r"Unpack\[\w+\]", str(names))} == {"Unpack[RunKeywords]"}
    lines = {name.rpartition(".")[2]: each[0] for name, each in names.items() if ": see `" not in each[0]}
    assert [lines[each] for each in reference.MADE_BY_ASWARM] == [
        f"`class {each}`, made by aswarm" for each in reference.MADE_BY_ASWARM
    ]


@pytest.mark.parametrize("name", pictures.DRAWN)
def test_a_picture_that_is_made_from_the_code_is_current(name: str) -> None:
    """`PYTHONPATH=src python docs/pictures/pictures.py` draws all of them again."""
    assert (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == str(pictures.DRAWN[name]()), "not current"


def test_events_come_in_the_order_of_the_picture() -> None:
    """Each event of some runs may follow the one before it."""
    for names in anyio.run(order_of_runs):
        assert all(after in ORDER[before] for before, after in pairwise(["", *names])), names
        assert names[-1] == "RunFinished"


async def order_of_runs() -> list[list[str]]:
    """The names of the events of some runs, each from its first event to its last."""

    async def look() -> str:
        """Look."""
        return "seen"

    other = Agent(name="Other")
    agent = Agent(functions=[look, other])
    scripts: list[list[Any]] = [
        ["Hello there."],
        [[call("look"), call("look")], "Done."],
        [call("look"), call("transfer_to_other"), "Here."],
        [
            ScriptedAnswer("Let me see.", calls=[call("look"), call("nothing")], extra={"reasoning_content": "Hm."}),
            "Done.",
        ],
    ]
    found = []
    for script in scripts:
        async with ScriptedModel(script, cut=3).client() as client, AsyncSwarm(client).stream(agent, "Go") as run:
            found.append([type(event).__name__ async for event in run])
    return found


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


@pytest.fixture
def site(project: Path) -> Callable[[str], Path]:
    """Writes the page about tools, and returns the folder of the site with the copies of the pages."""

    def write(page: str) -> Path:
        (project / "docs/guides/tools.md").write_text(f"# Tools\n\n{page}\n", encoding="utf-8")
        pages.write_copy(project / "copy")
        copies.write_copies(copies.texts_of(project / "copy"), project / "copy", project / "site")
        return project / "site"

    return write


def test_a_link_to_no_file_is_an_error(project: Path, tmp_path: Path) -> None:
    """The text names the page and the link."""
    (project / "docs/guides/tools.md").write_text("# Tools\n\n[Back](../nothing.md)\n", encoding="utf-8")
    assert pages.write_copy(tmp_path / "copy") == ["docs/guides/tools.md: ../nothing.md leads to no file"]


def test_a_link_to_a_file_that_is_no_page_leads_to_the_checkout(
    site: Callable[[str], Path], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `build/site`; for a site that is published, the variable SOURCE_URL has the address of the source."""
    (project / "program.py").touch()
    page = "[It](../../program.py)"
    assert "[It](../../../program.py)" in (site(page) / "guides/tools.md").read_text("utf-8")
    monkeypatch.setenv("SOURCE_URL", "https://example.com/source")
    assert "[It](https://example.com/source/program.py)" in (site(page) / "guides/tools.md").read_text("utf-8")


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
    assert f"[Agents](#agentspy), [script]({pages.CHECKOUT}examples/shop/script.py)" in copy
    assert "### `agents.py`\n\n````python\n" in copy
    assert "SCRIPT" not in copy


def test_the_index_words_of_a_page_are_for_the_search(project: Path, tmp_path: Path) -> None:
    """They are main entries of Sphinx's index, and no text of the page."""
    page = "# Tools\n\n*What?*\n\n<!-- index: sse, tool\nerror -->\n\nText\n"
    (project / "docs/guides/tools.md").write_text(page, encoding="utf-8")
    pages.write_copy(tmp_path / "copy")
    assert "sse" not in (tmp_path / "copy/guides/tools.md").read_text("utf-8")
    pages.add_directives(tmp_path / "copy")
    assert "```{index} ! sse, ! tool error\n```" in (tmp_path / "copy/guides/tools.md").read_text("utf-8")


def test_a_name_without_an_entry_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that a page describes twice, or that does not exist."""
    for page in reference.FOLDER.glob("*.md"):
        text = (
            page.read_text(encoding="utf-8")
            .replace(" RunFinished", "")
            .replace(": Budget ", ": Budget Budget Nothing ")
        )
        (tmp_path / page.name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(reference, "FOLDER", tmp_path)
    assert reference.missing_names() == ["aswarm.Budget", "aswarm.Nothing", "aswarm.RunFinished"]


def test_assistants_get_a_copy_of_each_page_and_a_list(site: Callable[[str], Path]) -> None:
    """The list has the question that a page answers; the copy has no comments for tests."""
    folder = site("*What may a function do?*\n\n<!-- figure -->\n```text\n<!-- x -->\n```")
    assert "- [Tools](guides/tools.md): What may a function do?" in (folder / "llms.txt").read_text("utf-8")
    copy = (folder / "guides/tools.md").read_text("utf-8")
    assert "figure" not in copy and "<!-- x -->" in copy


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


def test_a_comment_in_inline_code_is_shown() -> None:
    """CONTRIBUTING explains the comments of pages; without them, the backticks would enclose the links behind them."""
    shown = pages.text_of(pages.PROJECT / "CONTRIBUTING.md")
    assert "`<!-- index: ... -->`" in shown
    assert "``," not in shown
