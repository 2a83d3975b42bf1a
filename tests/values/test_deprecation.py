"""Deprecated names: the text of the warning, and the line that it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aswarm._values.public_names import warn_deprecated


def new() -> str:
    return "done"


def old() -> str:
    warn_deprecated("aswarm.old", since="0.2", removed="0.4", instead="aswarm.new")
    return new()


class Package:
    """Has a deprecated name, as a module with `__getattr__` has."""

    def __getattr__(self, name: str) -> Any:
        warn_deprecated(f"aswarm.{name}", since="0.2", removed="0.4", instead="aswarm.new")
        return new


def test_the_warning_names_the_versions_and_the_remedy() -> None:
    """A user learns when the name goes, and what to write."""
    with pytest.warns(DeprecationWarning, match="deprecated") as caught:
        assert old() == "done"
    assert [str(each.message) for each in caught] == [
        "aswarm.old is deprecated since aswarm 0.2, and aswarm 0.4 removes it; use aswarm.new"
    ]


@pytest.mark.parametrize("use", [lambda: old(), lambda: Package().older()], ids=["function", "name of a module"])
def test_the_warning_shows_the_line_of_the_caller(use: Callable[[], object]) -> None:
    """Not a line of aswarm: Python shows a DeprecationWarning by default only for the lines of the program itself."""
    with pytest.warns(DeprecationWarning, match="deprecated") as caught:
        use()
    assert [(each.filename, each.lineno) for each in caught] == [(__file__, use.__code__.co_firstlineno)]
