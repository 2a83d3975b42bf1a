"""The source of a function as a syntax tree. Finds it; never runs it."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Iterator

FunctionTree = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Span = tuple[tuple[int, int], tuple[int, int]]


def tree_of(function: types.FunctionType) -> FunctionTree | None:
    """The syntax tree of a function; None where its source is not at hand, or cannot be told from another lambda's."""
    code = function.__code__
    try:
        lines, _ = inspect.findsource(code)
        tree = _parsed("".join(lines))
    except (OSError, SyntaxError, ValueError):  # typed in, executed from a string, or edited since
        return None
    if code.co_name == "<lambda>":
        return _lambda(tree, code)
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return next(
        (node for node in found if node.name == code.co_name and _first_line(node) == code.co_firstlineno), None
    )


@functools.lru_cache(maxsize=8)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    # Code begins with the first decorator.
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _lambda(tree: ast.Module, code: types.CodeType) -> ast.Lambda | None:
    """The innermost lambda whose body has all of the code in it: several may stand on one line."""
    spans = list(_spans(code))
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Lambda) and all(_is_inside(span, _span(node.body)) for span in spans)
    ]
    return max(around, key=lambda node: _span(node.body)[0], default=None) if spans else None


def _spans(code: types.CodeType) -> Iterator[Span]:
    for line, end_line, column, end_column in code.co_positions():
        # What Python adds itself has no place, or an empty one. `-X no_debug_ranges` gives no columns at all.
        if line is not None and end_line is not None and column is not None and end_column:
            yield (line, column), (end_line, end_column)


def _span(node: ast.expr) -> Span:
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset), (end_line, end_column)


def _is_inside(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
