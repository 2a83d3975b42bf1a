"""Verdicts of a soak: whether a measure is flat over the day, or grows.

The load repeats every eight hours. So the same four hours of each period are compared, and a change of the load is no growth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

DAY = 24.0
WINDOWS = ((4.0, 8.0), (12.0, 16.0), (20.0, 24.0))


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of all measures at an hour of the day."""

    hour: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Allowance:
    """The growth that is still flat: `percent` of the first window, or `least` if this is more."""

    percent: float
    least: float

    def of(self, value: float) -> float:
        return max(self.least, value * self.percent / 100)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One measure: its first value, the median of each window, its last value, and the allowed growth between the windows."""

    name: str
    start: float
    windows: tuple[float, ...]
    end: float
    allowed: float

    @property
    def growth(self) -> float:
        """The growth from the first to the last window."""
        return self.windows[-1] - self.windows[0]

    @property
    def per_hour(self) -> float:
        """The growth in an hour."""
        return self.growth / (WINDOWS[-1][0] - WINDOWS[0][0])

    @property
    def is_flat(self) -> bool:
        """Whether the growth is allowed. A measure that shrinks is flat."""
        return self.growth <= self.allowed

    @property
    def text(self) -> str:
        """The verdict as a text."""
        change = f"{100 * self.growth / self.windows[0]:+.1f} %" if self.windows[0] else f"{self.growth:+.4g}"
        return f"flat ({change})" if self.is_flat else f"GROWING by {self.per_hour:.4g} an hour ({change})"


def verdict(name: str, samples: Sequence[Sample], allowance: Allowance) -> Verdict:
    """Return the verdict of a measure. A sample without this measure counts as 0: the table or the class did not exist yet."""
    points = [(sample.hour, sample.values.get(name, 0.0)) for sample in samples]
    windows = tuple(median(value for hour, value in points if first <= hour < last) for first, last in WINDOWS)
    return Verdict(name, points[0][1], windows, points[-1][1], allowance.of(windows[0]))


def verdicts(samples: Sequence[Sample], allowances: Mapping[str, Allowance]) -> list[Verdict]:
    """Return the verdicts of all measures. `allowances`: by the text before the first colon of the name of a measure."""
    names = dict.fromkeys(name for sample in samples for name in sample.values)
    return [verdict(name, samples, allowances[name.partition(":")[0]]) for name in names]


def table(found: Iterable[Verdict]) -> str:
    """Return the verdicts as a table in Markdown."""
    head = ["measure", "start", *(f"hours {first:g}–{last:g}" for first, last in WINDOWS), "end", "verdict"]  # noqa: RUF001 - as in prose
    body = [[each.name, *map(_number, (each.start, *each.windows, each.end)), each.text] for each in found]
    rows = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.1f}"
