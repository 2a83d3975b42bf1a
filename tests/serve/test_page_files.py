"""The playground without a browser: its files, its routes, and the data for its panels."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from aswarm import Agent, Output
from aswarm.guards import CheckedCall, CheckedInput, CheckedResult, guard_input, guard_tool
from aswarm.middleware import retry
from aswarm.runs import show_everything
from tests.support.serve.served import client, served

SOURCE = Path(__file__).parents[2] / "src" / "aswarm" / "serve" / "page"
FILES = sorted(path for path in SOURCE.rglob("*") if path.is_file())
OWN = [path for path in FILES if path.parent.name != "vendor"]
LICENSE = SOURCE / "vendor" / "LICENSE.txt"


def test_the_page_is_small() -> None:
    """All files together have less than 125,000 bytes."""
    assert sum(path.stat().st_size for path in FILES) < 125_000


def test_every_file_is_in_the_installed_package() -> None:
    """The package that is imported, which is the wheel in `nox -s tests`, has each file as it is in the source."""
    installed = files("aswarm.serve") / "page"
    assert [
        path.name
        for path in FILES
        if (installed / path.relative_to(SOURCE).as_posix()).read_bytes() != path.read_bytes()
    ] == []


def test_every_file_is_referenced() -> None:
    """Another file of the page names each file, except the first file."""
    texts = {path: path.read_text(encoding="utf-8") for path in OWN}
    named = {path for path in FILES for other, text in texts.items() if other != path and path.name in text}
    assert [path.name for path in FILES if path not in named] == ["index.html"]


def test_no_file_names_a_host() -> None:
    """The page loads nothing from elsewhere: no file has a URL with a host, except the names of XML namespaces."""
    found = [
        (path.name, url)
        for path in FILES
        if path != LICENSE
        for url in re.findall(r"(?:https?:)?//[a-z0-9-]+(?:\.[a-z0-9-]+)+", path.read_text(encoding="utf-8"))
        if not url.endswith("//www.w3.org")
    ]
    assert found == []


def test_the_page_has_nothing_inline() -> None:
    """The policy allows neither scripts nor styles in the document, and no code from text."""
    text = (SOURCE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", text) == []
    scripts = [path.read_text(encoding="utf-8") for path in OWN if path.suffix == ".js"]
    assert [
        word for word in ("innerHTML", "eval(", "new Function", "dangerously") if any(word in text for text in scripts)
    ] == []


def test_the_license_file_names_both_projects() -> None:
    """The vendored file holds two projects, and their licences stand beside it."""
    text = LICENSE.read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "under the MIT License" in text
    assert "Preact" in text


@pytest.mark.asyncio
async def test_the_page_is_served_with_a_strict_policy() -> None:
    """`page=True` serves the page at the root and its files below it, without a user."""
    async with served([], page=True) as it, client(it.url, None) as stranger:
        for place in ("/", "/page/app.js", "/page/style.css", "/page/vendor/htm-preact.js"):
            answer = await stranger.get(place)
            assert answer.status_code == 200, place
            assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert "javascript" in (await stranger.get("/page/app.js")).headers["content-type"]
        assert (await stranger.get("/")).headers["content-type"].startswith("text/html")
        assert (await stranger.get("/page/absent.js")).status_code == 404
        assert (await stranger.get("/page/%2e%2e/_service.py")).status_code == 404
        assert (await stranger.get("/graph")).status_code == 401


@pytest.mark.asyncio
async def test_a_service_without_the_page_serves_no_file() -> None:
    """By default the service has no page."""
    async with served([]) as it:
        assert [(await it.ann.get(place)).status_code for place in ("/", "/page/app.js")] == [404, 404]


@pytest.mark.asyncio
async def test_the_graph_of_the_agents_is_data() -> None:
    """The graph has the agents, their models and their handoffs, for each agent that a client may name."""
    b, c = Agent(name="B", model="gpt-4o-mini"), Agent(name="C", model="own-model")
    async with served([], agents=[Agent(name="A", model="gpt-4o", functions=[b]), b, c]) as it:
        graph = (await it.ann.get("/graph")).json()
    assert graph["agents"] == ["A", "B", "C"]
    assert [graph["graphs"][name]["agents"][0]["model"] for name in "ABC"] == ["gpt-4o", "gpt-4o-mini", "own-model"]
    assert [node["name"] for node in graph["graphs"]["A"]["agents"]] == ["A", "B"]
    assert graph["graphs"]["A"]["handoffs"][0]["function"] == "transfer_to_b"


def no_homework(checked: CheckedInput) -> None:
    """Let each input pass."""


def is_short(checked: CheckedCall | CheckedResult) -> None:
    """Let each call and result pass."""


def is_whole(answer: list[int]) -> None:
    """Accept each answer."""


@pytest.mark.asyncio
async def test_the_settings_name_the_guards_of_each_agent() -> None:
    """They name the checks of the guards for this agent, and the check of its structured output."""
    agents = [Agent(name="A", output=Output(list[int], check=is_whole)), Agent(name="B")]
    middleware = [guard_input(no_homework, agents=["B"]), retry(), guard_tool(is_short, is_short)]
    async with served([], agents=agents, show=show_everything, middleware=middleware) as it:
        graphs = (await it.ann.get("/graph")).json()["graphs"]
    guards = [graphs[name]["agents"][0]["settings"]["guards"] for name in "AB"]
    of_calls = "is_short (call), is_short (result)"
    assert guards == [f"{of_calls}, is_whole (output)", f"no_homework (input), {of_calls}"]


@pytest.mark.asyncio
async def test_the_settings_of_agents_are_for_readers_who_may_see_everything() -> None:
    """They have no headers, because these may have secrets. Other readers get no settings, and no instructions."""
    secret = {"extra_headers": {"Authorization": "s3cret"}, "extra_body": {"key": "s3cret"}, "temperature": 0.5}
    b = Agent(name="B", instructions=lambda: "Ask.", output=list, tool_choice="auto")
    agents = [Agent(name="A", instructions="Be brief.", model_settings=secret, functions=[b])]
    async with served([], agents=agents, show=show_everything) as it, client(it.url, None) as stranger:
        answer = await it.ann.get("/graph")
        assert "s3cret" not in answer.text
        nodes = answer.json()["graphs"]["A"]["agents"]
        assert nodes[0]["settings"] == {"instructions": "Be brief.", "temperature": "0.5"}
        asked = {"instructions": "the function <lambda>", "output": "list", "tool_choice": '"auto"'}
        assert nodes[1]["settings"] == asked
        assert (await stranger.get("/graph")).status_code == 401
    async with served([], agents=agents) as it:
        answer = await it.ann.get("/graph")
        assert "settings" not in answer.json()["graphs"]["A"]["agents"][0]
        assert "Be brief." not in answer.text
