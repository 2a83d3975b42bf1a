"""The pages of the site, and the copy of them that the generator reads.

Decides which files of the project are pages, their paths on the site, and the targets of their links. The navigation
comes from the links: each folder has an `index.md` that links to every other page of the folder.
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
BESIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "proof/benchmarks.md",
    "benchmarks/results/batches.md": "proof/results-of-batches.md",
}
TITLES = {"proof/results-of-batches.md": "Results of batches"}  # in the sidebar
# The files of an example that its page shows, and the names of their languages.
LANGUAGES = {".py": "python", ".html": "html", ".js": "js", ".jsx": "jsx"}
# The sidebar: captions and their pages. The guides come after the first caption, below the captions of their index.
GROUPS = {
    "Learn": ["tutorial/index.md", "coming-from/index.md", "examples/index.md", "guides/index.md"],
    "Look up": ["reference/index.md"],
    "The project": ["design/index.md", "proof/index.md", "changelog.md", "contributing.md"],
}
CHECKOUT = "checkout:"  # prefix for the path of a project file that is not a page
# Inline code matches too, without an address, because it may look like a link.
LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:`[^`]*`|[^\]`])*)\]\((?P<address>[^)\s]+)\)|(`+)(?!`).+?(?<!`)\4(?!`)", re.DOTALL
)
# Inline code matches too, because it may show a comment.
COMMENT = re.compile(r"(?P<code>`[^`]*`)|<!--.*?-->\n?", re.DOTALL)
FENCE = re.compile(r"(^(`{3,}).*?^\2[ ]*$)", re.MULTILINE | re.DOTALL)


def site_pages() -> dict[Path, str]:
    """Return the path on the site for the file of each page."""
    return _pages_of(DOCS.parent)


@cache
def _pages_of(project: Path) -> dict[Path, str]:
    docs = project / "docs"
    found = {page: page.relative_to(docs).as_posix() for page in sorted(docs.rglob("*.md"))}
    for page in sorted((project / "examples").glob("*/README.md")):
        found[page] = f"examples/{page.parent.name}.md"
    beside = {"examples/README.md": "examples/index.md", **BESIDE}
    found.update({project / source: target for source, target in beside.items() if (project / source).exists()})
    return found


def forget() -> None:
    """Forget the cached pages, so that the next call searches for them again."""
    _pages_of.cache_clear()
    shown_files.cache_clear()


def text_of(page: Path) -> str:
    """Return the page with the directives of the reference, and without the comments that are only for tests."""
    text = reference.expand(page, page.read_text(encoding="utf-8"))
    return _outside_fences(text, lambda part: COMMENT.sub(lambda match: match["code"] or "", part)) + _code_of(page)


@cache
def shown_files(page: Path) -> tuple[Path, ...]:
    """Return the files whose code the page of an example shows: `agents.py` first, without the scripted model."""
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
    """Return the target file of a link of a page, and the fragment."""
    path, _, fragment = address.partition("#")
    target = Path(os.path.normpath(page.parent / path)) if path else page
    readme = target / "README.md"
    return (readme if readme in site_pages() else target), fragment


def address_on_site(page: Path, address: str) -> str:
    """Return the address of a link on the site. A file that is not a page of the site is linked in the checkout."""
    target, fragment = target_of(page, address)
    if reference.is_name(target, fragment):
        fragment = f"{reference.module_of(target)}.{fragment}"
    for readme in site_pages():
        if target in shown_files(readme):
            fragment, target = slug(target.relative_to(readme.parent).as_posix()), readme
    mark = f"#{fragment}" if fragment else ""
    if target not in site_pages():
        return f"{CHECKOUT}{target.relative_to(DOCS.parent).as_posix()}{mark}"
    return f"{_relative(page, site_pages()[target])}{mark}" if target != page else mark


def in_checkout(place: str, address: str) -> str:
    """Return the link from a page in `build/site` to a file of the checkout. SOURCE_URL may be its address on the web."""
    above = "/".join([".."] * (place.count("/") + 2))
    return f"{os.environ.get('SOURCE_URL', above)}/{address.removeprefix(CHECKOUT)}"


def _relative(page: Path, target: str) -> str:
    return os.path.relpath(target, os.path.dirname(site_pages()[page]) or ".")  # noqa: PTH120 - of the site


def children(index: str) -> list[str]:
    """Return the pages of the same folder and its subfolders that an index links to, in the order of the index."""
    return [place for below in sections(index).values() for place in below]


def sections(index: str) -> dict[str, list[str]]:
    """Return the pages of `children` by the headings of the index. Pages above the first heading have the key ""."""
    found: dict[str, list[str]] = {}
    seen = {index, ""}
    for page in [page for page, place in site_pages().items() if place == index]:
        for part in re.split(r"^## ", f"\n{FENCE.sub('', page.read_text(encoding='utf-8'))}", flags=re.MULTILINE):
            here = found.setdefault(part.partition("\n")[0], [])
            for match in LINK.finditer(part):
                place = site_pages().get(target_of(page, match["address"] or "#")[0], "")
                folder = Path(place).parent.parent if place.endswith("/index.md") else Path(place).parent
                if folder == Path(index).parent and place not in seen:
                    seen.add(place)
                    here.append(place)
    return found


def slug(heading: str) -> str:
    """Return the anchor of a heading, in the form that GitHub and GitLab use."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- the copy ---------------------------------------------------------------------------------------------------------


def write_copy(folder: Path) -> list[str]:
    """Write the pages of the site and their pictures to a folder. Return the links that lead to no file."""
    shutil.rmtree(folder, ignore_errors=True)
    wrong: list[str] = []
    for page, place in site_pages().items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_copied(page, folder, wrong), encoding="utf-8")
    return wrong


def _copied(page: Path, folder: Path, wrong: list[str]) -> str:
    def linked(match: re.Match[str]) -> str:
        address = match["address"]
        if not address or re.match(r"[a-z]+:", address):
            return match[0]
        if not target_of(page, address)[0].exists():
            wrong.append(f"{page.relative_to(DOCS.parent)}: {address} leads to no file")
            return match[0]
        address = _copy_picture(page, address, folder) if match["image"] else address_on_site(page, address)
        return f"{match['image']}[{match['text']}]({address})"

    return _outside_fences(text_of(page), lambda part: LINK.sub(linked, part))


def _copy_picture(page: Path, address: str, folder: Path) -> str:
    picture = target_of(page, address)[0]
    (folder / "pictures").mkdir(exist_ok=True)
    shutil.copy(picture, folder / "pictures")
    return _relative(page, f"pictures/{picture.name}")


# --- directives of Sphinx ---------------------------------------------------------------------------------------------


def add_directives(folder: Path) -> None:
    """Add to the copy, for Sphinx: the sidebar, index words, inline drawings."""
    for page, place in site_pages().items():
        text = with_pictures((folder / place).read_text(encoding="utf-8"), folder)
        text = re.sub(
            r"\]\([\w./-]*\.md(#aswarm\.[\w.]+)\)", r"](\1)", text
        )  # links to the entry of a name, on any page
        title, _, rest = text.partition("\n")
        text = "\n".join([title, *_index_words(page), rest, *navigation(place), ""])
        (folder / place).write_text(text, encoding="utf-8")


def _index_words(page: Path) -> list[str]:
    """Return the index entries of a page, such as `<!-- index: sse, server-sent events -->`. The search finds them first."""
    found = re.search(r"^<!-- index: (.*?) -->$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    words = [f"! {' '.join(word.split())}" for word in found[1].split(",")] if found else []
    return ["", f"```{{index}} {', '.join(words)}", "```"] if words else []


def navigation(place: str) -> list[str]:
    """Return the directives that add the pages below an index to the sidebar."""
    if place != "index.md":
        is_index = place.endswith("index.md") and place != "guides/index.md"
        return _toctree(place, children(place)) if is_index else []
    learn, *others = GROUPS.items()
    rest = {*children(place)}.difference(*GROUPS.values())
    groups = dict([learn, *sections("guides/index.md").items(), *others, ("More", sorted(rest))])
    return [line for caption, pages in groups.items() for line in _toctree(place, pages, caption)]


def _toctree(place: str, pages: list[str], caption: str = "") -> list[str]:
    known = {*site_pages().values()}.intersection(pages)
    names = [(os.path.relpath(page, Path(place).parent).removesuffix(".md"), page) for page in pages if page in known]
    below = [f"{TITLES[page]} <{name}>" if page in TITLES else name for name, page in names]
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    return ["", "```{toctree}", *options, "", *below, "```"] if below else []


def with_pictures(text: str, folder: Path) -> str:
    """Return the page with inline drawings instead of links to them, so that their colours follow the theme of the reader."""

    def inline(match: re.Match[str]) -> str:
        drawing = (folder / "pictures" / match["name"]).read_text(encoding="utf-8")
        return f'<figure class="picture">\n{drawing}</figure>' if "picture-svg" in drawing else match[0]

    return re.sub(r"^!\[[^\]]*\]\((?:\.\./)*pictures/(?P<name>[\w-]+\.svg)\)$", inline, text, flags=re.MULTILINE)
