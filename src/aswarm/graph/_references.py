"""The agents that a function refers to by the names in its code, and in the code of the functions that it calls.

These handoffs are only possible: the code does not show which of the agents is returned.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

from aswarm._agent import Agent

from ._inspection import MISSING, InspectedFunction, contents, has_members, inspect_function, member

# A function, a helper that it calls, and a helper of that one.
_DEPTH = 3


def referenced_agents(function: InspectedFunction) -> list[Agent]:
    """The agents, in the order in which they are met; an agent may come twice."""
    search = _Search()
    search.follow(function, _DEPTH)
    return search.agents


class _Search:
    def __init__(self) -> None:
        self.agents: list[Agent] = []
        self._followed: set[tuple[int, ...]] = set()

    def follow(self, inspected: InspectedFunction, depth: int) -> None:
        """Collect the agents that the function refers to, also through its helpers."""
        owner = id(next(iter(inspected.bound.values()), None))  # a method of another object may reach other agents
        key = (id(inspected.function), owner)
        if not depth or key in self._followed:
            return
        self._followed.add(key)
        for value in _referenced(inspected):
            for item in contents(value):
                self._collect(item, depth)

    def _collect(self, item: Any, depth: int) -> None:
        if isinstance(item, Agent):
            self.agents.append(item)
        elif (helper := inspect_function(item)) is not None:
            self.follow(helper, depth - 1)


def _referenced(inspected: InspectedFunction) -> Iterator[Any]:
    codes = list(_codes(inspected.code))
    # In the order of the code, and each once.
    attributes = list(dict.fromkeys(name for code in codes for name in code.co_names))
    names = dict.fromkeys(name for code in codes for name in _variables(code))
    bound = inspected.bound
    for value in [*bound.values(), *(inspected.value(name) for name in names if name not in bound)]:
        yield value
        # `shop.agents`, `self.sales`: bytecode does not say which object an attribute's name belongs to.
        if value is not MISSING and not isinstance(value, Agent) and has_members(value):
            yield from (found for name in attributes if (found := member(value, name)) is not MISSING)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _variables(code: types.CodeType) -> Iterator[str]:
    """The names of globals, and of variables of the enclosing functions."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    yield from code.co_freevars
