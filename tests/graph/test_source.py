"""Functions whose source is not at hand, or is not what it was: a graph then goes by names."""

from __future__ import annotations

import ast
from typing import Any

from graphs import told

from aswarm import Agent, tool

sales = Agent(name="Sales")
refunds = Agent(name="Refunds")


def test_without_source_names_are_all_there_is() -> None:
    """Code that was executed from a string has no source: what it names may be."""
    namespace: dict[str, Any] = {"sales": sales}
    exec("def transfer():\n    return sales\npick = lambda: sales", namespace)
    assert told(namespace["transfer"]) == ([], [("transfer", "Sales")])


def test_source_that_has_changed_is_not_believed(tmp_path: Any) -> None:
    """A file that was edited after its import: what does not fit any more is looked for by name; so is broken text."""
    path = tmp_path / "edited.py"
    for edited in ("\n\ndef other():\n    return refunds\n", "def transfer(:\n", ""):
        path.write_text("def transfer():\n    return sales\n", encoding="utf-8")
        namespace: dict[str, Any] = {"sales": sales, "refunds": refunds}
        exec(compile(ast.parse(path.read_text()), path, "exec"), namespace)
        path.write_text(edited, encoding="utf-8")
        assert told(namespace["transfer"]) == ([], [("transfer", "Sales")])


def test_lambdas_without_columns() -> None:
    """With `-X no_debug_ranges` lambdas cannot be told apart; then the names are all there is."""
    function = lambda: sales  # noqa: E731
    function.__code__ = function.__code__.replace(co_linetable=b"")
    assert told(tool(name="short")(function)) == ([], [("short", "Sales")])
