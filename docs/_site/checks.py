"""Checks of the built site: it loads nothing from another host, and each page has its copy and its links."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from urllib.parse import unquote, urlsplit

_TAG = re.compile(r"<(\w+)\b([^>]*)>")
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
_STYLE = re.compile(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)")


def searchable(site: Path) -> set[str]:
    """Return the names that the search finds. The inventory has four header lines; the rest is compressed."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}


def check(site: Path) -> list[str]:
    """Return the faults of the site, one line for each: broken links, files of other hosts, missing pictures of the copies."""
    wrong, links, ids = [], [], {}
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        tags = [(tag, dict(_ATTRIBUTE.findall(rest))) for tag, rest in _TAG.findall(text)]
        ids[page] = {values[key] for _, values in tags for key in ("id", "name") if key in values}
        links += [(page, values["href"]) for tag, values in tags if tag == "a" and "href" in values]
        keys = {"link": "href", "object": "data"}
        loads = [values.get(keys.get(tag, "src"), "") for tag, values in tags]
        outside = [*(address for address in loads if urlsplit(address).netloc), *_STYLE.findall(text)]
        wrong += [f"{page.relative_to(site).as_posix()} loads {address}" for address in outside]
    for page, link in links:
        parts = urlsplit(link)
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        is_there = target.exists() and parts.fragment in {"", *ids.get(target, [parts.fragment])}
        if not (parts.scheme or parts.netloc or target.suffix == ".md" or is_there):
            wrong.append(f"{page.relative_to(site).as_posix()} links to {link}, which is not there")
    for copy in sorted(site.rglob("*.md")):
        shown = re.findall(r"(?m)^!\[[^\]]*\]\((?![a-z]+:)([^)\s]+)\)$", copy.read_text(encoding="utf-8"))
        missing = [picture for picture in shown if not (copy.parent / picture).exists()]
        wrong += [f"{copy.relative_to(site).as_posix()} shows {picture}, which is not there" for picture in missing]
    for sheet in site.rglob("*.css"):
        wrong += [f"{sheet.name} loads {address}" for address in _STYLE.findall(sheet.read_text(encoding="utf-8"))]
    return wrong
