"""A process with a long result that is killed (kill -9): no history has a handle without its text."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.middleware.spilling_process import TEXT

pytestmark = pytest.mark.processes


def run_process(folder: Path, kind: str) -> int:
    """Run a process to its end, and return its exit code."""
    command = [sys.executable, "-m", "tests.support.middleware.spilling_process", str(folder), kind]
    return subprocess.run(command, check=False, cwd=Path(__file__).parents[2], timeout=120).returncode


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["repeatable", "once", "code"])
def test_a_killed_process_leaves_no_handle_without_its_text(kind: str, tmp_path: Path) -> None:
    """The next process stores the same text under the same handle, or the outcome of the call is unknown, without a handle."""
    assert run_process(tmp_path, kind) == -signal.SIGKILL
    assert run_process(tmp_path, kind) == 0
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    first, found = (message["content"] for message in result["history"] if message["role"] == "tool")
    calls = len((tmp_path / "notes.txt").read_text().split())
    (handle,) = result["texts"]
    assert result["texts"][handle] == TEXT
    assert found.startswith(f"{handle} at ")
    if kind == "once":
        assert (calls, first) == (1, "cancelled; its outcome is unknown")
    else:
        assert first.startswith(f"[result {handle}: ")
        assert calls == (2 if kind == "repeatable" else 1)
