"""The agents that a function returns, from its source and its return annotation.

The module follows names, attributes, local variables, conditions and `Result(agent=...)`. If a function returns something else
(the result of another function, an item of a dict), `is_complete` is False, and `_inspection` searches for agents.
`handoffs_of` finds the certain and the possible handoffs of an agent. No function is called.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
import warnings
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Union, get_args, get_origin

from aswarm._tools.hints import resolve_hints
from aswarm._values.agent import Agent, Result, is_agent
from aswarm.extensions import Tool

from ._inspection import MISSING, InspectedFunction, PropertyValue, inspect_function, member, referenced_agents

NamedFunction = ast.FunctionDef | ast.AsyncFunctionDef
FunctionTree = NamedFunction | ast.Lambda
Span = tuple[tuple[int, int], tuple[int, int]]


@dataclass(slots=True)
class ReturnedAgents:
    """The agents that the source of a function returns.

    `agents`: the agents that were found.
    `makes_agent`: whether the function creates an agent, which does not exist before the call.
    `hands_off`: whether the function returns a `Result` with an `agent` that was not found.
    `is_complete`: whether the function cannot return any other agent.
    """

    agents: list[Agent] = field(default_factory=list[Agent])
    makes_agent: bool = False
    hands_off: bool = False
    is_complete: bool = True


def read_returns(function: InspectedFunction) -> ReturnedAgents:
    """Read the source of a function. Without a source, the result is empty and not complete."""
    tree = _tree_of(function.code, function.code.co_filename)
    if tree is None:
        return ReturnedAgents(is_complete=False)
    reader = _ReturnReader(function, tree)
    if isinstance(tree, ast.Lambda):
        reader.read(tree.body)
    else:
        returned = [node.value for node in _own_nodes(tree) if isinstance(node, ast.Return)]
        reader.read_all([value for value in returned if value])
    return reader.found


def _own_nodes(tree: FunctionTree) -> Iterator[ast.AST]:
    """Yield the nodes of the function in the order of its source, except nodes of inner functions and classes."""
    waiting: list[ast.AST] = [tree.body] if isinstance(tree, ast.Lambda) else [*tree.body]
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting[:0] = ast.iter_child_nodes(node)


class _ReturnReader:
    def __init__(self, function: InspectedFunction, tree: FunctionTree) -> None:
        self.found = ReturnedAgents()
        self._function = function
        self._followed: set[str] = set()
        nodes = list(_own_nodes(tree))
        self._assigned = list(_assignments(nodes))
        stores = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        # Names that get a value from a loop, from unpacking, or from +=.
        self._opaque = stores - Counter(name for name, _ in self._assigned)

    def read(self, value: ast.expr) -> None:
        """Add the agents of one returned expression."""
        match value:
            case ast.IfExp(body=body, orelse=orelse):
                self.read_all([body, orelse])
            case ast.BoolOp(values=values):
                self.read_all(values)
            case ast.NamedExpr(value=inner) | ast.Await(value=inner):
                self.read(inner)
            case ast.Name(id=name):
                self._read_name(name)
            case ast.Attribute():
                self._add(self._resolve(value))
            case ast.Call():
                self._read_call(value)
            case _:
                self.found.is_complete &= isinstance(value, _NO_AGENT)

    def read_all(self, values: list[ast.expr]) -> None:
        for value in values:
            self.read(value)

    def _read_name(self, name: str) -> None:
        if name in self._followed:
            return
        self._followed.add(name)
        assigned = [value for target, value in self._assigned if target == name]
        self.read_all(assigned)
        if self._opaque[name] or not assigned or name in self._function.bound:
            self._add(self._function.value(name))

    def _read_call(self, call: ast.Call) -> None:
        callee = self._resolve(call.func)
        is_class = isinstance(callee, type)
        if is_class and issubclass(callee, Result):
            self._read_agent_of_result([keyword.value for keyword in call.keywords if keyword.arg == "agent"])
            self.found.is_complete &= all(keyword.arg for keyword in call.keywords)  # False for **fields
        elif is_class:
            self.found.makes_agent |= issubclass(callee, Agent)
        else:
            self.found.is_complete &= callee is not MISSING and annotated_handoff(callee) is False

    def _read_agent_of_result(self, arguments: list[ast.expr]) -> None:
        before, self.found.is_complete = self.found.is_complete, True
        self.read_all(arguments)
        self.found.hands_off |= not self.found.is_complete
        self.found.is_complete &= before

    def _add(self, value: Any) -> None:
        if isinstance(value, Result):
            value = value.agent
        if is_agent(value):
            self.found.agents.append(value)
        elif value is MISSING or isinstance(value, PropertyValue):
            self.found.is_complete = False

    def _resolve(self, value: ast.expr) -> Any:
        match value:
            case ast.Name(id=name):
                return self._function.value(name)
            case ast.Attribute(value=inner, attr=attr):
                holder = self._resolve(inner)
                return MISSING if holder is MISSING else member(holder, attr)
            case _:
                return MISSING


# Expressions whose value is never an agent.
_NO_AGENT = (
    ast.Constant, ast.JoinedStr, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Compare, ast.BinOp, ast.UnaryOp,
    ast.DictComp, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.Lambda,
)  # fmt: skip


def _assignments(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names and values of assignments without unpacking."""
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                yield name, value
            case _:
                pass


# --- the syntax tree of the source, which is never run ---


# Cached, because reading sources takes most of the time of a search, and a service searches for the agents of a run at each
# decision.
@functools.lru_cache(maxsize=512)
def _tree_of(code: types.CodeType, _file: str) -> FunctionTree | None:  # two files may have equal code
    """Return the syntax tree of a function. None if its source is missing, or may belong to another lambda."""
    try:
        lines, _ = inspect.findsource(code)
        named, lambdas = _parsed("".join(lines))
    except (OSError, SyntaxError, ValueError):  # no source file (REPL, `exec`), or edited since the import
        return None
    if code.co_name == "<lambda>":
        return _lambda(lambdas, code)
    return named.get((code.co_name, code.co_firstlineno))


@functools.lru_cache(maxsize=8)  # for a few modules; without a cache, reading a module's functions takes quadratic time
def _parsed(source: str) -> tuple[dict[tuple[str, int], NamedFunction], list[ast.Lambda]]:
    """Return the functions in a source, by name and first line, and the lambdas."""
    named: dict[tuple[str, int], NamedFunction] = {}
    lambdas: list[ast.Lambda] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Lambda):
            lambdas.append(node)
        elif isinstance(node, NamedFunction):
            # The first line of a code object is the line of its first decorator.
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            named.setdefault((node.name, line), node)
    return named, lambdas


def _lambda(lambdas: list[ast.Lambda], code: types.CodeType) -> ast.Lambda | None:
    """Return the innermost lambda whose body contains all of the code.

    The line is not enough: one line may have several lambdas.
    """
    spans = list(_spans(code))
    if not spans:
        return None
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    around = [node for node in lambdas if _span(node.body)[0] <= first and last <= _span(node.body)[1]]
    return max(around, key=lambda node: _span(node.body)[0], default=None)


def _spans(code: types.CodeType) -> Iterator[Span]:
    for line, end_line, column, end_column in code.co_positions():
        # Instructions that Python itself adds have no position or an empty position. `-X no_debug_ranges` removes all columns.
        if line is not None and end_line is not None and column is not None and end_column:
            yield (line, column), (end_line, end_column)


def _span(node: ast.expr) -> Span:
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset), (end_line, end_column)


# --- annotations ---


def annotated_handoff(function: Any) -> bool | None:
    """Read the return annotation. True: it contains an agent or a `Result`. False: it excludes both. None: unknown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run reports a hint that cannot be resolved
        try:
            return _admits_agent(resolve_hints(function, {})["return"])
        except (TypeError, ValueError):  # a builtin without a signature
            return None


def _admits_agent(hint: Any) -> bool | None:
    origin = get_origin(hint)
    if origin is Annotated:
        return _admits_agent(get_args(hint)[0])
    if isinstance(origin, type) and issubclass(origin, Awaitable):
        return _admits_agent(get_args(hint)[-1])
    if origin in (Union, types.UnionType):
        arms = [_admits_agent(arm) for arm in get_args(hint)]
        return True if True in arms else None if None in arms else False
    return _class_admits_agent(origin or hint)


def _class_admits_agent(kind: Any) -> bool | None:
    if kind in (Any, inspect.Parameter.empty) or not isinstance(kind, type):
        return None  # no annotation, or an annotation that shows nothing (a type variable, a NewType)
    if issubclass(kind, Agent | Result):
        return True
    try:
        return None if issubclass(Agent, kind) else False
    except TypeError:  # a protocol without `runtime_checkable`
        return None


@dataclass(frozen=True, slots=True)
class FoundHandoff:
    """A certain or possible handoff of a function. `target`: None if the agent cannot be found."""

    function: str
    target: Agent | None
    certain: bool


def handoffs_of(name: str, tool: Tool[..., Any]) -> Iterator[FoundHandoff]:
    """Yield the handoffs of the function with this name."""
    if tool.is_handoff:
        yield FoundHandoff(name, tool.function(), certain=True)
        return
    inspected = inspect_function(tool.function)
    returned = ReturnedAgents(is_complete=False) if inspected is None else read_returns(inspected)
    certain = {id(agent): agent for agent in returned.agents}
    yield from (FoundHandoff(name, agent, certain=True) for agent in certain.values())
    annotated = None if returned.is_complete else annotated_handoff(tool.function)
    is_open = not returned.is_complete and annotated is not False
    referenced = referenced_agents(inspected) if inspected and is_open else []
    possible = {id(agent): agent for agent in referenced if id(agent) not in certain}
    yield from (FoundHandoff(name, agent, certain=False) for agent in possible.values())
    if returned.makes_agent or ((annotated or returned.hands_off) and not certain and not possible):
        yield FoundHandoff(name, None, certain=False)
