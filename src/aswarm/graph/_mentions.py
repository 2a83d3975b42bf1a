"""The agents that a function could reach by the names in its code, and in the code of what it calls.

That says only what may be: whether one of them is returned is told by nobody but the function itself.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from typing import Any

from aswarm._agent import Agent

from ._subject import MISSING, Subject, contents, has_members, member, subject_of

# A function, a helper that it calls, and a helper of that one.
_DEPTH = 3


def mentioned_agents(subject: Subject) -> list[Agent]:
    """The agents, in the order in which they are met; an agent may come twice."""
    search = _Search()
    search.look(subject, _DEPTH)
    return search.agents


class _Search:
    def __init__(self) -> None:
        self.agents: list[Agent] = []
        self._seen: set[tuple[int, ...]] = set()

    def look(self, subject: Subject, depth: int) -> None:
        """Look at everything that the function names."""
        owner = id(next(iter(subject.bound.values()), None))  # a method of another object may reach other agents
        seen = (id(subject.function), owner)
        if not depth or seen in self._seen:
            return
        self._seen.add(seen)
        for value in _reached(subject):
            for item in contents(value):
                self._take(item, depth)

    def _take(self, item: Any, depth: int) -> None:
        if isinstance(item, Agent):
            self.agents.append(item)
        elif (helper := subject_of(item)) is not None:
            self.look(helper, depth - 1)


def _reached(subject: Subject) -> Iterator[Any]:
    codes = list(_codes(subject.code))
    # In the order of the code, and each once.
    attributes = list(dict.fromkeys(name for code in codes for name in code.co_names))
    names = dict.fromkeys(name for code in codes for name in _variables(code))
    for value in [*subject.bound.values(), *(subject.value(name) for name in names if name not in subject.bound)]:
        yield value
        # `shop.agents`, `self.sales`: the names of attributes stand in the code apart from what they belong to.
        if value is not MISSING and not isinstance(value, Agent) and has_members(value):
            yield from (found for name in attributes if (found := member(value, name)) is not MISSING)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code, and that of functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _variables(code: types.CodeType) -> Iterator[str]:
    """The names of globals, and of variables of the functions around it."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    yield from code.co_freevars
