"""The checker of "log = history = answer": it accepts a right log, and finds every fault that is planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aswarm.runs import Entry
from aswarm.testing import call
from tests.support.runs.run_logs import USER, Scene, logged_now
from tests.support.serve.record_checker import record_faults

LOGGED = logged_now(Scene(["Let me see.", "unused"], cut=3))
CALLED = logged_now(Scene([call("look", n=1), "It is there."], cut=3))
HISTORY: list[dict[str, Any]] = CALLED.messages
LOG: list[Entry] = CALLED.logs[-1]


def without(kind: str, position: int = 0) -> list[Entry]:
    """Return the log without an entry of this type."""
    entry = [each for each in LOG if each.type == kind][position]
    return [each for each in LOG if each is not entry]


def doubled(kind: str) -> list[Entry]:
    """Return the log with each entry of this type twice."""
    return [copy for each in LOG for copy in ([each, each] if each.type == kind else [each])]


def test_a_right_log_has_no_fault() -> None:
    """A plain answer, a call, and a run that is not the last one of its conversation."""
    assert record_faults(LOGGED.logs[-1], LOGGED.messages) == []
    assert record_faults(LOG, HISTORY) == []
    assert record_faults(LOG, [*HISTORY, USER, {"role": "assistant", "content": "Again."}]) == []


@pytest.mark.parametrize(
    ("log", "history", "text"),
    [
        (LOG[:-1], HISTORY, "has the ends"),
        ([*LOG, LOG[-1]], HISTORY, "has the ends"),
        ([LOG[-1], *LOG[:-1]], HISTORY, "has the ends"),
        (doubled("ToolCallFinished"), HISTORY, "finishes 2 times"),
        (doubled("TextDelta"), HISTORY, "readers of the log see"),
        (without("TextDelta"), HISTORY, "readers of the log see"),
        (without("ToolCallFinished"), HISTORY, "the answer"),
        (without("CompletionFinished", -1), HISTORY, "the conversation"),
        (LOG, HISTORY[:-1], "the conversation"),
        ([*LOG[:5], replace(LOG[-1], type="RunStopped", fields={"reason": "process_died"})], HISTORY, "the conversation"),
    ],
)  # fmt: skip
def test_the_checker_finds_a_planted_fault(log: list[Entry], history: list[dict[str, Any]], text: str) -> None:
    """No end, two ends, or an end in the middle; a call that finishes twice or never; text that comes twice or never."""
    assert any(text in fault for fault in record_faults(log, history))
