"""The tools of an agent by name: its functions, and a handoff for each agent in the list of functions.

The module gives names to handoffs, and removes duplicates. It never calls a function.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Any, cast

from aswarm._values.agent import TOOLBOX_SLOT, Agent, handoff_name, is_agent, slug
from aswarm._values.errors import ConfigurationError
from aswarm._values.found_tools import CALL_TOOL

from .filled import Filled
from .hints import warn_of
from .schema import FunctionSchema, schema_of
from .tool import Tool, as_tool
from .tool_search import ToolSearch

_DEFER = operator.attrgetter("defer")


def _handoff(agent: Agent, number: int) -> Tool[[], Agent]:
    def transfer() -> Agent:
        return agent

    handoff = Tool(transfer, concurrent=True, thread=False)
    handoff.__dict__.update(_schema=_handoff_schema(agent.name, number), is_handoff=True)
    return handoff


@functools.lru_cache(maxsize=1024)
def _handoff_schema(agent_name: str, number: int) -> FunctionSchema:
    def transfer() -> Agent: ...  # type: ignore[empty-body]  # never called: only the signature is needed

    transfer.__doc__ = f"Hand the conversation over to {agent_name}."
    return schema_of(transfer, name=handoff_name(agent_name, number))


class Toolbox:
    """The tools of an agent by name. They are valid until the agent's list of functions changes.

    `needs`: pairs (name for error texts, parameters for typed context variables and resources). `search`: the search for deferred
    tools; None without such tools.
    """

    __slots__ = ("_functions", "_names", "needs", "search", "tools")

    def __init__(self, agent: Agent) -> None:
        # Copy the list first, because another thread may change it meanwhile.
        self._functions = functions = list(agent.functions)
        self._names = _handoff_names(functions)
        self.tools = _tools_by_name(agent, functions)
        self.needs = tuple(_needs_of(self.tools.values()))
        self.search: ToolSearch | None = None
        if any(map(_DEFER, self.tools.values())):
            self.search = ToolSearch(self.tools)
            self.tools = self.search.added_to(self.tools)

    def fits(self, agent: Agent) -> bool:
        functions = self._functions
        return len(functions) == len(agent.functions) and all(map(operator.is_, functions, agent.functions))

    def is_current(self, agent: Agent) -> bool:
        """Return whether a new toolbox would have the same tools. They also differ if the target of a handoff was renamed."""
        return self.fits(agent) and self._names == _handoff_names(agent.functions)


def _needs_of(tools: Iterable[Tool[..., Any]]) -> Iterator[tuple[str, Filled]]:
    for tool in tools:
        name = tool._schema.name
        for place, filled in ((name, tool._schema.filled), (f"approve of {name}", tool._filled_by_approve)):
            if filled is not None and filled.is_typed:
                yield place, filled
        for place, filled in _needs_of(tool._inside):
            yield f"{place} in {name}", filled


def toolbox(agent: Agent) -> Toolbox:
    """Return the toolbox of an agent, cached until a change. Raises ConfigurationError like `tools_of`."""
    cached = getattr(agent, TOOLBOX_SLOT, None)
    if not (isinstance(cached, Toolbox) and cached.is_current(agent)):
        cached = Toolbox(agent)
        object.__setattr__(agent, TOOLBOX_SLOT, cached)
    return cached


def _handoff_names(functions: Iterable[Any]) -> list[str]:
    return [function.name for function in functions if isinstance(function, Agent)]


def tools_of(agent: Agent) -> dict[str, Tool[..., Any]]:
    """Return the tools of an agent by name, in the order of the list.

    A function that is listed twice counts once. An agent becomes a handoff, named `transfer_to_<name>` with the agent's name in
    lower case. `_` replaces each sequence of characters that the API rejects; if no other character remains, the name is a
    number. A name has at most 64 characters. Raises ConfigurationError if two different functions have the same name.
    """
    return _tools_by_name(agent, agent.functions)


def offered_tools(agent: Agent) -> dict[str, Tool[..., Any]]:
    """Return the tools that each request of the agent has, by name: without deferred tools, and with the functions that find them.

    Raises ConfigurationError like `tools_of`.
    """
    return {name: tool for name, tool in toolbox(agent).tools.items() if not tool.defer}


def _tools_by_name(agent: Agent, functions: Iterable[Any]) -> dict[str, Tool[..., Any]]:
    tools: dict[str, Tool[..., Any]] = {}
    for tool in _distinct_tools(functions):
        name = tool._schema.name
        if name in tools:
            raise clash(agent, name, tools[name], tool)
        tools[name] = tool
    if CALL_TOOL in tools:
        prefix = ", or use MCPServer(..., prefix=...)" if tools[CALL_TOOL]._origin else ""
        raise ConfigurationError(
            f"agent {agent.name!r} has a function named {CALL_TOOL!r}, which is reserved for deferred tools; rename it{prefix}"
        )
    return tools


def clash(agent: Agent, name: str, *tools: Tool[..., Any]) -> ConfigurationError:
    """Return the error for two different functions with the same name."""
    origins = " and ".join(tool._origin or "this program" for tool in tools)
    of_others = f", of {origins}" if any(tool._origin for tool in tools) else ""
    prefix = ", or MCPServer(..., prefix=...)" if of_others else ""
    return ConfigurationError(
        f"agent {agent.name!r} has two different functions named {name!r}{of_others}; rename one, or use @tool(name=...) or "
        f"agent_tool(..., name=...){prefix}"
    )


def _distinct_tools(functions: Iterable[Any]) -> Iterator[Tool[..., Any]]:
    offered = list(distinct(functions))
    slugs = {slug(function.name) for function in offered if isinstance(function, Agent)}
    free = (number for number in itertools.count(1) if str(number) not in slugs)
    for function in offered:
        if is_agent(function):
            yield _handoff(function, 0 if slug(function.name) else next(free))
            continue
        tool = as_tool(function)
        if (fault := tool._schema.fault) and tool is function:
            raise ConfigurationError(fault)
        if fault:
            warn_of(tool.function, fault)
        yield tool


def distinct(functions: Iterable[Any]) -> Iterator[Any]:
    """Yield the functions in the order of the list. Yield a function that is listed twice only once."""
    visited: set[object] = set()
    for function in functions:
        identity = _identity(function)
        if identity not in visited:
            visited.add(identity)
            yield function


def _identity(function: Any) -> object:
    if isinstance(function, Tool):  # a tool in a class body: each access through an instance creates a new object
        tool = cast("Tool[..., Any]", function)
        options = (id(getattr(tool, field.name)) for field in dataclasses.fields(tool) if field.name != "function")
        return (_identity(tool.function), *options)
    # Each access to a bound method also creates a new object. But two bound methods of one function and instance are equal.
    return function if inspect.ismethod(function) else id(function)
