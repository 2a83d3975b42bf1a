"""Promises to users of earlier versions: the check of public names against the last tag, and the ends of deprecations."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from stability import PROJECT, announced, breaking_changes, deprecations, last_tag, main

import aswarm

GIT = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
PUBLIC = 'from ._room import shop\n\n__all__ = ["shop"]\n'
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n### Removed\n\n- {}\n\n## [0.1.0] - 2026-12-01\n\n### Removed\n\n- `aswarm.old`\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A project with a function, and a tag for its release."""
    room = tmp_path / "src/aswarm/_room.py"
    room.parent.mkdir(parents=True)
    room.with_name("__init__.py").write_text(PUBLIC)
    room.write_text("def shop(price: int, name: str = 'a') -> int:\n    return price\n")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.format("nothing"))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    return tmp_path


def git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(repository), *arguments], check=True, env={**os.environ, **GIT})


@pytest.mark.processes
def test_before_the_first_tag_there_is_nothing_to_compare(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The check passes and says so."""
    assert last_tag(repository) is None
    assert main(repository) == 0
    assert "no release yet" in capsys.readouterr().out


@pytest.mark.processes
def test_a_compatible_change_passes(repository: Path) -> None:
    """A new function, and a new optional parameter."""
    git(repository, "tag", "v0.1.0")
    room = repository / "src/aswarm/_room.py"
    room.write_text(
        "def shop(price: int, name: str = 'a', more: int = 0) -> int:\n    return price\n\ndef new() -> None: ...\n"
    )
    assert breaking_changes(repository, "v0.1.0") == {}
    assert main(repository) == 0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("def shop(price: int) -> int:\n    return price\n", "was removed"),
        ("def shop(price: int, name: str = 'b') -> int:\n    return price\n", "default was changed"),
        ("def shop(price: int, unit: str, name: str = 'a') -> int:\n    return price\n", "added as required"),
        ("shop = 3\n", "different kind"),
    ],
)
def test_a_breaking_change_fails_unless_the_changelog_announces_it(
    repository: Path, capsys: pytest.CaptureFixture[str], source: str, text: str
) -> None:
    """The text names the public name, the change and the remedy. An old section of the changelog announces nothing."""
    git(repository, "tag", "v0.1.0")
    (repository / "src/aswarm/_room.py").write_text(source)
    assert main(repository) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("aswarm.shop: ")
    assert text in printed
    assert "not compatible with v0.1.0: restore these names, or put each, as `name`, under" in printed
    (repository / "CHANGELOG.md").write_text(CHANGELOG.format("`aswarm.shop` has another price"))
    assert main(repository) == 0


@pytest.mark.processes
def test_a_removed_public_name_is_found(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if the module that defined it still has it."""
    git(repository, "tag", "v0.1.0")
    (repository / "src/aswarm/__init__.py").write_text("__all__ = []\n")
    assert main(repository) == 1
    assert capsys.readouterr().out.startswith("aswarm.shop: ")


MADE = """
from dataclasses import dataclass


class EventStream:
    def __init__(self, {plain}) -> None:
        self.run_id = "x"

    {method}


@dataclass
class ToolCall:
    {field}: str
    index: int = 0
"""


@pytest.mark.processes
def test_the_constructor_of_a_class_that_only_aswarm_makes_may_change(repository: Path) -> None:
    """A parameter of the plain class and a private field of the dataclass; methods are still compared."""
    room, public = repository / "src/aswarm/_room.py", repository / "src/aswarm/__init__.py"
    public.write_text("from ._room import EventStream, ToolCall\n\n__all__ = ['EventStream', 'ToolCall']\n")
    method = "def send(self) -> None: ..."
    room.write_text(MADE.format(plain="state: int", field="_outcome", method=method))
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=second")
    git(repository, "tag", "v0.1.0")
    room.write_text(MADE.format(plain="other: str", field="_result", method=method))
    assert breaking_changes(repository, "v0.1.0") == {}
    room.write_text(MADE.format(plain="other: str", field="_result", method="pass"))
    assert set(breaking_changes(repository, "v0.1.0")) == {"aswarm.EventStream.send"}


def test_the_sections_above_the_last_release_announce() -> None:
    """The names of earlier versions were announced for those versions. A release renames "Unreleased" before its tag."""
    text = CHANGELOG.format("`aswarm.Budget.seconds` is `a.b`")
    assert announced(text, "v0.1.0") == {"aswarm.Budget.seconds", "a.b"}
    released = text.replace("## [Unreleased]", "## [Unreleased]\n\n## [0.2.0] - 2027-01-01")
    assert announced(released, "v0.1.0") == {"aswarm.Budget.seconds", "a.b"}
    assert announced(released, "v0.2.0") == set()


def test_a_deprecated_name_is_gone_in_the_version_that_removes_it(tmp_path: Path) -> None:
    """`warn_deprecated` promises a version, and this test keeps the promise."""
    (tmp_path / "old.py").write_text(
        "def old():\n    warn_deprecated('old', since='0.1', removed='0.1.0', instead='new')\n"
    )
    assert list(deprecations(tmp_path)) == [("old.py:2", "0.1.0")]
    promised = list(deprecations(PROJECT / "src"))
    assert [each for each in promised if numbers(each[1]) <= numbers(aswarm.__version__)] == []


def numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]
