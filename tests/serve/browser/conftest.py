"""A lamp shop behind the page in a process of its own, a proxy that cuts connections, and Chromium."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.serve.browser_tabs import SUPPORT, Tabs
from tests.support.serve.cutting_proxy import CuttingProxy

ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium of the system."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def served(*arguments: str) -> Iterator[int]:
    """Serve the lamp shop in a process of its own; the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    path = os.pathsep.join([os.fspath(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, os.fspath(SUPPORT / "playground.py"), str(port), *arguments]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL) as process:
        for _ in range(300):
            try:
                httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield port
        process.terminate()


@pytest.fixture(scope="session")
def shop() -> Iterator[int]:
    """The port of the lamp shop."""
    with served() as port:
        yield port


@pytest.fixture
def mounted_shop() -> Iterator[int]:
    """The port of an app that has the lamp shop below /agents, for users with a token."""
    with served("mounted") as port:
        yield port


@pytest.fixture
def proxy(shop: int) -> Iterator[CuttingProxy]:
    """A proxy before the lamp shop, which cuts connections."""
    with CuttingProxy(shop) as proxy:
        yield proxy


@pytest.fixture
def service(proxy: CuttingProxy) -> Iterator[httpx.Client]:
    """A client of the service."""
    with httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", trust_env=False, timeout=20) as client:
        yield client


@pytest.fixture
def new_tabs(browser: Browser, proxy: CuttingProxy) -> Iterator[Callable[..., Tabs]]:
    """Makes the tabs of one user. At the end of the test they must have been without errors and without other hosts."""
    made: list[Tabs] = []

    def make(**settings: Any) -> Tabs:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **settings})
        made.append(Tabs(context, f"http://127.0.0.1:{proxy.port}"))
        return made[-1]

    yield make
    for tabs in made:
        tabs.context.close()
        assert (tabs.elsewhere, tabs.errors) == ([], [])


@pytest.fixture
def tabs(new_tabs: Callable[..., Tabs]) -> Tabs:
    """The tabs of one user."""
    return new_tabs()
