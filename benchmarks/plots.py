"""The plots: CPU of a turn against the length of the history, and against conversations at once. SVG, by matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from report import NAMES

_PLOTS = {
    "history": ("messages of history", "past"),
    "concurrency": ("conversations at once", "at_once"),
}
_STYLES: dict[str, dict[str, Any]] = {
    "aswarm_": {"color": "#c2255c", "linewidth": 2.5},
    "aswarm_aiohttp": {"color": "#c2255c", "linewidth": 2.5, "linestyle": "--"},
    "handwritten_openai": {"color": "#1971c2", "linewidth": 2.5},
    "handwritten_httpx": {"color": "#1971c2", "linewidth": 1, "linestyle": "--"},
    "bare_socket": {"color": "#2b8a3e", "linewidth": 1, "linestyle": ":"},
}
_OTHERS = {"color": "#868e96", "linewidth": 1}
_LINE = 0.045  # of the height of the axes, for a name


def _points(results: dict[str, Any], key: str) -> dict[str, list[tuple[int, float]]]:
    """For each contender, cost against `key`, where the other parameter is the smallest."""
    points: dict[str, list[tuple[int, float]]] = {}
    smallest = {"past": ("at_once", 1), "at_once": ("past", 0)}[key]
    for figure in results["figures"]:
        job = figure["job"]
        if job["figure"] != "turn" or "latency" in job or job[smallest[0]] != smallest[1]:
            continue
        for row in figure["rows"]:
            if "value" in row:
                points.setdefault(row["contender"], []).append((job[key], row["value"]))
    return points


def draw(results: dict[str, Any], folder: Path) -> None:
    """Write `history.svg` and `concurrency.svg`, where matplotlib is installed."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - only who draws needs it
    except ModuleNotFoundError:
        print("no plots: matplotlib is not installed")
        return
    mpl.use("svg")
    # Text stays text, and the same numbers give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "aswarm", "font.size": 9})
    for name, (label, key) in _PLOTS.items():
        _draw_one(_points(results, key), label, folder / f"{name}.svg", results["date"])


def _draw_one(points: dict[str, list[tuple[int, float]]], label: str, path: Path, date: str) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - see above

    figure, axes = plt.subplots(figsize=(8, 4.5))
    ticks = sorted({x for line in points.values() for x, _ in line})
    for contender, line in points.items():
        positions = [ticks.index(x) for x, _ in sorted(line)]
        costs = [cost for _, cost in sorted(line)]
        axes.plot(positions, costs, marker="o", markersize=3, **_STYLES.get(contender, _OTHERS))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda cost, _: f"{cost / 1000:g} ms")
    axes.set_xticks(range(len(ticks)), [f"{tick:,}" for tick in ticks])
    axes.set_xlim(-0.1, len(ticks) * 1.3 - 1)
    _name_lines(axes, {contender: max(line)[1] for contender, line in points.items()}, len(ticks) - 1)
    axes.set_xlabel(label)
    axes.set_ylabel("CPU per turn")
    axes.set_title(f"What a turn costs ({date})", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _name_lines(axes: Any, ends: dict[str, float], last: int) -> None:
    """The names at the right ends of the lines, far enough apart to be read, and inside the axes."""
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
