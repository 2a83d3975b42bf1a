"""The page of the tutorial, and the JavaScript of the guide to streaming, in Chromium with the servers of their pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.contract.documentation import PROJECT, TUTORIAL, blocks_of, earlier_files

FASTAPI = PROJECT / "docs/guides/web-services.md"
STREAMING = PROJECT / "docs/guides/streaming-to-a-browser.md"
# The application of the guide, with a scripted model, a service, and a page with a script of the other guide.
FETCHING = """
import fastapi_app
from desk import triage
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from aswarm.runs import LocalRuns
from aswarm.serve import local_only, Service
from aswarm.testing import ScriptedModel

fastapi_app.swarm = fastapi_app.AsyncSwarm(ScriptedModel(["Your order is on its way."], cut=4).client())
service = Service(LocalRuns(fastapi_app.swarm, agents=triage), auth=local_only)
app = FastAPI(lifespan=service.lifespan)
app.include_router(fastapi_app.app.router)  # with its lifespan
app.mount("/agents", service)


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return '<!doctype html><script src="script.js" defer></script>'


@app.get("/script.js")
async def script() -> fastapi_app.Response:
    return fastapi_app.Response(open("script.js").read(), media_type="text/javascript")
"""


@contextmanager
def served(folder: Path, module: str) -> Iterator[str]:
    """The application of a module in a folder, by uvicorn in a process of its own; its address."""
    command = [sys.executable, "-m", "uvicorn", f"{module}:app", "--port", "0"]
    env = {key: value for key, value in os.environ.items() if key != "OPENAI_API_KEY"}
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        finally:
            process.terminate()


def test_the_page_of_the_tutorial_asks_for_an_approval(browser: Browser, tmp_path: Path) -> None:
    """A customer asks for a refund, is asked for the number, and approves; each step is on the page."""
    [page] = TUTORIAL.glob("8-*.md")
    files = {block.notes["file"]: block.code for block in blocks_of(page) if "file" in block.notes}
    for name, code in (earlier_files(page) | files).items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    with served(tmp_path, "web") as address:
        tab = browser.new_page()
        tab.goto(address)
        for text, answer in [("Hello!", "What is the number of your order?"), ("Refund order 7.", "(120 euros)")]:
            tab.fill("input", text)
            tab.click("text=Send")
            expect(tab.locator("#log")).to_contain_text(answer)
        tab.click("text=Approve")
        expect(tab.locator("#log")).to_contain_text("The desk says")
        tab.close()


@pytest.mark.parametrize("number", [0, 1], ids=["EventSource", "fetch"])
def test_a_script_of_the_guide_to_streaming_shows_the_answer(browser: Browser, tmp_path: Path, number: int) -> None:
    """It reads the events of a service, and the stream of the FastAPI application that the other guide shows."""
    pytest.importorskip("fastapi")
    files = {block.notes["file"]: block.code for block in blocks_of(FASTAPI) if "file" in block.notes}
    script = [block.code for block in blocks_of(STREAMING) if block.language == "js"][number]
    for name, code in (files | {"script.js": script, "fetching.py": FETCHING}).items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    with served(tmp_path, "fetching") as address:
        tab = browser.new_page()
        tab.goto(address)
        expect(tab.locator("body")).to_contain_text("Your order is on its way.")
        tab.close()
