"""Functions whose source is missing or has changed: a graph then uses the names in their code."""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, tool
from aswarm.graph import agent_graph
from tests.support.graph.graphs import handoffs_of

sales = Agent(name="Sales")
refunds = Agent(name="Refunds")


def test_without_a_source_handoffs_are_possible() -> None:
    """Code that was executed from a string has no source, so the agents that it refers to are only possible."""
    namespace: dict[str, Any] = {"sales": sales}
    exec("def transfer():\n    return sales\npick = lambda: sales", namespace)
    assert handoffs_of(namespace["transfer"]) == ([], [("transfer", "Sales")])


def test_a_changed_source_is_not_used(tmp_path: Any) -> None:
    """A file that was edited after its import, or that is broken: the handoffs of its functions are only possible."""
    path = tmp_path / "edited.py"
    for edited in ("\n\ndef other():\n    return refunds\n", "def transfer(:\n", ""):
        path.write_text("def transfer():\n    return sales\n", encoding="utf-8")
        namespace: dict[str, Any] = {"sales": sales, "refunds": refunds}
        exec(compile(ast.parse(path.read_text()), path, "exec"), namespace)
        path.write_text(edited, encoding="utf-8")
        assert handoffs_of(namespace["transfer"]) == ([], [("transfer", "Sales")])


def test_lambdas_without_columns() -> None:
    """With `-X no_debug_ranges` lambdas cannot be distinguished, so their handoffs are only possible."""
    function = lambda: sales  # noqa: E731
    function.__code__ = function.__code__.replace(co_linetable=b"")
    assert handoffs_of(tool(name="short")(function)) == ([], [("short", "Sales")])


def test_a_large_module_is_parsed_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work for an agent does not grow with the number of functions in its module."""
    monkeypatch.syspath_prepend(tmp_path)
    small, large = (calls_of_a_graph(tmp_path, size) for size in (20, 200))
    assert large / 200 < 1.5 * small / 20


def test_a_second_search_reads_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service searches at each decision on a run inside a call; it gets the same handoffs without the file."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "read_once.py"
    path.write_text("from aswarm import Agent\nb = Agent(name='B')\ndef to_b():\n    return b\n", encoding="utf-8")
    function = importlib.import_module("read_once").to_b
    first = handoffs_of(function)
    path.unlink()
    assert handoffs_of(function) == first == ([("to_b", "B")], [])


def calls_of_a_graph(folder: Path, size: int) -> int:
    """Return the number of calls for the graph of a ring of agents, whose functions are in one module."""
    numbers = range(size)
    functions = [f"def to_{number}():\n    return agent_{(number + 1) % size}" for number in numbers]
    agents = [f"agent_{number} = Agent(functions=[to_{number}])" for number in numbers]
    (folder / f"ring_of_{size}.py").write_text("\n".join(["from aswarm import Agent", *functions, *agents]), "utf-8")
    agent = importlib.import_module(f"ring_of_{size}").agent_0
    calls: Counter[str] = Counter()
    before = sys.getprofile()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    try:
        graph = agent_graph(agent)
    finally:
        sys.setprofile(before)
    assert (len(graph.agents), len(graph.handoffs)) == (size, size)
    return calls["call"]
