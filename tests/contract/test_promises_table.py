"""The command that plays all programs of `benchmarks/promises`, and the tables that show the results."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "promises"))  # at the end: its modules have short names

import environments
import page
import play_all
from judges import BROKEN, KEPT, NOT_OFFERED, REFUSED

TIMED_OUT = 124
Json = dict[str, Any]
PLAYS: dict[str, tuple[list[int], str, int]] = {
    "kept": ([KEPT], "kept", 1),
    "refused": ([REFUSED], "refused", 1),
    "not offered": ([NOT_OFFERED], "not offered", 1),
    "broken three times": ([BROKEN] * 3, "broken", 3),
    "a time limit, then kept": ([TIMED_OUT, KEPT], "kept", 2),
    "a time limit, then broken three times": ([TIMED_OUT, BROKEN, BROKEN, BROKEN], "broken", 4),
    "broken, then kept": ([BROKEN, KEPT], page.NONE, 2),
    "three time limits": ([TIMED_OUT] * 3, page.NONE, 3),
    "an error and two time limits": ([1, TIMED_OUT, TIMED_OUT], page.NONE, 3),
    "broken once, and three time limits": ([BROKEN, TIMED_OUT, TIMED_OUT, TIMED_OUT], page.NONE, 4),
}


@pytest.mark.parametrize("case", PLAYS)
def test_a_verdict_needs_as_many_plays_as_make_it_certain(case: str) -> None:
    """Three for "broken". A time limit is no verdict, and never "broken"."""
    codes, verdict, times = PLAYS[case]
    plays = iter([(code, f"line {number}") for number, code in enumerate(codes)])
    assert play_all.verdict_of(lambda: next(plays))[::2] == (verdict, times)
    assert next(plays, None) is None


def test_only_takes_frameworks_and_scenarios() -> None:
    """With names of both kinds: these scenarios in these frameworks. A framework has all its folders."""
    assert play_all.chosen([]) == page.programs()
    assert {framework for framework, _ in play_all.chosen(["aswarm"])} == {"aswarm_", "aswarm_plain"}
    both = play_all.chosen(["openai-agents", "aswarm_", "killed_in_a_tool"])
    assert both == [("aswarm_", "killed_in_a_tool"), ("openai_agents", "killed_in_a_tool")]
    with pytest.raises(SystemExit, match="no framework and no scenario: nothing"):
        play_all.chosen(["nothing"])


def test_a_part_of_the_results_replaces_only_this_part() -> None:
    """The cells of other programs stay; the cells of programs that are gone do not."""
    before = {
        "frameworks": {"aswarm_": {"requires": ["aswarm==1"]}, "gone": {"requires": []}},
        "cells": [
            cell("aswarm_", "client_returns"),
            cell("gone", "client_returns"),
            cell("aswarm_", "killed_in_a_tool"),
        ],
    }
    new = cell("aswarm_", "client_returns", "broken")
    after = play_all.merged(before, [new], {"aswarm_": {"requires": ["aswarm==2"]}})
    assert after["frameworks"] == {"aswarm_": {"requires": ["aswarm==2"]}}
    assert after["cells"] == [cell("aswarm_", "killed_in_a_tool"), new]


def cell(framework: str, scenario: str, verdict: str = "kept", line: str = "a line") -> Json:
    return {
        "framework": framework,
        "scenario": scenario,
        "verdict": verdict,
        "line": line,
        "plays": 3,
        "seconds": 1.0,
        "date": "2026-11-27",
    }


# --- tables -----------------------------------------------------------------------------------------------------------

RESULTS: Json = {
    "frameworks": {
        name: {"requires": [f"{name}==1"], "machine": "m"} for name in ("aswarm_", "aswarm_plain", "openai_agents")
    },
    "cells": [
        cell("aswarm_", "answered_in_reverse"),
        cell("aswarm_plain", "answered_in_reverse", "broken", "the first `decision` is lost"),
        cell("openai_agents", "killed_in_a_tool", "broken"),
        cell("openai_agents", "client_returns", "not offered", "not offered: https://example.org/streaming (a note)"),
    ],
}


def test_readme_counts_the_better_program_of_each_scenario() -> None:
    """The promises are the rows. A framework without a program for a promise has an empty cell."""
    head, _, first, second, third, lines = page.short(RESULTS).splitlines()
    assert head == "| | aswarm | openai-agents |"
    assert first == "| An interrupted turn never ruins a conversation | | 0 of 1, 1 broken |"
    assert second.endswith("| 1 of 1 | |")
    assert third.endswith("| | 0 of 1 |")
    assert re.fullmatch(r"\| lines of the programs, for each scenario \| \d+ \| \d+ \|", lines)


def test_the_page_has_a_reason_for_each_verdict_other_than_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the line of the judge, or the sentence of the program, and links to the program and to the documentation."""
    monkeypatch.setattr(
        page, "_docstring", lambda path: "A client: it has no log. Follows https://example.org/runs (all)."
    )
    text = page.tables(RESULTS)
    programs = "../../benchmarks/promises/programs"
    assert f"- answered in reverse: **broken**. `` the first `decision` is lost `` ([program]({programs}/" in text
    links = f"[program]({programs}/openai_agents/client_returns.py), [documentation](https://example.org/streaming)"
    assert f"- client returns: **not offered**. it has no log ({links})" in text
    assert (
        f"- [client returns]({programs}/openai_agents/client_returns.py): Follows <https://example.org/runs> (all)."
        in text
    )


def test_a_framework_has_no_column_for_a_promise_without_its_programs() -> None:
    """agno has only programs of the third promise."""
    heads = [line for line in page.tables(RESULTS).splitlines() if line.startswith("| |")]
    assert heads == ["| | openai-agents |", "| | aswarm |", "| | openai-agents |"]


def test_the_page_for_readers_of_a_framework_has_the_rows_in_which_it_differs() -> None:
    """And the number of the others. Without a difference, there is no table."""
    kept = {"frameworks": {}, "cells": [cell("aswarm_", "client_returns"), *RESULTS["cells"][2:]]}
    kept["cells"].append(cell("aswarm_", "killed_in_a_tool"))
    text = page.beside("openai_agents", kept)
    assert text.startswith("Both keep the promise in 0 of 2 scenarios, except:")
    assert "[broken](../../benchmarks/promises/programs/openai_agents/killed_in_a_tool.py): `a line` | [kept](" in text
    assert page.beside("aswarm_", kept) == "Both keep the promise in 2 of 2 scenarios."


def test_each_environment_has_exact_versions_and_a_lock_with_them() -> None:
    """`python benchmarks/promises/environments.py lock` writes the locks."""
    for name, requirements in environments.requirements().items():
        lock = (environments.LOCKS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        for requirement in requirements:
            package, version = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?==([\w.]+)", requirement).groups()  # type: ignore[union-attr]
            assert any(line.partition(" ;")[0] == f"{package}=={version}" for line in lock), requirement


def test_the_results_are_of_the_programs_and_versions_of_today() -> None:
    """After a change, `nox -s promises -- --only NAME` plays the programs again, and updates the page."""
    results, requirements = page.results(), environments.requirements()
    assert [(each["framework"], each["scenario"]) for each in results["cells"]] == page.programs()
    for framework, about in results["frameworks"].items():
        name = environments.environment_of(framework)
        assert name is None or about["requires"] == requirements[name]
    assert {*requirements} <= {*results["frameworks"]}
