"""What a release promises and a later one must keep: public names, compared with the last tag, and the ends of deprecations.

`python tests/support/contract/stability.py` prints the breaking changes since the last tag that the changelog does not announce. An
announced change has its name, in backticks, under "Changed" or "Removed" in a section above that of the tag.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

PROJECT = Path(__file__).parents[3]
sys.path.append(str(PROJECT / "docs"))  # this is a script too

from _site.reference import MADE_BY_ASWARM  # noqa: E402

_ANNOUNCED = ("Changed", "Removed")


def last_tag(repository: Path) -> str | None:
    """Return the newest tag of a version before HEAD, or None before the first release."""
    command = ["git", "-C", str(repository), "describe", "--tags", "--abbrev=0", "--match=v[0-9]*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def breaking_changes(repository: Path, tag: str) -> dict[str, str]:
    """Return the breaking changes of the public names since the tag: the text of each by its name.

    The constructors of classes that only aswarm makes are no promise.
    """
    old = griffe.load_git("aswarm", ref=tag, repo=repository, search_paths=["src"], resolve_aliases=False)
    new = griffe.load("aswarm", search_paths=[repository / "src"])
    changes: dict[str, str] = {}
    for change in griffe.find_breaking_changes(old, new):
        name = _public_name(change.obj)
        if change.obj.name == "__init__" and name.rpartition(".")[2] in MADE_BY_ASWARM:
            continue
        text = re.sub(r"^\S+?: |\x1b\[\d+m", "", change.explain(griffe.ExplanationStyle.ONE_LINE))
        changes[name] = f"{changes[name]}; {text}" if name in changes else text
    return changes


def _public_name(value: griffe.Object | griffe.Alias) -> str:
    """Return the name that users import: `aswarm.Budget.seconds`, not `aswarm._values.budget.Budget.seconds`."""
    path = value.path.removesuffix(".__init__")
    if "._" not in path:
        return path
    return path.partition("._")[0] + path.removeprefix(value.module.path)


def announced(changelog: str, tag: str) -> set[str]:
    """Return the names in backticks under "Changed" and "Removed", in the sections above the section of the tag.

    These are "Unreleased" and, in the commit of a release, the section of the new version.
    """
    newer = changelog.partition(f"\n## [{tag.removeprefix('v')}]")[0]
    sections = re.findall(r"^### (\w+)\n(.*?)(?=^###? |\Z)", newer, re.MULTILINE | re.DOTALL)
    return {name for title, text in sections if title in _ANNOUNCED for name in re.findall(r"`([\w.]+)`", text)}


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


def main(repository: Path = PROJECT) -> int:
    """Print the changes that are not announced. Returns the exit code."""
    tag = last_tag(repository)
    if tag is None:
        print("there is no release yet: nothing to compare the public names with")
        return 0
    names = announced((repository / "CHANGELOG.md").read_text(encoding="utf-8"), tag)
    changes = {name: text for name, text in breaking_changes(repository, tag).items() if name not in names}
    for name, text in sorted(changes.items()):
        print(f"{name}: {text}")
    if changes:
        print(
            f'not compatible with {tag}: restore these names, or put each, as `name`, under "Changed" or "Removed" of CHANGELOG.md'
        )
    return bool(changes)


if __name__ == "__main__":
    sys.exit(main())
