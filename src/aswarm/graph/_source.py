"""The source of a function as a syntax tree. Finds the source; never runs it."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass

NamedFunction = ast.FunctionDef | ast.AsyncFunctionDef
FunctionTree = NamedFunction | ast.Lambda
Span = tuple[tuple[int, int], tuple[int, int]]


def tree_of(function: types.FunctionType) -> FunctionTree | None:
    """The syntax tree of a function; None where the source is missing, or could belong to another lambda."""
    code = function.__code__
    try:
        lines, _ = inspect.findsource(code)
        functions = _parsed("".join(lines))
    except (OSError, SyntaxError, ValueError):  # typed in, executed from a string, or edited since
        return None
    if code.co_name == "<lambda>":
        return _lambda(functions.lambdas, code)
    return functions.named.get((code.co_name, code.co_firstlineno))


@dataclass(frozen=True, slots=True)
class _SourceFunctions:
    """The functions in a source: the `named` ones by their names and first lines."""

    named: dict[tuple[str, int], NamedFunction]
    lambdas: list[ast.Lambda]


@functools.lru_cache(maxsize=8)  # of a few modules; to walk the tree again for each function would be quadratic
def _parsed(source: str) -> _SourceFunctions:
    named: dict[tuple[str, int], NamedFunction] = {}
    lambdas: list[ast.Lambda] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Lambda):
            lambdas.append(node)
        elif isinstance(node, NamedFunction):
            named.setdefault((node.name, _first_line(node)), node)
    return _SourceFunctions(named, lambdas)


def _first_line(node: NamedFunction) -> int:
    # The first line of a code object is that of the first decorator.
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _lambda(lambdas: list[ast.Lambda], code: types.CodeType) -> ast.Lambda | None:
    """The innermost lambda whose body contains all of the code; several lambdas may be on one line."""
    spans = list(_spans(code))
    around = [node for node in lambdas if all(_is_inside(span, _span(node.body)) for span in spans)]
    return max(around, key=lambda node: _span(node.body)[0], default=None) if spans else None


def _spans(code: types.CodeType) -> Iterator[Span]:
    for line, end_line, column, end_column in code.co_positions():
        # Instructions that Python adds have no position, or an empty one. `-X no_debug_ranges` leaves out all columns.
        if line is not None and end_line is not None and column is not None and end_column:
            yield (line, column), (end_line, end_column)


def _span(node: ast.expr) -> Span:
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset), (end_line, end_column)


def _is_inside(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
