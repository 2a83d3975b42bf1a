"""Makes Markdown tables from the results of a run, and updates the blocks of pages that show these tables.

A block of a page is between `<!-- made: name -->` and `<!-- end -->`. Both `run.py --write` and
`PYTHONPATH=src python -m docs._site write` update the blocks. A test compares the blocks with the results.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import ADDITIONS, LIMITS, NAMES, OURS, PEERS

HERE = Path(__file__).parent
PROJECT = HERE.parent
_BATCHES = "Batches with answers after 200 ms: CPU of a turn, and conversations in a second, by conversations at once"
_BATCH_TABLES = {
    _BATCHES: ["batch_1", "batch_50", "batch_500", "batch_2000"],
    "Memory of a batch, 100 at once, by items": [
        *("batch_memory_1000_100", "batch_memory_10000_100", "batch_memory_50000_100")
    ],
    "Memory of a batch, by conversations at once (answers after 1 s)": [
        *("batch_memory_2000_100", "batch_memory_2000_500", "batch_memory_2000_1000", "batch_memory_2000_2000"),
        "batch_memory_10000_10000",
    ],
}
# The figures in README, with their titles there.
_SHORT = {
    "turn": "a turn",
    "at_once_256": "256 runs at once",
}
_KIB = 1024

Results = dict[str, Any]
Row = dict[str, Any]


# --- cells ------------------------------------------------------------------------------------------------------------


def _amount(value: float, kind: str = "cpu_us") -> str:
    if kind == "bytes":
        return f"{value / _KIB:,.0f} KiB"
    if value >= 10_000:  # noqa: PLR2004 - a number of microseconds has at most four digits
        return f"{value / 1000:,.1f} ms"
    return f"{value:,.0f} µs" if value >= 100 else f"{value:.1f} µs"  # noqa: PLR2004 - three digits


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.0995 else f"{value:.3f}" if value >= 0.00995 else f"{value:.4f}"  # noqa: PLR2004 - a small ratio needs more digits


def _spread(row: Row | None) -> str:
    """Return a text with the median, the lowest and the highest ratio."""
    if row is None or "ratio" not in row:
        return "failed" if row and "error" in row else ""
    return f"{_ratio(row['ratio'])} ({_ratio(row['lowest'])} to {_ratio(row['highest'])})"


def _with_amount(row: Row | None, kind: str) -> str:
    if row is None or "error" in row:
        return _spread(row)
    amount = _amount(row["value"], kind)
    if "conversations_per_second" in row:
        amount += f" · {row['conversations_per_second']:,.1f}/s"
    if "ratio" not in row:
        return amount
    return f"1 · {amount}" if row["lowest"] == row["highest"] == 1 else f"{_spread(row)} · {amount}"


def _rows_of(figure: Mapping[str, Any]) -> dict[str, Row]:
    return {row["contender"]: row for row in figure["rows"]}


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


# --- the cost of a turn -----------------------------------------------------------------------------------------------


def _ratios(results: Results, contenders: Iterable[str], *, by_hand: bool = False) -> str:
    """Return a table with a row for each figure, and a column for each contender with results."""
    found = {figure["title"]: _rows_of(figure) for figure in results["figures"]}
    columns = [each for each in contenders if any(each in rows for rows in found.values())]
    head, reference = ["", *(NAMES[each] for each in columns)], results["reference"]
    if by_hand:
        head.append(f"{NAMES[reference]} (1)")
    lines = []
    for title, rows in found.items():
        amount = [_amount(rows[reference]["value"])] if by_hand else []
        lines.append([title, *(_spread(rows.get(each)) for each in columns), *amount])
    return _table(head, lines)


def _about(results: Results) -> list[str]:
    """Return lines about the versions, and about contenders that are left out, have failed, or run tools in turn."""
    versions = ", ".join(f"{package} {version}" for package, version in results["versions"].items())
    lines = [f"{versions}."]
    if results["in_turn"]:
        lines.append(f"Run the two tools of a turn one after another, not together: {_names(results['in_turn'])}.")
    lines += [f"Left out, {NAMES[name]}: {reason}." for name, reason in results["left_out"].items()]
    lines += [
        f"Failed, {figure['title']}, {NAMES[row['contender']]}: {row['error']}."
        for figure in results["figures"]
        for row in figure["rows"]
        if "error" in row
    ]
    return lines


def _names(contenders: Iterable[str]) -> str:
    return ", ".join(NAMES[each] for each in contenders)


def _lead(results: Results) -> str:
    load = f", load {min(results['load']):.1f} to {max(results['load']):.1f}" if results["load"] else ""
    return (
        f"CPU as a ratio to {NAMES[results['reference']]}; **lower is better**. Medians of {results['rounds']} rounds, with the "
        f"lowest and the highest, all in one run: {results['date']}, {results['processor']}{load}."
    )


def costs(results: Results | None = None) -> str:
    """Return the tables of the cost of a turn: first aswarm and the limits, then the frameworks."""
    results = results or results_of("costs")
    ours = _ratios(results, (*OURS, *LIMITS))
    peers = _ratios(results, PEERS, by_hand=True)
    return "\n\n".join([_lead(results), ours, peers, *_about(results)])


def costs_short(results: Results | None = None) -> str:
    """Return the table in README, with the medians of some figures: aswarm, then other frameworks."""
    results = results or results_of("costs")
    found = {_SHORT[figure["name"]]: _rows_of(figure) for figure in results["figures"] if figure["name"] in _SHORT}
    columns = [each for each in (*OURS, *PEERS) if any(each in rows for rows in found.values())]
    head = ["", *(NAMES[each].replace("**aswarm**, ", "").replace("*", "") for each in columns)]
    return _table(head, ([title, *_medians(rows, columns)] for title, rows in found.items()))


def _medians(rows: dict[str, Row], columns: Iterable[str]) -> list[str]:
    return [_ratio(rows[each]["ratio"]) if "ratio" in rows.get(each, ()) else "" for each in columns]


# --- batches ----------------------------------------------------------------------------------------------------------


def batches(results: Results) -> str:
    """Return the tables of batches, with a row for each contender."""
    figures = {figure["name"]: figure for figure in results["figures"]}
    parts = ["# Batches, side by side", f"{_lead(results)} Beside each ratio is the median."]
    for title, names in _BATCH_TABLES.items():
        if present := [figures[name] for name in names if name in figures]:
            parts += [f"## {title}", _by_contender(present)]
        if title == _BATCHES:
            parts += _added(figures)
    return "\n\n".join([*parts, "## Versions", *_about(results)])


def _by_contender(figures: Sequence[dict[str, Any]]) -> str:
    rows = [_rows_of(figure) for figure in figures]
    contenders = dict.fromkeys(contender for each in rows for contender in each)
    kinds = [figure["value"] for figure in figures]
    return _table(
        ["", *(figure["title"] for figure in figures)],
        (
            [NAMES[name], *(_with_amount(each.get(name), kind) for each, kind in zip(rows, kinds, strict=True))]
            for name in contenders
        ),
    )


def _added(figures: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line with the CPU that the batch runner and its journal add, compared with a task for each run."""
    parts = [
        f"{figure['job']['at_once']:,} at once{' on aiohttp' if on else ''} {added}"
        for figure in figures.values()
        for on in ("", "aiohttp")
        if figure["job"]["figure"] == "batch" and (added := _added_on(on, figure))
    ]
    return [f"CPU that the runner adds to the runs themselves: {'; '.join(parts)}."] if parts else []


def _added_on(on: str, figure: dict[str, Any]) -> str | None:
    values = {row["contender"]: row["values"] for row in figure["rows"] if "values" in row}
    journal = "batch_runner:journal" + (f"_{on}" if on else "")
    names = [f"aswarm_:{on}".rstrip(":"), f"batch_runner:{on}".rstrip(":"), journal]
    if not all(name in values for name in names):
        return None
    alone, runner, journaled = (values[name] for name in names)
    return f"{_median_ratio(runner, alone) - 1:+.0%}, with a journal {_median_ratio(journaled, alone) - 1:+.0%}"


def _median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(values, others, strict=True))


# --- pages ------------------------------------------------------------------------------------------------------------

BLOCKS: dict[str, Callable[[], str]] = {"costs": costs, "costs_short": costs_short}
_PAGES = ("README.md", "docs/proof/what-a-turn-costs.md")
_BLOCK = re.compile(r"(?P<head><!-- made: (?P<name>\w+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def results_of(name: str) -> Results:
    """Return the committed results of a table."""
    found: Results = json.loads(HERE.joinpath(f"results/{name}.json").read_text(encoding="utf-8"))
    return found


def page_of(name: str, results: Results) -> str:
    """Return the text that `run.py` prints."""
    if name == "batches":
        return f"{batches(results)}\n"
    if name == "costs":
        return f"{costs(results)}\n"
    contenders = ADDITIONS if name == "additions" else ["aswarm_:responses"]
    return "\n\n".join([_lead(results), _ratios(results, contenders, by_hand=True), *_about(results), ""])


def update_pages() -> None:
    """Update the pages with the committed results."""
    HERE.joinpath("results/batches.md").write_text(page_of("batches", results_of("batches")), encoding="utf-8")
    fill(_PAGES, BLOCKS)


def fill(pages: Iterable[str], blocks: Mapping[str, Callable[[], str]]) -> None:
    """Make the blocks of the pages again. The blocks of other programs stay."""

    def current(match: re.Match[str]) -> str:
        made = blocks.get(match["name"])
        return f"{match['head']}{made()}\n{match['end']}" if made else match[0]

    for page in map(PROJECT.joinpath, pages):
        page.write_text(_BLOCK.sub(current, page.read_text(encoding="utf-8")), encoding="utf-8")
