"""Code whose process is killed (kill -9): another process continues it, and no call is lost or runs twice."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.support.code.dying_code import DyingCode

pytestmark = pytest.mark.processes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_call_of_killed_code_is_lost_or_runs_twice(seed: int, tmp_path: Path) -> None:
    """After random kills, each call has run once. A call that was running has an unknown outcome, and the response lists it."""
    drawn, processes, kills = random.Random(seed), DyingCode(tmp_path), 0
    while not processes.run_for(
        60 if kills == 2 else drawn.uniform(0, 0.1)
    ):  # LocalRuns closes a run that has died thrice
        kills += 1
    assert kills
    counts, result = processes.counts(), processes.result()
    assert set(counts.values()) == {1}
    ran = {int(number): seed for number, seed in map(str.split, counts)}
    assert len(set(ran.values())) == len({number // 3 for number in ran})  # each process draws the same random numbers
    results = json.loads(next(each["content"] for each in result["history"] if each["role"] == "tool"))
    lost = [step for step, each in enumerate(results) if isinstance(each, str)]
    assert all("its outcome is unknown" in results[step] for step in lost)
    assert all(
        each == [number * number for number in range(step * 3, step * 3 + 3)]
        for step, each in enumerate(results)
        if step not in lost
    )
    unknown = [json.loads(call["arguments"])["number"] for call in result["unknown"]]
    assert ran.keys() | set(unknown) == set(range(15))  # a process may die before a recorded call runs
    assert {number // 3 for number in unknown} == set(lost)
    assert {call["name"] for call in result["unknown"]} <= {"work"}
