"""A batch with a journal whose process is killed, and which is then run again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).with_name("killed_batch.py")
UNKNOWN = "cancelled; its outcome is unknown"
ITEMS = 100


def lines(path: Path) -> list[str]:
    return [line.rstrip() for line in path.read_text().splitlines()] if path.exists() else []


def test_a_batch_that_was_killed_is_continued(tmp_path: Path) -> None:
    """A rerun finishes each item, pays no item twice, and finds the agents of `agents=[...]`."""
    command = [sys.executable, PROGRAM, tmp_path, str(ITEMS)]
    with subprocess.Popen(command) as process:
        while len(lines(tmp_path / "outcomes")) < ITEMS // 3:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.002)
        process.kill()
    known = len(lines(tmp_path / "outcomes"))
    subprocess.run(command, check=True)

    paid = Counter(lines(tmp_path / "paid"))
    assert max(paid.values()) == 1
    outcomes = [json.loads(line) for line in lines(tmp_path / "outcomes")[known:]]
    assert sorted(item for item, *_ in outcomes) == sorted(f"item {number}" for number in range(ITEMS))
    for item, text, agent, _ in outcomes:
        number = item.removeprefix("item ")
        assert text == UNKNOWN or (text, agent, paid[number]) == (f"paid {number}", "Cashier", 1)
    assert sum(attempts == 0 for *_, attempts in outcomes) >= ITEMS // 3, "these come from the journal"
    assert sum(text == UNKNOWN for _, text, *_ in outcomes) <= 20, "these ran when the process was killed"
