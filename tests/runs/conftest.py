"""Fixtures for the tests of runs: agents, failures of SQLite, and a file for the notes of functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runs.kept_runs import Workshop
from tests.support.sql.hooks import Failures, before_statements


@pytest.fixture(autouse=True)
def _notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE_RECORD_NOTES", str(tmp_path / "notes.txt"))
    monkeypatch.setenv("SERVICE_CUT", "100000")


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    """The statements that fail on connections of SQLite that are opened after this."""
    made = Failures()
    before_statements(monkeypatch, made.check)
    return made
