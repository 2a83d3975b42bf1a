"""The table: `results.json` as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

NAMES = {
    "handwritten_openai": "hand-written on `AsyncOpenAI`",
    "handwritten_httpx": "hand-written on httpx",
    "bare_socket": "bare socket (the limit)",
    "aswarm_": "**aswarm**",
    "aswarm_aiohttp": "**aswarm**, aiohttp",
    "aswarm_batch": "**aswarm**, `batch`",
    "aswarm_journal": "**aswarm**, `batch` with a journal",
    "handwritten_aiohttp": "hand-written on `AsyncOpenAI`, aiohttp",
    "aswarm_batch_aiohttp": "**aswarm**, `batch`, aiohttp",
    "aswarm_journal_aiohttp": "**aswarm**, `batch` with a journal, aiohttp",
    "handwritten_responses": "hand-written on `responses.create`",
    "aswarm_responses": "**aswarm** over Responses",
    "aswarm_middleware": "**aswarm**, a middleware that does nothing",
    "aswarm_guard_input": "**aswarm**, `guard_input`",
    "aswarm_guard_tool": "**aswarm**, `guard_tool`",
    "aswarm_hold_answer": "**aswarm**, `hold_answer`",
    "aswarm_otel": "**aswarm**, `otel`",
    "aswarm_otel_content": "**aswarm**, `otel(content=True)`",
    "openai_agents": "openai-agents",
    "pydantic_ai_": "pydantic-ai",
    "langgraph_swarm_": "langgraph-swarm",
    "agent_framework_": "agent-framework",
    "agno_": "agno",
    "autogen": "autogen-agentchat",
    "strands_": "strands-agents",
}
_BATCHES = "Batches with answers after 200 ms: CPU of a turn, and conversations in a second, by conversations at once"
_TABLES = [
    (
        "CPU of a turn, by conversations at once",
        ["turn_at_once1_past0", "turn_at_once32_past0", "turn_at_once256_past0"],
    ),
    (
        "CPU of a turn, by messages of history",
        ["turn_at_once1_past0", "turn_at_once1_past10", "turn_at_once1_past100", "turn_at_once1_past1000"],
    ),
    ("CPU of a turn with delayed answers, by conversations in flight", ["delayed_256", "delayed_1000"]),
    ("Streaming", ["chunk", "chunk_block", "first_delta"]),
    ("Memory and import", ["parked", "import"]),
    ("Very many", ["many", "all_at_once"]),
    (_BATCHES, ["batch_1", "batch_50", "batch_500", "batch_2000"]),
    (
        "Memory of a batch, 100 at once, by items",
        ["batch_memory_1000_100", "batch_memory_10000_100", "batch_memory_50000_100"],
    ),
    (
        "Memory of a batch, by conversations at once (answers after 1 s)",
        ["batch_memory_2000_100", "batch_memory_2000_500", "batch_memory_2000_1000", "batch_memory_2000_2000"],
    ),
]
_KIB = 1024


def _name(label: str) -> str:
    contender, _, view = label.partition(" ")
    return NAMES.get(contender, contender) + (f", `{view}`" if view else "")


def _amount(value: float, kind: str) -> str:
    if kind == "bytes":
        return f"{value / _KIB:,.0f} KiB"
    if value >= 10_000:  # noqa: PLR2004 - microseconds are for what has no more than four digits of them
        return f"{value / 1000:,.1f} ms"
    return f"{value:,.0f} µs" if value >= 100 else f"{value:.1f} µs"  # noqa: PLR2004 - three digits


def _ratio(value: float) -> str:
    return f"{value:.4f}" if value < 0.0995 else f"{value:.2f}"  # noqa: PLR2004 - a small ratio needs its digits


def _cell(row: dict[str, Any] | None, kind: str) -> str:
    if row is None:
        return ""
    if "error" in row:
        return "failed"
    amount = _amount(row["value"], kind)
    if "conversations_per_second" in row:
        amount += f" · {row['conversations_per_second']:,.1f}/s"
    if "ratio" not in row:
        return amount
    if row["lowest"] == row["highest"] == 1:
        return f"1 · {amount}"
    return f"{_ratio(row['ratio'])} ({_ratio(row['lowest'])} to {_ratio(row['highest'])}) · {amount}"


def _table(title: str, figures: Sequence[dict[str, Any]]) -> list[str]:
    rows = {figure["name"]: {row["contender"]: row for row in figure["rows"]} for figure in figures}
    labels = dict.fromkeys(label for named in rows.values() for label in named)
    lines = [f"## {title}", "", "| | " + " | ".join(figure["title"] for figure in figures) + " |"]
    lines.append("|---" * (len(figures) + 1) + "|")
    for label in labels:
        cells = [_cell(rows[figure["name"]].get(label), figure["value"]) for figure in figures]
        lines.append(f"| {_name(label)} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _growth(figures: dict[str, dict[str, Any]]) -> list[str]:
    """Return the cost of one more message of history in every turn."""
    if not {"turn_at_once1_past0", "turn_at_once1_past1000"} <= figures.keys():
        return []
    short, long = (
        {row["contender"]: row.get("value") for row in figures[name]["rows"]}
        for name in ("turn_at_once1_past0", "turn_at_once1_past1000")
    )
    costs = {label: (long[label] - short[label]) / 1000 for label in short if short[label] and long.get(label)}
    cells = "; ".join(f"{_name(label)} {cost:.2f}" for label, cost in costs.items())
    return [f"One more message of history, µs in every turn: {cells}.", ""]


def _added(figures: dict[str, dict[str, Any]]) -> list[str]:
    """Return the CPU that the batch runner and its journal add to the same runs in their own tasks."""
    parts = [
        f"{figures[name]['job']['at_once']:,} at once{on.replace('_', ' on ')} {added}"
        for name in ("batch_1", "batch_50", "batch_500", "batch_2000")
        for on in ("", "_aiohttp")
        if (added := _added_on(on, figures.get(name)))
    ]
    return [f"CPU that the runner adds to the runs themselves: {'; '.join(parts)}.", ""] if parts else []


def _added_on(on: str, figure: dict[str, Any] | None) -> str | None:
    values = {row["contender"]: row["values"] for row in figure["rows"] if "values" in row} if figure else {}
    names = ("aswarm" + (on or "_"), f"aswarm_batch{on}", f"aswarm_journal{on}")
    alone, runner, journal = (values.get(name) for name in names)
    if alone is None or runner is None or journal is None:
        return None
    return f"{_median_ratio(runner, alone) - 1:+.0%}, with a journal {_median_ratio(journal, alone) - 1:+.0%}"


def _median_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(mine / other for mine, other in zip(values, others, strict=True))


def _left(figures: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{figure['title']}, {_name(row['contender'])}: at most {row['bytes_most'] / _KIB**2:,.0f} MiB; "
        f"the second time added {row['bytes_grown'] / _KIB**2:+,.1f} MiB; once the client is closed "
        f"{row['bytes_left'] / _KIB**2:+,.1f} MiB and {row['objects_left']:+,} objects are left.\n"
        for figure in figures.values()
        for row in figure["rows"]
        if "bytes_left" in row
    ]


def _failures(figures: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"Failed: {figure['title']}, {_name(row['contender'])}: {row['error']}\n"
        for figure in figures.values()
        for row in figure["rows"]
        if "error" in row
    ]


def _versions(results: dict[str, Any]) -> list[str]:
    lines = ["## Versions", ""]
    for label, about in results["contenders"].items():
        packages = ", ".join(f"{package} {version}" for package, version in about.get("versions", {}).items())
        together = "" if about["together"] > 1 else "; runs the two tools of a turn one after another"
        lines.append(f"- {_name(label)}: {packages}{together}")
    lines += [f"- left out: {_name(label)}: {reason}" for label, reason in results["left_out"].items()]
    return lines


def markdown(results: dict[str, Any]) -> str:
    """Return the whole page."""
    figures = {figure["name"]: figure for figure in results["figures"]}
    lead = (
        f"{results['date']}, {results['machine']}, {results['rounds']} rounds. Each cell: median ratio to "
        f"{_name(results['reference'])}, measured in the same round (lowest to highest) · median. Made by `benchmarks/run.py`."
    )
    lines = ["# What a turn costs, side by side", "", lead, ""]
    for title, names in _TABLES:
        if present := [figures[name] for name in names if name in figures]:
            lines += _table(title, present)
        if "history" in title:
            lines += _growth(figures)
        if title == _BATCHES:
            lines += _added(figures)
    return "\n".join([*lines, *_left(figures), *_failures(figures), *_versions(results), ""])
