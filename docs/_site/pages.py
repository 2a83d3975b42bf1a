"""The pages of the site, and the copy of them that the generator reads.

Decides which files of the project are pages, where they stand on the site, and where their links lead. The navigation is
made of the links: each folder has an `index.md`, and every other page of the folder is linked from there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

from . import reference

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
HOME = "https://github.com/aswarm-dev/aswarm"
BESIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "proof/benchmarks.md",
    "benchmarks/results/results.md": "proof/results.md",
    "benchmarks/results/batches/results.md": "proof/results-of-batches.md",
}
TITLES = {
    "proof/results.md": "Results",
    "proof/results-of-batches.md": "Results of batches",
}  # both have the same title
# What a page of an example shows, and the names of the languages.
LANGUAGES = {".py": "python", ".html": "html", ".js": "js", ".jsx": "jsx"}
# Inline code is matched too, without an address, because it may look like a link.
LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^\]`])*)\]\((?P<address>[^)\s]+)\)|(`+)(?!`).+?(?<!`)\4(?!`)", re.DOTALL
)
FENCE = re.compile(r"(^(`{3,}).*?^\2[ ]*$)", re.MULTILINE | re.DOTALL)


class BrokenLink(Exception):  # noqa: N818 - reads as what happened
    """A link leads to a file or a name that is not there."""


def site_pages() -> dict[Path, str]:
    """Each page: its file, and its path on the site."""
    return _pages_of(DOCS.parent)


@cache
def _pages_of(project: Path) -> dict[Path, str]:
    docs = project / "docs"
    found = {
        page: page.relative_to(docs).as_posix() for page in sorted(docs.rglob("*.md")) if "_site" not in page.parts
    }
    for page in sorted((project / "examples").glob("*/README.md")):
        found[page] = f"examples/{page.parent.name}.md"
    beside = {"examples/README.md": "examples/index.md", **BESIDE}
    found.update({project / source: target for source, target in beside.items() if (project / source).exists()})
    return found


def forget() -> None:
    """Look for the pages again."""
    _pages_of.cache_clear()
    shown_files.cache_clear()


def text_of(page: Path) -> str:
    """The page with the entries of the reference, and without the comments that only tests read."""
    text = page.read_text(encoding="utf-8")
    if page.parent == reference.FOLDER:
        text = reference.expand(page, text)
    return _outside_fences(text, lambda part: re.sub(r"<!--.*?-->\n?", "", part, flags=re.DOTALL)) + _code_of(page)


@cache
def shown_files(page: Path) -> tuple[Path, ...]:
    """The files whose code the page of an example shows: all but the scripted model; agents first, then what runs them."""
    if page.name != "README.md" or page.parent.parent != DOCS.parent / "examples":
        return ()
    files = [*page.parent.glob("*"), *page.parent.glob("web/*")]
    shown = [file for file in files if file.suffix in LANGUAGES and file.name != "script.py"]
    return tuple(sorted(shown, key=lambda file: (file.name != "agents.py", file.name != "run.py", file)))


def _code_of(page: Path) -> str:
    parts = []
    for file in shown_files(page):
        fence = "`" * (4 if "```" in (code := file.read_text(encoding="utf-8")) else 3)
        name = file.relative_to(page.parent).as_posix()
        parts.append(f"### `{name}`\n\n{fence}{LANGUAGES[file.suffix]}\n{code.rstrip()}\n{fence}\n")
    return "\n".join(["\n## The code\n", *parts]) if parts else ""


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for match in FENCE.finditer(text):
        parts += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, change(text[end:])])


# --- links ------------------------------------------------------------------------------------------------------------


def target_of(page: Path, address: str) -> tuple[Path, str]:
    """The file that a link of a page leads to, and the fragment. Raises BrokenLink if there is no such file."""
    path, _, fragment = address.partition("#")
    target = Path(os.path.normpath(page.parent / path)) if path else page
    if target.is_dir() and target / "README.md" in site_pages():
        target /= "README.md"
    if not target.exists():
        raise BrokenLink(f"{page.relative_to(DOCS.parent)}: {address} leads to no file")
    return target, fragment


def address_on_site(page: Path, address: str) -> str:
    """The address that a link of a page has on the site. What is no page there leads to the source of the project."""
    if re.match(r"[a-z]+:", address):
        return address
    target, fragment = target_of(page, address)
    if target.parent == reference.FOLDER and fragment:
        fragment = reference.anchor(target, fragment) or fragment
    readme = next((each for each in site_pages() if target in shown_files(each)), None)
    if readme is not None:
        fragment, target = reference.slug(target.relative_to(readme.parent).as_posix()), readme
    mark = f"#{fragment}" if fragment else ""
    if target not in site_pages():
        return f"{HOME}/{'tree' if target.is_dir() else 'blob'}/main/{target.relative_to(DOCS.parent).as_posix()}{mark}"
    return f"{_relative(page, site_pages()[target])}{mark}" if target != page else mark


def _relative(page: Path, target: str) -> str:
    return os.path.relpath(target, os.path.dirname(site_pages()[page]) or ".")  # noqa: PTH120 - of the site


def orphans() -> list[str]:
    """The pages that the index of their folder does not link to, and the folders that the first page does not."""
    wrong = []
    for page, place in site_pages().items():
        if place == "index.md":
            continue
        folder = (
            Path(place).parent.parent if page.name == "index.md" or place == "examples/index.md" else Path(place).parent
        )
        if place not in children(f"{folder.as_posix()}/index.md".removeprefix("./")):
            wrong.append(place)
    return wrong


def children(index: str) -> list[str]:
    """The pages of the same folder, and of folders in it, that an index links to, in its order."""
    sources = {place: page for page, place in site_pages().items()}
    if index not in sources:
        return []
    page = sources[index]
    found: list[str] = []
    for match in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if match["address"] and not match["image"] and not re.match(r"[a-z]+:|#", match["address"]):
            try:
                place = site_pages().get(target_of(page, match["address"])[0], "")
            except BrokenLink:
                continue  # `write_copy` finds it too
            folder = Path(place).parent
            is_below = folder == Path(index).parent or (
                place.endswith("/index.md") and folder.parent == Path(index).parent
            )
            if is_below and place not in (*found, index, ""):
                found.append(place)
    return found


def headings(text: str) -> set[str]:
    """The anchors of a page."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {reference.slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)) for title in titles}


def broken_links(folder: Path) -> list[str]:
    """The links in the copy of the pages that lead to no page, or to no heading of it."""
    texts = {page.relative_to(folder).as_posix(): page.read_text(encoding="utf-8") for page in folder.rglob("*.md")}
    anchors = {place: headings(text) for place, text in texts.items()}
    wrong = []
    for place, text in texts.items():
        for match in LINK.finditer(FENCE.sub("", text)):
            address = match["address"] or "https:"
            path, _, fragment = address.partition("#")
            target = os.path.normpath(Path(place).parent / path) if path else place
            if re.match(r"[a-z]+:", address) or (match["image"] and (folder / target).exists()):
                continue
            if target not in texts or (fragment and fragment not in anchors[target]):
                wrong.append(f"broken link on {place}: {address}")
    return wrong


# --- the copy ---------------------------------------------------------------------------------------------------------


def write_copy(folder: Path) -> list[str]:
    """Write the pages of the site, and the pictures that they show, to a folder; the links to no file."""
    shutil.rmtree(folder, ignore_errors=True)
    wrong: list[str] = []
    for page, place in site_pages().items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_copied(page, folder, wrong), encoding="utf-8")
    return wrong


def _copied(page: Path, folder: Path, wrong: list[str]) -> str:
    def address_of(match: re.Match[str]) -> str:
        address = match["address"]
        try:
            if match["image"] and not re.match(r"[a-z]+:", address):
                return f"![{match['text']}]({_copy_picture(page, address, folder)})"
            return f"{match['image']}[{match['text']}]({address_on_site(page, address)})"
        except BrokenLink as error:
            wrong.append(str(error))
            return match[0]

    return with_links(page, text_of(page), address_of)


def with_links(page: Path, text: str, link: Callable[[re.Match[str]], str]) -> str:
    """The text with its links changed by `link`, and with links of the names that it mentions to the reference."""
    seen: set[str] = set()

    def change(match: re.Match[str]) -> str:
        return link(match) if match["address"] else _with_link_to_reference(page, match, seen)

    return _outside_fences(text, lambda part: LINK.sub(change, part))


def _with_link_to_reference(page: Path, match: re.Match[str], seen: set[str]) -> str:
    """Inline code. The first that is a name of `aswarm`, or a public module, leads to its place in the reference."""
    name = match[0].strip("`")
    line = match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()]
    target = reference.target_of(name)
    if (
        line.startswith("#")
        or target is None
        or name in seen
        or target[0] not in site_pages()
        or page.parent == reference.FOLDER
    ):
        return match[0]
    seen.add(name)
    place, fragment = target
    return f"[{match[0]}]({_relative(page, site_pages()[place])}{fragment and f'#{fragment}'})"


def _copy_picture(page: Path, address: str, folder: Path) -> str:
    picture, _ = target_of(page, address)
    place = f"pictures/{picture.name}"
    (folder / "pictures").mkdir(exist_ok=True)
    shutil.copy(picture, folder / place)
    return _relative(page, place)


def navigation(place: str) -> str:
    """The directive that puts the pages below an index into the navigation; nothing for another page."""
    if not place.endswith("index.md"):
        return ""
    names = {child: os.path.relpath(child, Path(place).parent).removesuffix(".md") for child in children(place)}
    below = [f"{TITLES[child]} <{name}>" if child in TITLES else name for child, name in names.items()]
    return "\n".join(["", "```{toctree}", ":hidden:", "", *below, "```", ""]) if below else ""


def with_pictures(text: str, folder: Path) -> str:
    """The page with the drawings in place of links to them: their colours then follow the theme that a reader chooses."""

    def inline(match: re.Match[str]) -> str:
        drawing = (folder / "pictures" / match["name"]).read_text(encoding="utf-8")
        return f'<figure class="picture">\n{drawing}</figure>' if "picture-svg" in drawing else match[0]

    return re.sub(r"^!\[[^\]]*\]\((?:\.\./)*pictures/(?P<name>[\w-]+\.svg)\)$", inline, text, flags=re.MULTILINE)
