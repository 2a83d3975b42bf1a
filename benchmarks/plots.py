"""The plots: CPU of a turn, and memory of a batch, against their parameters. SVG, by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import NAMES


@dataclass(frozen=True, slots=True)
class _Plot:
    """One picture: the figures of a kind whose jobs have `fixed`, against `key`."""

    title: str
    label: str
    key: str
    figure: str
    fixed: Mapping[str, Any]

    @property
    def is_memory(self) -> bool:
        return self.figure == "batch_memory"

    def points(self, results: dict[str, Any]) -> dict[str, list[tuple[int, float]]]:
        """Return microseconds or MiB against `key`, for each contender."""
        points: dict[str, list[tuple[int, float]]] = {}
        for figure in results["figures"]:
            job = figure["job"]
            if job["figure"] != self.figure or any(job.get(name) != value for name, value in self.fixed.items()):
                continue
            for row in figure["rows"]:
                if "value" in row:
                    value = row["value"] / 2**20 if self.is_memory else row["value"]
                    points.setdefault(row["contender"], []).append((job[self.key], value))
        return points


_ITEMS, _AT_ONCE = "items", "conversations at once"
_PLOTS = {
    "history": _Plot("What a turn costs", "messages of history", "past", "turn", {"at_once": 1}),
    "concurrency": _Plot("What a turn costs", _AT_ONCE, "at_once", "turn", {"past": 0}),
    "cpu": _Plot("What a turn of a batch costs", _AT_ONCE, "at_once", "batch", {}),
    "memory_items": _Plot("Memory of a batch, 100 at once", _ITEMS, "total", "batch_memory", {"latency": 0.02}),
    "memory_at_once": _Plot("Memory of a batch of 2,000", _AT_ONCE, "at_once", "batch_memory", {"latency": 1}),
}
_STYLES: dict[str, dict[str, Any]] = {
    "aswarm_": {"color": "#c2255c", "linewidth": 2.5},
    "aswarm_batch": {"color": "#c2255c", "linewidth": 1},
    "aswarm_journal": {"color": "#e8590c", "linewidth": 1},
    "aswarm_batch_aiohttp": {"color": "#c2255c", "linewidth": 1, "linestyle": "--"},
    "aswarm_journal_aiohttp": {"color": "#e8590c", "linewidth": 1, "linestyle": "--"},
    "handwritten_aiohttp": {"color": "#1971c2", "linewidth": 1, "linestyle": "--"},
    "aswarm_aiohttp": {"color": "#c2255c", "linewidth": 2.5, "linestyle": "--"},
    "handwritten_openai": {"color": "#1971c2", "linewidth": 2.5},
    "handwritten_httpx": {"color": "#1971c2", "linewidth": 1, "linestyle": "--"},
    "bare_socket": {"color": "#2b8a3e", "linewidth": 1, "linestyle": ":"},
}
_OTHERS = {"color": "#868e96", "linewidth": 1}
_LINE = 0.045  # of the height of the axes, for a name


def draw(results: dict[str, Any], folder: Path) -> None:
    """Write the plots with figures, if matplotlib is installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - only for drawing
    except ModuleNotFoundError:
        print("no plots: matplotlib is not installed")
        return
    mpl.use("svg")
    # Text stays text, and the same numbers make the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "aswarm", "font.size": 9})
    for name, plot in _PLOTS.items():
        if points := plot.points(results):
            _draw_one(plot, points, folder / f"{name}.svg", results["date"])


def _draw_one(plot: _Plot, points: dict[str, list[tuple[int, float]]], path: Path, date: str) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - see above

    figure, axes = plt.subplots(figsize=(8, 4.5))
    ticks = sorted({x for line in points.values() for x, _ in line})
    for contender, line in points.items():
        positions = [ticks.index(x) for x, _ in sorted(line)]
        costs = [cost for _, cost in sorted(line)]
        axes.plot(positions, costs, marker="o", markersize=3, **_STYLES.get(contender, _OTHERS))
    axes.set_yscale("log", base=2 if plot.is_memory else 10)
    axes.yaxis.set_major_formatter(_mebibytes if plot.is_memory else _milliseconds)
    axes.set_xticks(range(len(ticks)), [f"{tick:,}" for tick in ticks])
    axes.set_xlim(-0.1, len(ticks) * 1.3 - 1)
    _name_lines(axes, {contender: max(line)[1] for contender, line in points.items()}, len(ticks) - 1)
    axes.set_xlabel(plot.label)
    axes.set_ylabel("at the most" if plot.is_memory else "CPU per turn")
    axes.set_title(f"{plot.title} ({date})", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _milliseconds(value: float, _: int) -> str:
    return f"{value / 1000:g} ms"


def _mebibytes(value: float, _: int) -> str:
    return f"{value:g} MiB"


def _name_lines(axes: Any, ends: dict[str, float], last: int) -> None:
    """Write the names at the right ends of the lines, inside the axes, without overlaps."""
    bottom, top = (math.log(cost) for cost in axes.get_ylim())
    apart = (top - bottom) * _LINE
    names = sorted(ends, key=lambda contender: ends[contender])
    heights = [math.log(ends[contender]) for contender in names]
    for place in range(1, len(heights)):
        heights[place] = max(heights[place], heights[place - 1] + apart)
    ceiling = top
    for place in reversed(range(len(heights))):
        ceiling = heights[place] = min(heights[place], ceiling)
        ceiling -= apart
    for contender, height in zip(names, heights, strict=True):
        color = _STYLES.get(contender, _OTHERS)["color"]
        name = NAMES.get(contender, contender).replace("*", "").replace("`", "")
        axes.annotate(name, (last + 0.08, math.exp(height)), color=color, va="center", fontsize=8)
