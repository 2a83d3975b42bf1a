"""Processes that are killed, and their checker: it finds every fault that is planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.durable.durable_checker import DENIED, UNKNOWN, Checked, Ended, notes_of, runs_of
from tests.support.durable.durable_process import Process, started

RUN = "1-go-0-1"
KEYS = [f"{RUN}:{turn}:{position}" for turn, position in [(1, 0), (1, 2), (3, 0), (3, 1)]]
TOLD = ["worked 1", "looked 2", "worked 3", "clerk", "worked 4", "worked 5"]
PAY, DENIED_PAY, SLEEP, CRASH = "1-pay-0-1", "1-pay-0-4", "1-sleep-0-1", "1-crash-0-1"


def ended(
    run: str = RUN, told: list[str] = TOLD, *, last: str = "RunFinished", conversation: str = "", **changes: Any
) -> Ended:
    """A run without a fault, with these changes of its response."""
    messages = [{"role": "tool", "content": content} for content in told]
    numbers = {f"n{content[-1]}": int(content[-1]) for content in told if content.startswith("worked")}
    response = {"messages": messages, "context_variables": numbers, "text": " ".join(told), "stop": "answer", **changes}
    return Ended(run, conversation or run, {"type": last, "response": response})


def notes(*keys: str, version: str = "1") -> list[str]:
    return [f"{kind} {key} {version}" for key in keys for kind in ("begin", "end")]


def paid(run: str, told: str) -> list[Ended]:
    """Return a run that has waited, and the run that continues it."""
    return [ended(run, [], stop="waiting"), ended("f00d", [told], conversation=run)]


def faults(runs: list[Ended], lines: list[str]) -> list[str]:
    return Checked(runs, lines, max_deaths=2).faults


UNFINISHED = Ended(RUN, RUN, None)
FAILED = Ended(CRASH, CRASH, {"type": "RunFailed"})
STOPPED = ended(SLEEP, [], last="RunStopped")


@pytest.mark.parametrize(
    ("runs", "lines", "text"),
    [
        ([UNFINISHED], notes(*KEYS), "has not ended"),
        ([], [f"started {RUN}"], "is lost"),
        ([ended(last="RunFailed")], notes(*KEYS), "has ended with"),
        ([ended()], [*notes(*KEYS), f"begin {KEYS[0]} 1"], "began 2 times"),
        ([ended()], notes(*KEYS[1:]), "ended 0 times"),
        ([ended()], notes(*KEYS, version="2"), "was executed by the version 2"),
        ([ended(told=TOLD[:-1])], notes(*KEYS), "has 5 answers"),
        ([ended(told=[TOLD[0], UNKNOWN, *TOLD[2:]])], notes(*KEYS), "was told as"),
        ([ended(told=["looked 2", *TOLD[1:]])], notes(*KEYS), "was told as"),
        ([ended(context_variables={})], notes(*KEYS), "has lost a change"),
        ([ended(text="worked")], notes(*KEYS), "has the answer"),
        (paid(PAY, f"paid {PAY}"), notes(f"{PAY}:pay", f"{PAY}:pay"), "began 2 times"),
        (paid(PAY, f"paid {PAY}"), [], "ended 0 times"),
        (paid(PAY, DENIED), [], "was told as"),
        (paid(PAY, f"paid {PAY}")[:1], [], "was continued by 0 runs"),
        ([*paid(PAY, UNKNOWN), ended("f001", [UNKNOWN], conversation=PAY)], [], "was continued by 2 runs"),
        ([ended(PAY, [f"paid {PAY}"])], notes(f"{PAY}:pay"), "did not wait"),
        (paid(DENIED_PAY, f"paid {DENIED_PAY}"), notes(f"{DENIED_PAY}:pay"), "was denied and told as"),
        (paid(DENIED_PAY, DENIED), notes(f"{DENIED_PAY}:pay"), "and began 1 times"),
        (
            [STOPPED],
            [f"begin {SLEEP}:sleep 1", f"cancelled {SLEEP}", f"end {SLEEP}:sleep 1"],
            "after the run was cancelled",
        ),
        ([ended(SLEEP, ["slept"])], [f"begin {SLEEP}:sleep 1"], "ended 0 times"),
        ([FAILED], [f"crash {CRASH}:crash 1"] * 3, "has killed 3 processes"),
        ([ended(CRASH, [""])], [f"crash {CRASH}:crash 1"] * 2, "has ended with"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_checker_finds_a_planted_fault(runs: list[Ended], lines: list[str], text: str) -> None:
    """A call that runs twice, one that is lost, an outcome in another's place, a lost change, a run without an end, and the like."""
    assert any(text in fault for fault in faults(runs, lines))


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.processes
def test_killed_processes_lose_nothing(tmp_path: Path) -> None:
    """Two processes execute; one is killed and never started again. The other ends all runs."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    processes = [started(Process(url, str(folder), count=12, is_batch=True)) for folder in folders]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    processes[0].kill()
    for process in processes:
        process.communicate(timeout=120)
    found = Checked(runs_of(url), notes_of(folders))
    assert found.faults == []
    assert found.counts["ended"] == 12
