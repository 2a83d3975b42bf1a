"""Promises to users of earlier versions: the check of public names against the last tag, and the ends of deprecations."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aswarm
from tests.support.contract.stability import PAGE, PROJECT, announced, breaking_changes, deprecations, last_tag, main

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
    """The check passes and prints the reason."""
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


SHOP = """
from __future__ import annotations

from typing import TypedDict, overload

LIMIT = 10
Currency = str | None
Price = int | float
Unit = Price | str


class Options(TypedDict, total=False):
    color: str
    size: int


class ShopError(Exception): ...


class SoldOutError(ShopError): ...


class Base:
    def closes(self) -> int: ...


class Shop(Base):
    @property
    def name(self) -> str: ...

    def opens(self) -> int: ...

    @overload
    def find(self, name: str) -> int: ...

    @overload
    def find(self, name: bytes) -> float: ...

    def find(self, name): ...


class Stall:
    def move(self, place: str) -> None: ...


@overload
def buy(name: str) -> int: ...


@overload
def buy(name: bytes) -> float: ...


def buy(name): ...


def sell(name: str, **options: Unpack[Options]) -> None: ...


def pay(limit: int = LIMIT, currency: Currency = None) -> None: ...
"""
NAMES = ["Price", "Shop", "ShopError", "SoldOutError", "Unit", "buy", "pay", "sell"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A project with the code that makes the page of all public names, and a tag for its release."""
    room = tmp_path / "src/aswarm/_shop.py"
    room.parent.mkdir(parents=True)
    room.with_name("__init__.py").write_text(f"from ._shop import {', '.join(NAMES)}\n\n__all__ = {NAMES}\n")
    room.with_name("market.py").write_text("from ._shop import Stall\n\n__all__ = ['Stall']\n")
    (room.parent / "cli").mkdir()
    (room.parent / "cli/__init__.py").write_text("__all__ = []\n")
    shutil.copytree(PROJECT / "docs/_site", tmp_path / "docs/_site", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs/reference").mkdir()
    (tmp_path / "docs/reference/index.md").touch()
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG.format("nothing"))
    release(tmp_path, SHOP)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    git(tmp_path, "tag", "v0.1.0")
    return tmp_path


def release(shop: Path, source: str) -> None:
    """Write the source, and make the page of it."""
    (shop / "src/aswarm/_shop.py").write_text(source)
    command = [sys.executable, "-c", "from docs._site import signatures; print(signatures.listing())"]
    environment = {**os.environ, "PYTHONPATH": str(shop / "src")}
    made = subprocess.run(command, cwd=shop, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    (shop / PAGE).write_text(f"# Names\n\n{made.stdout}")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("old", "new", "name", "text"),
    [
        (
            "def buy(name: bytes) -> float",
            "def buy(name: bytes) -> int",
            "buy",
            "- `def buy(name: bytes) -> float`; + `def buy(name: bytes) -> int`",
        ),
        (
            "def find(self, name: bytes) -> float",
            "def find(self, name: bytes) -> int",
            "Shop.find",
            "- `def find(name: bytes) -> float`; + `def find(name: bytes) -> int`",
        ),
        ("def opens(self) -> int", "def opens(self) -> float", "Shop.opens", "+ `def opens() -> float`"),
        ("def closes(self) -> int", "def closes(self) -> float", "Shop.closes", "+ `def closes() -> float`"),
        ("def name(self) -> str", "def name(self) -> int", "Shop.name", "- `name -> str`; + `name -> int`"),
        ("def opens", "async def opens", "Shop.opens", "+ `async def opens() -> int`"),
        (" -> None: ...\n\n\ndef pay", " -> int: ...\n\n\ndef pay", "sell", "-> int`"),
        ("color: str\n", "color: bool\n", "sell", "*, color: bool = ..., size: int = ...) -> None`"),
        ("    size: int\n", "", "sell", "*, color: str = ...) -> None`"),
        ("    size: int\n", "    size: int\n    weight: int\n", "sell", "weight: int = ...) -> None`"),
        ("(ShopError)", "(Exception)", "SoldOutError", "- subclass of `ShopError`; + subclass of `Exception`"),
        (
            "def find(self, name: str) -> int: ...\n\n    @overload\n    def find(self, name: bytes) -> float: ...",
            "def find(self, name: bytes) -> float: ...\n\n    @overload\n    def find(self, name: str) -> int: ...",
            "Shop.find",
            "+ `def find(name: bytes) -> float`; ",
        ),
        ("LIMIT = 10", "LIMIT = 5", "pay", "- `def pay(limit: int = 10, "),
        ("Price = int | float", "Price = int | str", "Price", "- `Price = int | float`; + `Price = int | str`"),
        ("Unit = Price | str", "Unit = Price | bytes", "Unit", "+ `Unit = Price | bytes`"),
        ("Currency = str | None", "Currency = bytes | None", "pay", "currency: bytes | None = None"),
    ],
)
def test_a_change_that_only_the_page_shows_needs_its_name_under_any_heading(
    shop: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, name: str, text: str
) -> None:
    """Overloads, return types, `async`, options, bases, private constants and aliases: the check prints the old and the new line."""
    assert SHOP.count(old) == 1
    release(shop, SHOP.replace(old, new))
    assert breaking_changes(shop, "v0.1.0") == {}
    assert main(shop) == 1
    printed, *lines, remedy = capsys.readouterr().out.splitlines()
    assert printed == f"aswarm.{name}: changed"
    assert text in "; ".join(line.strip() for line in lines)
    assert remedy.startswith("not as in v0.1.0: put each, as `name`, under any heading")
    (shop / "CHANGELOG.md").write_text(CHANGELOG.format(f"nothing\n\n### Added\n\n- `aswarm.{name}` is new"))
    assert main(shop) == 0


@pytest.mark.processes
def test_a_line_that_is_gone_from_the_page_needs_changed_or_removed(shop: Path) -> None:
    """For a name that griffe does not see, such as a name of another package. "Added" is not enough."""
    page = (shop / PAGE).read_text()
    (shop / PAGE).write_text("".join(line for line in page.splitlines(keepends=True) if "def pay(" not in line))
    assert breaking_changes(shop, "v0.1.0") == {}
    for heading, code in {"Added": 1, "Changed": 0}.items():
        (shop / "CHANGELOG.md").write_text(CHANGELOG.format(f"nothing\n\n### {heading}\n\n- `aswarm.pay`"))
        assert main(shop) == code


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
