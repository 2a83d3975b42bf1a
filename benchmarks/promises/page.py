"""Makes Markdown from the results: the tables and reasons of `docs/proof/promises.md`, and the small table of README.

A block of a page is between `<!-- made: name -->` and `<!-- end -->`. Both `play_all.py` and
`PYTHONPATH=src python -m docs._site write` update the blocks. A test compares the blocks with the results.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scenarios import SCENARIOS

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
RESULTS = HERE.parent / "results/promises.json"
NONE = "no verdict"
# If a framework has several programs of a scenario, the first of these verdicts counts.
_BETTER_FIRST = ["kept", "refused", "not offered", "broken", NONE]
_HERE_FROM_PAGE = "../../benchmarks/promises"
_OURS = "aswarm_"
_URL = re.compile(r"https://[^\s`)]+?(?=[.,;:]?(?:[\s`)]|$))")

Json = dict[str, Any]


# --- programs, scenarios and results ----------------------------------------------------------------------------------


def programs() -> list[tuple[str, str]]:
    """Return the programs, as framework and scenario, in the order of the page."""
    folders = sorted(path.name for path in (HERE / "programs").iterdir() if path.is_dir())
    folders.sort(key=lambda name: not name.startswith(_OURS))
    return [(name, scenario) for name in folders for scenario in SCENARIOS if _path_of(name, scenario).exists()]


def _path_of(framework: str, scenario: str) -> Path:
    return HERE / "programs" / framework / f"{scenario}.py"


def name_of(framework: str) -> str:
    """Return the name of a framework, from the name of its folder."""
    return framework.strip("_").replace("_", "-")


def column_of(framework: str) -> str:
    """Return the folder that has the column: `aswarm_` for `aswarm_plain`, a second way to write the same programs."""
    folders = {name for name, _ in programs()}
    return min((name for name in folders if framework.startswith(name)), key=len, default=framework)


def results() -> Json:
    """Return the results so far."""
    found: Json = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"frameworks": {}, "cells": []}
    )
    return found


@cache
def _scenarios() -> dict[str, list[tuple[str, Path]]]:
    """Return the promises, each with the names and pages of its scenarios."""
    found: dict[str, list[tuple[str, Path]]] = {}
    for path in sorted((HERE / "scenarios").glob("[0-9]*.md")):
        promise = re.search(r"^\*Promise: (.+?)\*$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        assert promise, path
        text = " ".join(promise[1].split())
        found.setdefault(text[0].upper() + text[1:], []).append((path.stem.partition("-")[2], path))
    return found


def _best(cells: Iterable[Json]) -> dict[tuple[str, str], Json]:
    """Return the cell of each column and scenario."""
    found: dict[tuple[str, str], Json] = {}
    for cell in sorted(cells, key=lambda cell: _BETTER_FIRST.index(cell["verdict"])):
        found.setdefault((column_of(cell["framework"]), cell["scenario"]), cell)
    return found


def _columns(cells: Iterable[Json]) -> list[str]:
    return list(dict.fromkeys(column_of(cell["framework"]) for cell in cells))


# --- the page ---------------------------------------------------------------------------------------------------------


def tables(found: Json | None = None) -> str:
    """Return a table for each promise, the reasons of the verdicts other than "kept", the notes of the others, the versions."""
    found = found or results()
    parts = [
        part for promise in _scenarios() for part in (f"## {promise.rstrip('.')}", _table_of(promise, found["cells"]))
    ]
    for title, lines_of in (("Reasons", _reason), ("What the programs do", _note)):
        if lines := list(_by_framework(found["cells"], lines_of)):
            parts += [f"## {title}", *lines]
    return "\n\n".join([*parts, "## Versions", _versions(found)])


def _table_of(promise: str, cells: Sequence[Json]) -> str:
    scenarios = _scenarios()[promise]
    best = _best(cells)
    columns = [each for each in _columns(cells) if any((each, scenario) in best for scenario, _ in scenarios)]
    rows = [
        [f"[{scenario.replace('_', ' ')}]({_HERE_FROM_PAGE}/scenarios/{path.name})"]
        + [_linked(best.get((each, scenario))) for each in columns]
        for scenario, path in scenarios
    ]
    return _table(["", *map(name_of, columns)], rows)


def _linked(cell: Json | None) -> str:
    return f"[{cell['verdict']}]({_program(cell)})" if cell else ""


def _program(cell: Json) -> str:
    return f"{_HERE_FROM_PAGE}/programs/{cell['framework']}/{cell['scenario']}.py"


def _versions(found: Json) -> str:
    rows = []
    for framework, each in found["frameworks"].items():
        dates = sorted({cell["date"] for cell in found["cells"] if cell["framework"] == framework})
        played = " to ".join(dict.fromkeys([dates[0], dates[-1]]))
        versions = ", ".join(each["requires"]).replace("==", " ")
        rows.append(
            [name_of(framework), versions, str(_lines(framework)), each["machine"], played, *_defended(framework)]
        )
    return _table(["framework", "packages", "lines", "machine", "played on", "defended"], rows)


def _lines(framework: str) -> int:
    """Return the number of lines of the programs that are not empty."""
    files = (HERE / "programs" / framework).glob("*.py")
    return sum(bool(line.strip()) for file in files for line in file.read_text(encoding="utf-8").splitlines())


def _defended(framework: str) -> Iterator[str]:
    path = HERE / "defence" / f"{framework}.md"
    if path.exists():
        last = path.read_text(encoding="utf-8").strip().splitlines()[-1].lower().lstrip("*_ ")
        signed = "signed" if last.startswith("signed") else "not signed"
        yield f"[{signed}]({_HERE_FROM_PAGE}/defence/{path.name})"
    else:
        yield "not yet" if column_of(framework) == framework and not framework.startswith(_OURS) else ""


def _by_framework(cells: Sequence[Json], line_of: Callable[[Json], str | None]) -> Iterator[str]:
    for framework in dict.fromkeys(cell["framework"] for cell in cells):
        lines = [line for cell in cells if cell["framework"] == framework and (line := line_of(cell))]
        if lines:
            yield f"### {name_of(framework)}"
            yield "\n".join(lines)


def _reason(cell: Json) -> str | None:
    """Return a line about a verdict other than "kept": why, with links."""
    if cell["verdict"] == "kept":
        return None
    doc, urls = _documentation(cell["framework"], cell["scenario"])
    links = [f"[program]({_program(cell)})"]
    if cell["verdict"] == "not offered":
        urls = [*_URL.findall(cell["line"]), *urls]
        # The first sentence of the program says why there is no way.
        line = doc.partition(". ")[0].rstrip(".").partition(": ")[2] or doc.partition(". ")[0].rstrip(".")
    else:
        line = _as_code(cell["line"].removeprefix(f"{cell['verdict']}: "))
    if urls:
        links.append(f"[documentation]({urls[0]})")
    return f"- {_title(cell)}: **{cell['verdict']}**. {line} ({', '.join(links)})"


def _note(cell: Json) -> str | None:
    """Return a line about the program of another framework: what it does, and the documentation that it follows."""
    note = _documentation(cell["framework"], cell["scenario"])[0].partition(". ")[2]
    if not note or column_of(cell["framework"]) == _OURS:
        return None
    return f"- [{_title(cell)}]({_program(cell)}): {_URL.sub(lambda url: f'<{url[0]}>', note)}"


def _title(cell: Json) -> str:
    return str(cell["scenario"]).replace("_", " ")


def _as_code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _documentation(framework: str, scenario: str) -> tuple[str, list[str]]:
    """Return the docstring of a program, and the pages that it or `common.py` cites."""
    own = _docstring(_path_of(framework, scenario))
    return own, [*_URL.findall(own), *_URL.findall(_docstring(_path_of(framework, "common")))]


def _docstring(path: Path) -> str:
    if not path.exists():
        return ""
    return " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") for line in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


# --- README -----------------------------------------------------------------------------------------------------------


def short(found: Json | None = None) -> str:
    """Return a table with the number of kept scenarios of each promise, and of those that are broken; and the lines."""
    cells = (found or results())["cells"]
    best, columns = _best(cells), _columns(cells)
    rows = []
    for promise, scenarios in _scenarios().items():
        counts = [
            _counts([best[each, name]["verdict"] for name, _ in scenarios if (each, name) in best]) for each in columns
        ]
        rows.append([promise.rstrip("."), *counts])
    played = {each: len({name for column, name in best if column == each}) for each in columns}
    rows.append(
        ["lines of the programs, for each scenario", *(f"{_lines(each) / played[each]:.0f}" for each in columns)]
    )
    return _table(["", *map(name_of, columns)], rows)


def _counts(verdicts: Sequence[str]) -> str:
    if not verdicts:
        return ""
    broken = verdicts.count("broken")
    return f"{verdicts.count('kept')} of {len(verdicts)}" + (f", {broken} broken" if broken else "")


# --- the pages for readers of another framework -----------------------------------------------------------------------


def beside(framework: str, found: Json | None = None) -> str:
    """Return a table of the scenarios that a framework, or aswarm, does not keep."""
    best = _best((found or results())["cells"])
    scenarios = [each for pages in _scenarios().values() for each in pages if (framework, each[0]) in best]
    rows = []
    for scenario, path in scenarios:
        theirs, ours = best[framework, scenario], best[_OURS, scenario]
        if {theirs["verdict"], ours["verdict"]} != {"kept"}:
            linked = f"[{scenario.replace('_', ' ')}]({_HERE_FROM_PAGE}/scenarios/{path.name})"
            rows.append([linked, _with_line(theirs), _with_line(ours)])
    kept = f"Both keep the promise in {len(scenarios) - len(rows)} of {len(scenarios)} scenarios"
    return f"{kept}, except:\n\n{_table(['', name_of(framework), name_of(_OURS)], rows)}" if rows else f"{kept}."


def _with_line(cell: Json) -> str:
    verdict = _linked(cell)
    line = cell["line"].removeprefix(f"{cell['verdict']}: ")
    return f"{verdict}: {_as_code(line).replace('|', '/')}" if cell["verdict"] in ("broken", "refused") else verdict


# --- blocks -----------------------------------------------------------------------------------------------------------

BLOCKS: dict[str, Callable[[], str]] = {
    "promises": tables,
    "promises_short": short,
    "promises_agent_framework": lambda: beside("agent_framework_"),
    "promises_openai_agents": lambda: beside("openai_agents"),
    "promises_pydantic_ai": lambda: beside("pydantic_ai_"),
    "promises_strands": lambda: beside("strands_"),
}
PAGES = (
    "README.md",
    "docs/proof/promises.md",
    *(f"docs/coming-from/{name}.md" for name in ("agent-framework", "openai-agents", "pydantic-ai", "strands")),
)
