"""The progress of a batch, and its summary."""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from aswarm import RateLimits, Usage
from aswarm._values.usage import set_price
from aswarm.cli.commands.batch import progress
from aswarm.cli.commands.batch.progress import Counts, Reporter, duration, reporting
from tests.support.repl.chats import Tty


def counts(total: int | None = 100, seconds: float = 10, **more: Any) -> Counts:
    """Return the counts of a batch after so many seconds."""
    return Counts(total, time.monotonic() - seconds, **more)


def test_durations() -> None:
    """A duration has at most two units."""
    assert [duration(seconds) for seconds in (0.4, 59, 61, 3599.7, 7800)] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "1 h 0 min",
        "2 h 10 min",
    ]


def test_the_details() -> None:
    """The rate and the remaining time count only items that ran in this batch."""
    now = counts(statuses=Counter(answer=18, error=2), before=30, bad=10, usage=Usage(total_tokens=4321))
    assert (now.done, now.progress()) == (60, "60/100")
    assert now.details() == "2.0/s, 20 s left, 4,321 tokens, 2 failed, 10 bad lines"
    set_price(priced := Usage(1_000_000, 0, 1_000_000, 1), "gpt-4o", None, {})
    assert counts(usage=priced).summary()[-1] == "1,000,000 tokens (1,000,000 in, 0 out) in 1 completion for $2.5000"
    now.unknown_calls = [1, 2]
    assert now.details().endswith("10 bad lines, 3 calls with unknown outcome")


@pytest.mark.parametrize(
    ("dollars", "expected"),
    [(1234.5, "$1,234.5000"), (0.001, "$0.0010"), (0.000123, "$0.00012"), (4e-7, "$0.00000040")],
)
def test_a_small_cost_is_not_shown_as_0(dollars: float, expected: str) -> None:
    set_price(usage := Usage(1_000_000, 0, 1_000_000, 1), "mine", None, {"mine": (dollars, 0)})
    assert counts(usage=usage).summary()[-1].endswith(f" for {expected}")


def test_the_length_of_a_pipe_is_not_known() -> None:
    """A pipe has no remaining time, and neither has a batch without an outcome."""
    assert counts(None, statuses=Counter(answer=20)).details() == "2.0/s, 0 tokens, 0 failed"
    assert counts(None, statuses=Counter(answer=2000)).progress() == "2,000"
    assert counts().details() == "0.0/s, 0 tokens, 0 failed"
    assert counts(1, statuses=Counter(answer=20)).left == 0  # a file that grew


def test_the_time_left_is_as_long_as_the_limits_need() -> None:
    """The remaining time is the time that the limits need for the remaining requests and tokens."""
    usage = Usage(requests=40, total_tokens=80_000)
    now = counts(statuses=Counter(answer=20), seconds=1, usage=usage, limits=RateLimits(requests_per_minute=60))
    assert now.left == pytest.approx(80 * 2 * 61 / 60)
    now.limits = RateLimits(requests_per_minute=60, tokens_per_minute=10_000)
    assert now.left == pytest.approx(80 * 4000 * 61 / 10_000)
    now.limits = RateLimits(requests_per_minute=1_000_000)
    assert now.left == pytest.approx(4, rel=0.1), "the items themselves are slower"


def test_the_summary() -> None:
    """The summary has the results, the earlier items, and the tokens."""
    now = counts(statuses=Counter(max_turns=1, answer=17, error=2, cancelled=1), before=3, usage=Usage(7, 5, 12, 4))
    assert now.summary() == [
        "21 items in 10 s (2.1/s): 17 answered, 1 cancelled, 2 failed, 1 ended by --max-turns",
        "3 items done before",
        "12 tokens (7 in, 5 out) in 4 completions",
    ]
    now.unknown_calls = [1, 2]
    assert now.summary()[2] == "The outcome of 3 calls in 2 items is unknown; the output has them as unknown_calls"
    assert counts().summary()[0] == "0 items in 10 s (0.0/s): nothing to do"


def test_plain_lines() -> None:
    """Without a terminal the progress is a line at intervals, and only the first problems are printed."""
    stream = io.StringIO()
    with reporting(Counts(2000), stream) as reporter:
        reporter.update()
        for number in range(25):
            reporter.problem("bad lines", f"line {number}:\n\x1b[31mno")
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["line 0: ␛[31mno", "line 1: ␛[31mno"]
    assert lines[19:] == ["line 19: ␛[31mno", "(further bad lines are counted, but not printed)"]
    stream = io.StringIO()
    lines_now = Reporter(counts(2000, statuses=Counter(answer=1000)), stream, every=0)
    lines_now.update()
    a_moment_later = r"1,000/2,000 done, (100\.0|9\d\.\d)/s, 1\d s left, 0 tokens, 0 failed\n"
    assert re.fullmatch(a_moment_later, stream.getvalue())


def test_a_bar_in_a_terminal() -> None:
    """A terminal with rich has a bar, and problems are printed above it."""
    stream, now = Tty(), Counts(4)
    with reporting(now, stream) as reporter:
        now.statuses["answer"] += 4
        reporter.update()
        reporter.print("line 3: [bold]no")
    assert "4/4" in stream.getvalue()
    assert "━" in stream.getvalue()
    assert "line 3: [bold]no" in stream.getvalue()


def test_a_terminal_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without rich, and beside outcomes on the same terminal, plain lines are printed."""

    def nothing(_: str) -> ModuleSpec | None:
        return None

    with reporting(Counts(4), Tty(), bar=False) as reporter:
        assert reporter.bar is None
    monkeypatch.setattr(progress, "find_spec", nothing)
    with reporting(Counts(4), Tty()) as reporter:
        assert reporter.bar is None
