"""The current directory of tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli.cli_runs import AGENTS


@pytest.fixture(autouse=True)
def project(folder: Path) -> Path:
    """A module `agents` in the current directory."""
    (folder / "agents.py").write_text(AGENTS, encoding="utf-8")
    return folder
