"""The verdicts of a soak."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.testing.soak_verdict import Allowance, Sample, table, verdict, verdicts

TEN_PERCENT = Allowance(percent=10, least=5)


def day(value: Any, name: str = "rows: runs") -> list[Sample]:
    """Return four samples an hour of a day. `value`: a function of the hour."""
    return [Sample(number / 4, {name: value(number / 4)}) for number in range(96)]


def test_a_measure_that_follows_the_load_is_flat() -> None:
    """The load has the same phase in each window."""
    found = verdict("rows: runs", day(lambda hour: 100 + 80 * (hour % 8)), TEN_PERCENT)
    assert found.is_flat
    assert found.growth == 0
    assert found.text == "flat (+0.0 %)"


def test_a_measure_that_grows_by_more_than_its_percent_is_growing() -> None:
    """The verdict has the rate in an hour."""
    found = verdict("rows: runs", day(lambda hour: 1000 + 10 * hour), TEN_PERCENT)
    assert not found.is_flat
    assert found.per_hour == pytest.approx(10)
    assert found.text == "GROWING by 10 an hour (+15.1 %)"


@pytest.mark.parametrize(
    ("value", "is_flat"),
    [
        (lambda hour: 2 + (hour > 19) * 5, True),
        (lambda hour: 2 + (hour > 19) * 6, False),
        (lambda hour: 1000 - 10 * hour, True),
        (lambda hour: 1_000_000 if hour == 23 else 100, True),
    ],
    ids=["the least growth", "more than the least growth", "it shrinks", "one high sample"],
)
def test_a_growth_within_the_allowance_is_flat(value: Any, is_flat: bool) -> None:
    """Ten percent of a small number would be noise, and the windows are compared by their medians."""
    assert verdict("rows: runs", day(value), TEN_PERCENT).is_flat == is_flat


def test_a_measure_that_appears_late_counts_from_zero() -> None:
    """A class whose first object is made in the evening may leak too."""
    samples = [Sample(each.hour, {} if each.hour < 12 else each.values) for each in day(lambda hour: 50)]
    assert not verdict("rows: runs", samples, TEN_PERCENT).is_flat


def test_the_text_before_the_colon_selects_the_allowance() -> None:
    """All tables have the same allowance."""
    samples = [
        Sample(each.hour, {"rows: a": each.hour, "rows: b": 1, "tasks": each.hour}) for each in day(lambda hour: hour)
    ]
    found = verdicts(samples, {"rows": Allowance(0, 3), "tasks": Allowance(0, 30)})
    assert [(each.name, each.is_flat) for each in found] == [("rows: a", False), ("rows: b", True), ("tasks", True)]


def test_the_table_has_the_start_the_windows_and_the_end() -> None:
    """A reader sees the whole day."""
    text = table([verdict("tasks", day(lambda hour: 10 + (hour >= 20) * 90, "tasks"), TEN_PERCENT)])
    assert text.splitlines()[-1] == "| tasks | 10 | 10 | 10 | 100 | 100 | GROWING by 5.625 an hour (+900.0 %) |"
