"""Hooks for the statements of SQLite: a test lets some of them fail, or acts before one of them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest


def before_statements(monkeypatch: pytest.MonkeyPatch, act: Callable[[sqlite3.Connection, str], object]) -> None:
    """Call `act` before each statement of the connections that are opened from now on."""
    connect = sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            act(self, statement)
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **more: connect(*given, **{"factory": Connection, **more}))


class Failures(Counter[str]):
    """The number of statements with a text that fail from now on, as on a disk that is full: `failures["INSERT"] = 3`."""

    def check(self, _: sqlite3.Connection, statement: str) -> None:
        for text in self:
            if self[text] > 0 and text in statement:
                self[text] -= 1
                raise sqlite3.OperationalError("disk I/O error")
