"""Durable runs and eager tools: a process that is killed between the early start of a call and its turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

pytest.importorskip("dbos", reason="durable runs need dbos")

SCRIPT = Path(__file__).parents[1] / "support/durable/dying_eager_run.py"


def process(folder: Path, role: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), str(folder), role]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)


def response_of(folder: Path, role: str) -> Any:
    """Run a process to its end, and return the response that it prints."""
    with process(folder, role) as running:
        output, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    return json.loads(output.splitlines()[-1])


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_the_next_process_repeats_only_the_eager_call(tmp_path: Path) -> None:
    """Its history is the same as without a kill, and no call is unknown."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    with process(killed, "first") as first:
        assert first.stdout is not None
        line = first.stdout.readline()
        first.kill()
    assert line == "ready to die\n"
    assert response_of(killed, "next") == response_of(whole, "whole")
    first_work, look, second_work = "work eager:1:0", "look eager:2:0", "work eager:2:1"
    assert (killed / "calls.txt").read_text().splitlines() == [
        *(f"first {call}" for call in (first_work, look)),
        *(f"next {call}" for call in (look, second_work)),
    ]
