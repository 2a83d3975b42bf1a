"""What the tests of one record share: a file for the notes of the functions."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE_RECORD_NOTES", str(tmp_path / "notes.txt"))
    monkeypatch.setenv("SERVICE_CUT", "100000")
