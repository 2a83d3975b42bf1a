"""The agents that a function returns, as its source and its return annotation show.

Follows names, attributes, local variables, conditions and `Result(agent=...)`. Other returned values (the result of a
function, an item of a dict) stay open: then `is_complete` is False, and the agents are searched in another way.
"""

from __future__ import annotations

import ast
import inspect
import types
import warnings
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Union, get_args, get_origin

from aswarm._agent import Agent, Result
from aswarm._tools.hints import resolve_hints

from ._inspection import MISSING, InspectedFunction, PropertyValue, member
from ._source import FunctionTree, tree_of


@dataclass(slots=True)
class ReturnedAgents:
    """The `agents` that the source shows to be returned.

    `makes_agent`: the function makes an agent, which does not exist before the call. `hands_off`: the function returns
    a `Result` with an `agent` that cannot be found. `is_complete`: False where something else may be returned too.
    """

    agents: list[Agent] = field(default_factory=list[Agent])
    makes_agent: bool = False
    hands_off: bool = False
    is_complete: bool = True


def read_returns(function: InspectedFunction) -> ReturnedAgents:
    """Read the source of a function. Without a source, nothing is found, and the answer is not complete."""
    tree = tree_of(function.function)
    if tree is None:
        return ReturnedAgents(is_complete=False)
    reader = _ReturnReader(function, tree)
    for value in _returned(tree):
        reader.read(value)
    return reader.found


def _returned(tree: FunctionTree) -> Iterator[ast.expr]:
    if isinstance(tree, ast.Lambda):
        yield tree.body
    else:
        yield from (node.value for node in _own_nodes(tree) if isinstance(node, ast.Return) and node.value)


def _own_nodes(tree: FunctionTree) -> Iterator[ast.AST]:
    """The nodes of the function in the order of its source, without those of functions and classes inside it."""
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
        # Names that get values in other ways too: by a loop, by unpacking, by +=.
        self._opaque = stores - Counter(name for name, _ in self._assigned)

    def read(self, value: ast.expr) -> None:
        """Add what one returned expression shows."""
        match value:
            case ast.IfExp(body=body, orelse=orelse):
                self._read_all([body, orelse])
            case ast.BoolOp(values=values):
                self._read_all(values)
            case ast.NamedExpr(value=inner) | ast.Await(value=inner):
                self.read(inner)
            case ast.Name(id=name):
                self._read_name(name)
            case ast.Attribute():
                self._add(self._resolve(value))
            case ast.Call():
                self._read_call(value)
            case _ if not isinstance(value, _NO_AGENT):
                self.found.is_complete = False
            case _:
                pass

    def _read_all(self, values: list[ast.expr]) -> None:
        for value in values:
            self.read(value)

    def _read_name(self, name: str) -> None:
        if name in self._followed:
            return
        self._followed.add(name)
        assigned = [value for target, value in self._assigned if target == name]
        self._read_all(assigned)
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

    def _read_agent_of_result(self, given: list[ast.expr]) -> None:
        before, self.found.is_complete = self.found.is_complete, True
        self._read_all(given)
        self.found.hands_off |= not self.found.is_complete
        self.found.is_complete &= before

    def _add(self, value: Any) -> None:
        if isinstance(value, Result):
            value = value.agent
        if isinstance(value, Agent):
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
    """The names that an assignment gives a whole value, and the value."""
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


# --- annotations ---


def annotated_handoff(function: Any) -> bool | None:
    """What the return annotation says. True: it names an agent or a `Result`; False: it excludes both; None: open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hint that cannot be resolved is reported when the function is offered
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
        return None  # no annotation, or one (a type variable, a NewType) that leaves it open
    if issubclass(kind, Agent | Result):
        return True
    try:
        return None if issubclass(Agent, kind) else False
    except TypeError:  # a protocol without `runtime_checkable`
        return None
