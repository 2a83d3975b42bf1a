"""Processes that are killed, and the checker that says what is right: it finds every fault that is planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from durable_process import UNKNOWN, check, responses, started

pytestmark = pytest.mark.sampled

KEYS = [f"run-0:{turn}:{position}" for turn, position in [(1, 0), (1, 2), (3, 0), (3, 1)]]
TOLD = ["worked 1", "looked 2", "worked 3", "clerk", "worked 4", "worked 5"]


def record(told: list[str] = TOLD, **changes: Any) -> dict[str, Any]:
    """The response of a run without a fault."""
    messages = [{"role": "tool", "content": content} for content in told]
    numbers = {f"n{content[-1]}": int(content[-1]) for content in told if content.startswith("worked")}
    return {"messages": messages, "context_variables": numbers, "text": " ".join(told), **changes}


def effects(keys: list[str]) -> list[str]:
    """What the functions have noted."""
    return [f"{kind} {key}" for key in keys for kind in ("begin", "end")]


def faults(response: dict[str, Any] | None, lines: list[str]) -> list[str]:
    return check({"run-0": response}, "\n".join(lines)).faults


def test_the_checker_accepts_what_is_right() -> None:
    """All calls done; and one whose outcome is unknown, whether it has ended or not."""
    assert faults(record(), effects(KEYS)) == []
    unknown = [UNKNOWN, *TOLD[1:]]
    assert faults(record(unknown), effects(KEYS)) == []
    assert faults(record(unknown), effects(KEYS)[2:]) == []
    assert check({"run-0": record(unknown)}, "\n".join(effects(KEYS))).unknown == 1


@pytest.mark.parametrize(
    ("response", "lines", "text"),
    [
        (None, effects(KEYS), "has not ended"),
        (record(), [*effects(KEYS), f"begin {KEYS[0]}"], "began 2 times"),
        (record(), effects(KEYS[1:]), "ended 0 times"),
        (record(TOLD[:-1]), effects(KEYS), "has 5 answers"),
        (record([TOLD[0], UNKNOWN, *TOLD[2:]]), effects(KEYS), "was told as"),
        (record(["looked 2", *TOLD[1:]]), effects(KEYS), "was told as"),
        (record(context_variables={}), effects(KEYS), "has lost a change"),
        (record(text="worked"), effects(KEYS), "has the answer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_checker_finds_a_planted_fault(response: Any, lines: list[str], text: str) -> None:
    """A call that runs twice, one that is lost, an outcome in another's place, a lost change, a run without an end."""
    assert any(text in fault for fault in faults(response, lines))


@pytest.mark.slow
def test_killed_processes_lose_nothing(tmp_path: Path) -> None:
    """Two processes execute; one is killed and never started again. The other ends all runs."""
    url, folder = f"sqlite:///{tmp_path / 'runs.db'}", tmp_path
    processes = [started(url, folder, 12) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    processes[0].kill()
    for process in processes:
        process.communicate(timeout=120)
    found = check(responses(url, 12), (folder / "effects.txt").read_text())
    assert found.faults == []
    assert found.ended == 12
