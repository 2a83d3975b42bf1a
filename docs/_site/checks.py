"""What is checked on the built site: it loads nothing from another host, and each page has its copy and its links."""

from __future__ import annotations

import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
    "embed": "src",
    "video": "src",
    "audio": "src",
}
_STYLE = re.compile(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)")


class _Page(HTMLParser):
    """The ids of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is of interest."""
        values = {key: value or "" for key, value in attrs}
        self.ids.update(values[key] for key in ("id", "name") if key in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if LOADS.get(tag, "") in values:
            self.loads.append(values[LOADS[tag]])
        self.loads += _STYLE.findall(values.get("style", ""))
        self._in_style = tag == "style"

    def handle_data(self, data: str) -> None:
        """Note what a style sheet inside of the page loads."""
        if self._in_style:
            self.loads += _STYLE.findall(data)


def searchable(site: Path) -> set[str]:
    """The names whose entries the search knows: those of the inventory, which is compressed below four lines."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}


def check(site: Path) -> list[str]:
    """What is wrong with the site, one line each: links, what pages load, and the pictures of the copies."""
    found = {page: _Page(page.read_text(encoding="utf-8")) for page in sorted(site.rglob("*.html"))}
    wrong = []
    for page, parsed in found.items():
        name = page.relative_to(site).as_posix()
        wrong += [f"{name} loads {address}" for address in parsed.loads if urlsplit(address).netloc]
        for link in parsed.links:
            parts = urlsplit(link)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if parts.scheme or parts.netloc or target.suffix == ".md":
                continue
            if not target.exists() or (parts.fragment and target in found and parts.fragment not in found[target].ids):
                wrong.append(f"{name} links to {link}, which is not there")
    for copy in sorted(site.rglob("*.md")):
        shown = re.findall(r"(?m)^!\[[^\]]*\]\((?![a-z]+:)([^)\s]+)\)$", copy.read_text(encoding="utf-8"))
        missing = [picture for picture in shown if not (copy.parent / picture).exists()]
        wrong += [f"{copy.relative_to(site).as_posix()} shows {picture}, which is not there" for picture in missing]
    for sheet in site.rglob("*.css"):
        wrong += [f"{sheet.name} loads {address}" for address in _STYLE.findall(sheet.read_text(encoding="utf-8"))]
    return wrong
