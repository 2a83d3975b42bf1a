"""Which agents a conversation may come to, by name, as far as can be seen without calling anything."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from aswarm._agent import Agent
from aswarm._tools import Tool


def agents_from(agent: Agent) -> dict[str, Agent]:
    """The agent and those it may hand off to, and so on, by name; of two with one name the nearer one.

    Found are agents among the functions, and those that a function mentions: globals and variables around it.
    """
    found: dict[str, Agent] = {}
    waiting = [agent]
    while waiting:
        nearest = waiting.pop(0)
        if nearest.name not in found:
            found[nearest.name] = nearest
            waiting += [target for function in nearest.functions for target in _mentioned(function)]
    return found


def _mentioned(function: Any) -> Iterator[Agent]:
    if isinstance(function, Agent):
        yield function
        return
    plain = _plain(function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return
    values = [plain.__globals__.get(name) for name in code.co_names]
    for cell in plain.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # the variable has no value yet
            continue
    yield from (value for value in values if isinstance(value, Agent))


def _plain(function: Any) -> Any:
    while isinstance(function, functools.partial | Tool):
        function = function.func if isinstance(function, functools.partial) else function.function
    return getattr(function, "__func__", function)
