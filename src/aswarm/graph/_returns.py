"""What a function can be seen to return, read in its source.

Follows names, attributes, local variables, conditions and `Result(agent=...)`. Whatever else is returned (the result of
another function, an item of a dict) is left open: then `is_complete` is False, and it must be looked for otherwise.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aswarm._agent import Agent, Result

from ._hint import says_handoff
from ._source import FunctionTree, tree_of
from ._subject import MISSING, Computed, Subject, member


@dataclass(slots=True)
class Returns:
    """The `agents` that are seen to be returned.

    `makes_agent`: one is made anew in the call, and so is not there yet. `hands_off`: a `Result` has an `agent`, which
    cannot be seen.
    """

    agents: list[Agent] = field(default_factory=list[Agent])
    makes_agent: bool = False
    hands_off: bool = False
    is_complete: bool = True


def read_returns(subject: Subject) -> Returns:
    """What the source says; with no source at hand, nothing, and that is not complete."""
    tree = tree_of(subject.function)
    if tree is None:
        return Returns(is_complete=False)
    reader = _Reader(subject, tree)
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


class _Reader:
    def __init__(self, subject: Subject, tree: FunctionTree) -> None:
        self.found = Returns()
        self._subject = subject
        self._followed: set[str] = set()
        nodes = list(_own_nodes(tree))
        self._assigned = list(_assignments(nodes))
        stores = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        # Bound in another way too: by a loop, by unpacking, by +=.
        self._opaque = stores - Counter(name for name, _ in self._assigned)

    def read(self, value: ast.expr) -> None:
        """Take in one expression that the function returns."""
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
                self._take(self._resolve(value))
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
        if self._opaque[name] or not assigned or name in self._subject.bound:
            self._take(self._subject.value(name))

    def _read_call(self, call: ast.Call) -> None:
        callee = self._resolve(call.func)
        is_class = isinstance(callee, type)
        if is_class and issubclass(callee, Result):
            self._read_agent_of_result([keyword.value for keyword in call.keywords if keyword.arg == "agent"])
            self.found.is_complete &= all(keyword.arg for keyword in call.keywords)  # no **fields
        elif is_class:
            self.found.makes_agent |= issubclass(callee, Agent)
        else:
            self.found.is_complete &= callee is not MISSING and says_handoff(callee) is False

    def _read_agent_of_result(self, given: list[ast.expr]) -> None:
        before, self.found.is_complete = self.found.is_complete, True
        self._read_all(given)
        self.found.hands_off |= not self.found.is_complete
        self.found.is_complete &= before

    def _take(self, value: Any) -> None:
        if isinstance(value, Result):
            value = value.agent
        if isinstance(value, Agent):
            self.found.agents.append(value)
        elif value is MISSING or isinstance(value, Computed):
            self.found.is_complete = False

    def _resolve(self, value: ast.expr) -> Any:
        match value:
            case ast.Name(id=name):
                return self._subject.value(name)
            case ast.Attribute(value=inner, attr=attr):
                holder = self._resolve(inner)
                return MISSING if holder is MISSING else member(holder, attr)
            case _:
                return MISSING


# What is never an agent, whatever is in it.
_NO_AGENT = (
    ast.Constant, ast.JoinedStr, ast.Dict, ast.List, ast.Tuple, ast.Set, ast.Compare, ast.BinOp, ast.UnaryOp,
    ast.DictComp, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.Lambda,
)  # fmt: skip


def _assignments(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """The names that are given a value as a whole, and the value."""
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
