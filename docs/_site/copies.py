"""For coding assistants: a Markdown copy of each page, `llms.txt` (llmstxt.org) and `llms-full.txt`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from . import pages

SECTIONS = ("tutorial", "guides", "coming-from", "reference", "examples", "design", "proof")


def texts_of(source: Path) -> dict[str, str]:
    """Return the Markdown of each page, in the order of the sidebar. Call it before the directives of Sphinx are added."""
    return {place: _with_links(place, (source / place).read_text(encoding="utf-8")) for place in _in_order()}


def write_copies(texts: dict[str, str], source: Path, site: Path) -> None:
    """Write the Markdown copies and their pictures into the site, and the two files with all pages."""
    for place, text in texts.items():
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        (site / place).write_text(text, encoding="utf-8")
    if (source / "pictures").exists():
        shutil.copytree(source / "pictures", site / "pictures", dirs_exist_ok=True)
    (site / "llms.txt").write_text(_overview(texts), encoding="utf-8")
    full = "\n\n".join(f"<!-- {place} -->\n\n{text}" for place, text in texts.items())
    (site / "llms-full.txt").write_text(full, encoding="utf-8")


def _with_links(place: str, text: str) -> str:
    return re.sub(rf"(?<=\]\(){pages.CHECKOUT}[^)]+", lambda match: pages.in_checkout(place, match[0]), text)


def _in_order(index: str = "index.md") -> list[str]:
    below = [[place] if not place.endswith("/index.md") else _in_order(place) for place in pages.children(index)]
    return [index, *(place for places in below for place in places)]


def _overview(texts: dict[str, str]) -> str:
    summary = " ".join(texts["index.md"].split("\n\n")[1].split())
    lines = ["# aswarm", "", f"> {summary.replace('*', '')}"]
    for section in SECTIONS:
        here = [place for place in texts if place.startswith(f"{section}/")]
        if here:
            lines += ["", f"## {_title(texts[here[0]])}", ""]
            lines += [f"- [{_title(texts[place])}]({place}){_question(texts[place])}" for place in here]
    rest = [place for place in texts if "/" not in place and place != "index.md"]
    return "\n".join([*lines, "", "## Optional", "", *(f"- [{_title(texts[place])}]({place})" for place in rest), ""])


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ").replace("`", "")


def _question(text: str) -> str:
    """Return the question that a page answers: the text in italics below its title."""
    found = re.match(r"# .*\n\n\*([^*]+)\*", text)
    return f": {' '.join(found[1].split())}" if found else ""
