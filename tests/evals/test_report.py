"""The report of an evaluation: its counts, its table, its JSON, and its progress in a terminal."""

from __future__ import annotations

import io
import json
import random
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm.evals import Attempt, Case, CaseReport, Report, evaluate
from aswarm.testing import Failure, call
from tests.support.evals.evaluated import desk, swarm_that
from tests.support.repl.chats import Tty

outcomes = st.lists(st.lists(st.sampled_from(["passed", "failed", "error"]), max_size=8), max_size=6)


@given(outcomes, st.randoms(use_true_random=False))
def test_the_counts_add_up_in_any_order_of_attempts(drawn: list[list[Any]], shuffle: random.Random) -> None:
    """The accuracy is passed / all, the overall counts are the sums, and attempts are in the order of their numbers."""
    report = Report([CaseReport(Case(f"case {place}", function=None)) for place in range(len(drawn))])
    attempts = [
        (case, Attempt(number, outcome))
        for case, told in zip(report.cases, drawn, strict=True)
        for number, outcome in enumerate(told, 1)
    ]
    shuffle.shuffle(attempts)
    for case, attempt in attempts:
        case.add(attempt)
    for case, told in zip(report.cases, drawn, strict=True):
        assert [attempt.outcome for attempt in case.attempts] == told
        assert case.passed == told.count("passed")
        assert case.accuracy == (told.count("passed") / len(told) if told else 0)
    assert report.total == sum(case.total for case in report.cases) == len(attempts)
    assert report.passed == sum(case.passed for case in report.cases)
    assert report.errors == sum(case.errors for case in report.cases)
    assert report.accuracy == (report.passed / len(attempts) if attempts else 0)
    assert 0 <= report.accuracy <= 1
    assert json.loads(json.dumps(report.to_dict()))["total_evals"] == report.total


async def three_cases() -> Report:
    cases = [
        Case("Sell!", function="transfer_to_sales"),
        Case("Down", function=None),
        Case("Rome", arguments={"city": "Rome", "nights": int}, name="to Rome"),
    ]
    steps = {
        "Sell": call("book", city="Rome"),
        "Down": Failure(503, "busy"),
        "Rome": call("book", city="Rome", nights=2),
    }
    return await evaluate(desk, cases, swarm=swarm_that(steps), repeats=2)


TABLE = """\
 passed accuracy  case
    0/2     0.0%  Sell!
                  2x failed: expected transfer_to_sales; the model called book({"city": "Rome"})
    0/2     0.0%  Down
                  2x error: the provider failed: InternalServerError: Error code: 503 - busy (model 'gpt-6-luna' at http://scripted.test/v1)
    2/2   100.0%  to Rome
    2/6    33.3%  all, 2 errors"""


async def test_the_table() -> None:
    """The table has a line for each case, below it each kind of failure once, and then the sum."""
    report = await three_cases()
    assert str(report).replace("{'error': {'message': 'busy', 'code': None, 'type': None}}", "busy") == TABLE
    report.interrupted = True
    assert str(report).endswith("33.3%  all, 2 errors (interrupted)")


async def test_plain_data_has_swarms_keys() -> None:
    """The data has the keys of Swarm's results, and "attempts" has the details."""
    record: dict[str, Any] = json.loads(json.dumps((await three_cases()).to_dict(), default=str))
    assert (record["correct_evals"], record["total_evals"], record["error_evals"]) == (2, 6, 2)
    assert record["overall_accuracy_percent"] == "33.33%"
    assert record["interrupted"] is False
    assert record["id"]
    assert record["timestamp"]
    sold, _, rome = record["results"]
    assert (sold["agent"], sold["model"]) == ("Desk", "gpt-6-luna")
    assert sold["messages"] == [{"role": "user", "content": "Sell!"}]
    assert sold["expected_function"] == "transfer_to_sales"
    assert sold["actual_function"] == ["book", "book"]
    assert sold["actual_message"] == ["None", "None"]
    assert sold["case_accuracy"] == "0.00%"
    assert sold["attempts"][0]["calls"] == [{"name": "book", "arguments": '{"city": "Rome"}'}]
    assert "expected_function" not in rome
    assert rome["name"] == "to Rome"
    assert rome["arguments"]["city"] == "Rome"


# --- progress ---

CASES = [Case("Hi", function=None), Case("Hi", function="book")]


async def shown_on(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, progress: bool = True) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    await evaluate(desk, CASES, swarm=swarm_that({"Hi": "Hello"}), concurrency=1, progress=progress)
    return stream.getvalue()


async def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets the bar of rich, with the counts."""
    monkeypatch.setenv("TERM", "xterm")
    shown = await shown_on(Tty(), monkeypatch)
    assert "━" in shown
    assert "2/2, 1 passed" in shown


async def test_without_rich_a_line_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rich each count replaces the last count, on one line."""
    monkeypatch.setitem(sys.modules, "rich", None)
    assert await shown_on(Tty(), monkeypatch) == "\r1/2, 1 passed\r2/2, 1 passed\n"


async def test_without_a_terminal_no_progress_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a pipe, and a terminal without `progress=True` get no progress."""
    assert await shown_on(io.StringIO(), monkeypatch) == ""
    assert await shown_on(Tty(), monkeypatch, progress=False) == ""
