"""The promises of a release, which later releases must keep: public names, compared with the last tag, and the ends of deprecations.

`python -m tests.support.contract.stability` prints the changes since the last tag that the changelog does not announce. An announced
change has its name, in backticks, in a section above the section of the tag.

griffe finds breaking changes: each needs its name under "Changed" or "Removed". It does not see overloads, return types, `async`,
values of aliases, options behind `Unpack`, and other bases. The page of all public names shows them. A line of the page that has
changed needs its name under any heading, because the change may be an addition; a name that is gone, under "Changed" or "Removed".
"""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

from docs._site.reference import MADE_BY_ASWARM

PROJECT = Path(__file__).parents[3]
PAGE = "docs/reference/public-names.md"

_BREAKING = "Changed|Removed"  # the headings
_LINE = re.compile(r"( *)- (?:`(?:(?:async|class|classmethod|def|staticmethod) )*(?P<name>\w+).*|subclass of .*)")
Names = dict[str, list[str]]  # the lines of each name: several for overloads, and for a class with bases


def last_tag(repository: Path) -> str | None:
    """Return the newest tag of a version before HEAD, or None before the first release."""
    command = ["git", "-C", str(repository), "describe", "--tags", "--abbrev=0", "--match=v[0-9]*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def names_of(page: str) -> Names:
    """Return the lines of each public name on the page of all public names."""
    names: Names = {}
    for section in page.split("\n## `")[1:]:
        module = section.partition("`")[0]
        owner = full = module
        for line in filter(None, map(_LINE.fullmatch, section.splitlines())):
            if line["name"]:
                full = f"{owner if line[1] else module}.{line['name']}"
                owner = owner if line[1] else full
            names.setdefault(full, []).append(line[0].strip(" -"))
    return names


def names_at(repository: Path, tag: str) -> Names:
    """Return the names on the page of the tag; none if the tag has no such page."""
    command = ["git", "-C", str(repository), "show", f"{tag}:{PAGE}"]
    return names_of(subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout)


def changed_lines(old: Names, new: Names) -> dict[str, str]:
    """Return the names whose lines are gone or different, except members of a class that is gone."""
    changes = {}
    for name, lines in old.items():
        changed = [line for line in difflib.ndiff(lines, new.get(name, [])) if line[0] in "-+"]
        owner = name.rpartition(".")[0]
        if changed and not (owner in old and owner not in new):
            changes[name] = "\n  ".join(["changed", *changed])
    return changes


def breaking_changes(repository: Path, tag: str, names: Names | None = None) -> dict[str, str]:
    """Return the breaking changes of the public names since the tag: the text of each by its name.

    The constructors of classes that only aswarm makes are no promise.
    """
    old = griffe.load_git("aswarm", ref=tag, repo=repository, search_paths=["src"], resolve_aliases=False)
    new = griffe.load("aswarm", search_paths=[repository / "src"])
    changes: dict[str, str] = {}
    for change in griffe.find_breaking_changes(old, new):
        name = _public_name(change.obj, names or {})
        if change.obj.name == "__init__" and name.rpartition(".")[2] in MADE_BY_ASWARM:
            continue
        text = re.sub(r"^\S+?: |\x1b\[\d+m", "", change.explain(griffe.ExplanationStyle.ONE_LINE))
        changes[name] = f"{changes[name]}; {text}" if name in changes else text
    return changes


def _public_name(value: griffe.Object | griffe.Alias, names: Names) -> str:
    """Return the name that users import: `aswarm.Budget.seconds`, not `aswarm._values.budget.Budget.seconds`."""
    path = value.path.removesuffix(".__init__")
    if "._" not in path:
        return path
    module, name = path.partition("._")[0], path.removeprefix(value.module.path)
    homes = [home for home, _, last in (each.rpartition(".") for each in names) if last == name.split(".")[1]]
    homes = [home for home in homes if home not in names]  # modules, not classes
    return f"{module if module in homes or not homes else homes[0]}{name}"


def announced(changelog: str, tag: str, headings: str = _BREAKING) -> set[str]:
    """Return the names in backticks under these headings, in the sections above the section of the tag.

    These are "Unreleased" and, in the commit of a release, the section of the new version.
    """
    newer = changelog.partition(f"\n## [{tag.removeprefix('v')}]")[0]
    sections = re.findall(rf"^### (?:{headings})\n(.*?)(?=^###? |\Z)", newer, re.MULTILINE | re.DOTALL)
    return {name for text in sections for name in re.findall(r"`([\w.]+)`", text)}


def deprecations(source: Path) -> Iterator[tuple[str, str]]:
    """Yield the place of each call of `warn_deprecated`, and the version that removes its name."""
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        calls = (
            [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            if "warn_deprecated(" in text
            else []
        )
        for node in calls:
            if ast.unparse(node.func).endswith("warn_deprecated"):
                values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
                yield f"{path.name}:{node.lineno}", values["removed"]


def unannounced(repository: Path, tag: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the changes that the changelog does not announce: breaking changes, and other lines of the page."""
    text = (repository / "CHANGELOG.md").read_text(encoding="utf-8")
    old = names_at(repository, tag)
    new = names_of((repository / PAGE).read_text(encoding="utf-8")) if old else {}
    lines = changed_lines(old, new)
    breaking = {name: lines[name] for name in lines if name not in new} | breaking_changes(repository, tag, old)
    known = announced(text, tag, r"\w+").union(breaking)
    for name in list(lines):
        # A field and a parameter are a part of the line of their class or function: `aswarm.Budget.seconds` announces both.
        parts = (each for each in known if each.startswith(f"{name}.") and each not in old and each not in new)
        if name in known or any(parts):
            del lines[name]
    names = announced(text, tag)
    return {name: breaking[name] for name in breaking if name not in names}, lines


def main(repository: Path = PROJECT) -> int:
    """Print the changes that are not announced. Returns the exit code."""
    tag = last_tag(repository)
    if tag is None:
        print("there is no release yet: nothing to compare the public names with")
        return 0
    breaking, lines = unannounced(repository, tag)
    _report(
        breaking,
        f'not compatible with {tag}: restore these names, or put each, as `name`, under "Changed" or "Removed"',
    )
    _report(lines, f"not as in {tag}: put each, as `name`, under any heading, such as Added for a new option,")
    return bool(breaking or lines)


def _report(changes: dict[str, str], remedy: str) -> None:
    for name, text in sorted(changes.items()):
        print(f"{name}: {text}")
    if changes:
        print(f"{remedy} of CHANGELOG.md")


if __name__ == "__main__":
    sys.exit(main())
