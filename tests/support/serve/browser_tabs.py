"""Tabs of a browser, for the tests of the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

SUPPORT = Path(__file__).parent


class Tabs:
    """Opens tabs, and records forbidden events: requests to other hosts, errors, violations of the policy."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.elsewhere: list[str] = []
        self.errors: list[str] = []
        context.route("**/*", self._route)
        context.add_init_script(
            "addEventListener('securitypolicyviolation', (event) => console.error('POLICY ' + event.violatedDirective))"
        )

    def _route(self, route: Any) -> None:
        url = urlsplit(route.request.url)
        if url.hostname == "127.0.0.1" or url.scheme in ("blob", "data"):
            route.continue_()
        else:
            self.elsewhere.append(route.request.url)
            route.abort()

    def open(self, place: str = "#/") -> Page:
        """Open a tab at a place of the page, and wait until it is drawn."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self._note(message.text) if message.type == "error" else None)
        page.goto(f"{self.url}/{place}")
        page.wait_for_selector(".card" if place == "#/" else ".turn")
        return page

    def _note(self, text: str) -> None:
        if "Failed to load resource" not in text and "net::ERR" not in text:
            self.errors.append(text)
