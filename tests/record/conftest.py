"""A fixture for the tests of the journal."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a journal that does not exist yet."""
    return tmp_path / "run.sqlite"
