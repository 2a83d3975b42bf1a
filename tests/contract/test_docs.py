"""README and the pages in `docs`: their code runs, prints the shown output, and their links lead somewhere."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import Parameter
from pathlib import Path
from typing import Any, get_args

import click
import httpx
import openai.types.chat  # noqa: F401 - importing it takes long, and a page with a timeout must not wait for that
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Event, Swarm
from aswarm._values.run_keywords import AnyRun
from aswarm.testing import ScriptedModel, call
from aswarm.types import RunKeywords
from docs._site import reference
from tests.support.contract.documentation import (
    PAGES,
    PROJECT,
    TUTORIAL,
    ModelServer,
    PageRun,
    blocks_of,
    earlier_files,
    model_server,
    name_of,
    run_script,
)

README = PROJECT / "README.md"
HOME = "https://github.com/aswarm-dev/aswarm"
# tests/providers/test_recipes.py runs them, against servers of those providers
RECIPES = PROJECT / "docs/guides/providers.md"
# The packages that these need do not run on the oldest versions that aswarm promises.
NEED = {
    PROJECT / f"docs/guides/{page}.md": need
    for page, need in (("mcp", "mcp"), ("durable", "dbos"), ("recipes", "dbos"))
}
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    """The model on loopback that the pages talk to."""
    with model_server() as running:
        yield running


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """A program may set up logging, as Litestar does; the tests after it have it as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in [each for each in root.handlers if each not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def page_run(server: ModelServer, folder: Path, monkeypatch: pytest.MonkeyPatch, logging_as_before: None) -> PageRun:
    """Runs blocks in an empty folder, with an environment that leads to the model on loopback."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.syspath_prepend(folder)  # as for a script there
    return PageRun(server)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != RECIPES and (page not in NEED or find_spec(NEED[page]))], ids=name_of
)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path, page_run: PageRun, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every Python block and every command runs, in the order of the page; shown output is the real output.

    The pages of the tutorial build on the files of the earlier ones, and have no key until a page sets one.
    """
    if page.parent == TUTORIAL:
        monkeypatch.delenv("OPENAI_API_KEY")
        for name, code in earlier_files(page).items():
            (folder / name).write_text(code, encoding="utf-8")
    page_run.run(blocks_of(page))


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6])
def test_a_program_of_the_tutorial_does_the_same_with_a_server(
    number: int, server: ModelServer, page_run: PageRun, folder: Path
) -> None:
    """With a key in the environment, the same file asks the server of that key, and prints the output of the page."""
    [page] = TUTORIAL.glob(f"{number}-*.md")
    blocks = blocks_of(page)
    files = earlier_files(page) | {block.notes["file"]: block.code for block in blocks if "file" in block.notes}
    for name, code in files.items():
        (folder / name).write_text(code, encoding="utf-8")
    [command] = [block for block in blocks if block.language == "console"]
    [_, name] = command.code.split()
    [script] = re.findall(r"^SCRIPT = (\[\n.*?^\])", files[name], re.MULTILINE | re.DOTALL)
    steps = eval(script, {"call": call})
    server.model = model = ScriptedModel(steps)
    assert run_script([name], command.notes.get("input", "")) == command.output
    assert len(model.requests) == len(steps)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Links within the project name files and headings that are there."""
    for link in LINK.findall(_without_code(page)):
        if link.startswith(HOME + "/"):
            target = PROJECT / re.sub(r"^(blob|tree)/main/", "", link.removeprefix(HOME + "/"))
        elif link.startswith("https://"):
            continue
        else:
            target = page.parent / link if not link.startswith("#") else Path(f"{page}{link}")
        path, _, heading = str(target).partition("#")
        assert Path(path).exists(), link
        is_name = Path(path).resolve().parent == reference.FOLDER and reference.is_name(Path(path).resolve(), heading)
        assert not heading or is_name or heading in _headings(Path(path)), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_reader_learns_the_name_of_each_file_of_a_page(page: Path) -> None:
    """The text names the file of a block; readers do not see the comment above the block."""
    prose = re.sub(r"<!--.*?-->", "", _without_code(page), flags=re.DOTALL)
    files = {block.notes["file"] for block in blocks_of(page) if "file" in block.notes}
    assert [name for name in files if f"`{name}`" not in prose] == []


def test_what_is_said_about_installing_works_before_a_release() -> None:
    """No text names the package of an index with an extra; it is a clone that is installed."""
    texts = [
        path for folder in ("src", "docs", "examples") for path in (PROJECT / folder).rglob("*.*") if path.is_file()
    ]
    named = re.compile(r"install [\"']?aswarm\W")
    found = {path.name for path in [README, *texts] if named.search(path.read_text(encoding="utf-8", errors="ignore"))}
    assert found <= {"README.md"}, "README says what will do after the release; everything else names a clone"


@pytest.mark.parametrize(
    "text",
    [
        "```python\nimport os\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nimport os\nos.nothing\n```\n",
        "```python\nprint(1)\n```\n",
        "```python\nimport os\n```\n\n```python\nimport sys\n```\n\n```python\nos\n```\n",
        '<!-- model: ["Hi"] -->\n```python\nimport os\n```\n',
        "```text\n1\n```\n",
        "```python\nimport os\nprint(1)\n```\n\nIt prints:\n\n```text\n1\n```\n",
        "```py\nimport os\n```\n",
        "```console\nmake all\n```\n",
        "```console\naswarm graph agents:triage\n```\n",
        "```console\nuvicorn nothing:app\n```\n",
        "<!-- file: a.py -->\n```python\nimport os\n```\n\n```console\nuvicorn a:app\n```\n",
        "```console\naswarm serve agents:triage --stroe chats.sqlite\n```\n",
        "- a list:\n\n  ```python\n  import os\n  ```\n",
        "```python\nimport os\n",
        "<!-- file: a.py -->\n```python\nimport os\nprint(1)\n```\n\n```console\npython a.py\n```\n\n```text\n2\n```\n",
    ],
    ids=[
        "another output", "an error", "no import", "a name of another program", "a model that is not asked",
        "output of nothing", "output further down", "an unknown language", "an unknown command", "a command that fails",
        "a server of nothing", "a server without its application", "a misspelled option",
        "an indented fence", "an open fence", "another output of a file",
    ],
)  # fmt: skip
def test_a_page_that_is_wrong_fails(text: str, page_run: PageRun, folder: Path) -> None:
    """A block that fails, prints something else than is shown, or would not be run, is an error that is not passed over."""
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises((AssertionError, AttributeError, NameError, click.NoSuchOption)):
        page_run.run(blocks_of(page))


def _without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", _without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.slow
def test_the_service_of_the_readme_answers_the_request_of_its_curl_line(page_run: PageRun) -> None:
    """The response is the stream of events, with the answer of the model."""
    page_run.run(blocks_of(README))
    app = page_run.namespaces[-1]["app"]
    text = README.read_text(encoding="utf-8")
    [(path, header, value, body)] = re.findall(
        r"^curl -N http://[^/]*(\S+) -H \"(\w+): (.*?)\" --json '(.*)'$", text, re.MULTILINE
    )

    async def ask() -> str:
        browser = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000")
        async with app.lifespan(), browser:
            return (await browser.post(path, json=json.loads(body), headers={header: value})).text

    assert '"text":"Hello! How can I help?"' in asyncio.run(ask())


@pytest.mark.slow
def test_the_service_of_the_readme_does_not_start_without_a_key(
    page_run: PageRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the variable."""
    page_run.run(blocks_of(README))
    app = page_run.namespaces[-1]["app"]
    monkeypatch.delenv("OPENAI_API_KEY")

    async def start() -> None:
        async with app.lifespan():
            pass

    with pytest.raises(ConfigurationError, match="set OPENAI_API_KEY"):
        asyncio.run(start())


def test_the_program_of_the_readme_is_the_example_that_it_names() -> None:
    """Readers see in the file what they run."""
    [program] = [block.code for block in blocks_of(README) if "model" in block.notes]
    assert (PROJECT / "examples/basic/events.py").read_text(encoding="utf-8").partition("\n\n")[2] == program


def test_examples_and_the_readme_name_no_model_that_leaves() -> None:
    """A model of GPT-4 leaves the API of OpenAI in January 2027; pages name one only for this reason."""
    files = [README, *(path for path in (PROJECT / "examples").rglob("*.*") if path.suffix in {".md", ".py"})]
    assert [path.name for path in files if "gpt-4" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("index", sorted(PROJECT.glob("docs/*/index.md")), ids=name_of)
def test_an_index_has_one_row_for_a_page(index: Path) -> None:
    """Two changes can add a row for the same page."""
    rows = re.findall(r"^\|.*\|$", index.read_text(encoding="utf-8"), re.MULTILINE)
    pages = [page for row in rows for page in dict.fromkeys(re.findall(r"\]\((?!\.\.)([^)#]+\.md)", row))]
    assert [page for page in dict.fromkeys(pages) if pages.count(page) > 1] == []


def test_the_first_page_names_every_extra() -> None:
    """Each extra has a row."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = re.findall(r"^\| `(\w+)` \|", (PROJECT / "docs/index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(settings["project"]["optional-dependencies"])


def test_the_guide_to_streaming_lists_every_event() -> None:
    """Each has a row in the table of typed events."""
    text = (PROJECT / "docs/guides/streaming.md").read_text(encoding="utf-8")
    rows = "".join(re.findall(r"^\|.*?\|", text, re.MULTILINE))
    assert [event.__name__ for event in get_args(Event) if f"`{event.__name__}`" not in rows] == []


def test_the_guide_to_running_lists_every_argument() -> None:
    """The signature of `run` on the page has the arguments, the order and the defaults of the code."""
    text = (PROJECT / "docs/guides/running.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^`run\((.*?)\)`", text, re.MULTILINE | re.DOTALL)
    _, agent, messages, context, *_ = inspect.signature(AsyncSwarm.run).parameters.values()
    defaults: dict[str, Any] = {"stream": False, "output": None, **dict.fromkeys(RunKeywords.__annotations__)}
    defaults |= {"debug": False, "execute_tools": True, "resume": False}
    keywords = [Parameter(key, Parameter.KEYWORD_ONLY, default=defaults[key]) for key in defaults]
    parameters = [each.replace(annotation=each.empty) for each in (agent, messages, context)]
    assert f"({' '.join(shown.split())})" == str(inspect.Signature([*parameters, *keywords]))
    assert AnyRun.__annotations__.keys() == defaults.keys()
    swarm = Swarm(ScriptedModel(["Hi."] * 2))
    assert swarm.run(Agent(), "Hi", **{**defaults, "run_id": "1"}) == swarm.run(Agent(), "Hi", run_id="1")


def test_the_design_names_every_room_in_the_order_of_the_layers() -> None:
    """The table of rooms has the layers of pyproject.toml, from the bottom up."""
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    layers: list[str] = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    layer_of = {room: number for number, layer in enumerate(reversed(layers)) for room in layer.split(" | ")}
    design = (PROJECT / "docs/design/index.md").read_text(encoding="utf-8")
    table = design.partition("## Rooms")[2].partition("## ")[0]
    listed = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(layer_of.keys() - {"__main__"})
    assert listed == sorted(listed, key=lambda name: layer_of[name])


def test_the_modules_that_the_design_names_are_there() -> None:
    """Each `room/module` of the walks is a file of the package."""
    text = "".join(page.read_text(encoding="utf-8") for page in sorted((PROJECT / "docs/design").glob("*.md")))
    named = re.findall(r"`(_?[a-z]+/_?[a-z_]+)(?:\.py)?`", text)
    folders = (PROJECT / "src/aswarm", PROJECT)
    assert [name for name in named if not any((folder / f"{name}.py").exists() for folder in folders)] == []


def test_the_readme_fits_one_screen_or_two() -> None:
    """It has at most 110 lines and 8 kB; the rest is in `docs`."""
    text = README.read_bytes()
    assert len(text) <= 8192
    assert text.count(b"\n") <= 110
