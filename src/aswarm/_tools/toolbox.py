"""The tools of an agent by name: its functions, and a ready handoff for each agent among them.

Decides the names of handoffs, and which of the listed functions are the same. Never calls a function.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Any, cast

from aswarm._agent import TOOLBOX_SLOT, Agent, handoff_name, slug
from aswarm._errors import ConfigurationError

from .schema import FunctionSchema, schema_of
from .tool import Tool, as_tool


def _handoff(agent: Agent, number: int) -> Tool[[], Agent]:
    def transfer() -> Agent:
        return agent

    made = Tool(transfer, concurrent=True, thread=False)
    made.__dict__.update(schema=_handoff_schema(agent.name, number), is_handoff=True)
    return made


@functools.lru_cache(maxsize=1024)
def _handoff_schema(agent_name: str, number: int) -> FunctionSchema:
    def transfer() -> Agent: ...  # type: ignore[empty-body]  # only its signature is read

    transfer.__doc__ = f"Hand the conversation over to {agent_name}."
    return schema_of(transfer, name=handoff_name(agent_name, number))


class Toolbox:
    """The tools of an agent by name. Valid until the agent's list of functions changes."""

    __slots__ = ("_functions", "_names", "tools")

    def __init__(self, agent: Agent) -> None:
        # The list is copied once, because another thread may add to it meanwhile.
        self._functions = functions = list(agent.functions)
        self._names = _handoff_names(functions)
        self.tools = tools_of(agent, functions)

    def fits(self, agent: Agent) -> bool:
        """Whether the agent still lists the same functions."""
        functions = self._functions
        return len(functions) == len(agent.functions) and all(map(operator.is_, functions, agent.functions))

    def is_current(self, agent: Agent) -> bool:
        """Whether a new toolbox of the agent would have the same tools; an agent may also be renamed."""
        return self.fits(agent) and self._names == _handoff_names(agent.functions)


def toolbox(agent: Agent) -> Toolbox:
    """The toolbox of an agent, made again only after a change. Raises ConfigurationError as `tools_of` does."""
    known = getattr(agent, TOOLBOX_SLOT, None)
    if not (isinstance(known, Toolbox) and known.is_current(agent)):
        known = Toolbox(agent)
        object.__setattr__(agent, TOOLBOX_SLOT, known)
    return known


def _handoff_names(functions: Iterable[Any]) -> list[str]:
    return [function.name for function in functions if isinstance(function, Agent)]


def tools_of(agent: Agent, functions: Iterable[Any] | None = None) -> dict[str, Tool[..., Any]]:
    """The tools of an agent by name, in the order in which they are listed.

    A function listed twice counts once. Another agent is a handoff named `transfer_to_<name>`: in lower case, each run
    of characters that the API refuses as one `_`, at most 64 characters, a number where no character is left. Raises
    ConfigurationError if two different functions have the same name.
    """
    tools: dict[str, Tool[..., Any]] = {}
    for made in _distinct_tools(agent.functions if functions is None else functions):
        name = made.schema.name
        if name in tools:
            raise _clash(agent, name, tools[name], made)
        tools[name] = made
    return tools


def _clash(agent: Agent, name: str, *tools: Tool[..., Any]) -> ConfigurationError:
    origins = " and ".join(tool.origin or "this program" for tool in tools)
    of_others = f", of {origins}" if any(tool.origin for tool in tools) else ""
    prefix = ", or MCPServer(..., prefix=...)" if of_others else ""
    return ConfigurationError(
        f"agent {agent.name!r} has two different functions named {name!r}{of_others}; rename one, or use @tool(name=...) or "
        f"agent_tool(..., name=...){prefix}"
    )


def _distinct_tools(functions: Iterable[Any]) -> Iterator[Tool[..., Any]]:
    offered = list(distinct(functions))
    taken = {slug(function.name) for function in offered if isinstance(function, Agent)}
    free = (number for number in itertools.count(1) if str(number) not in taken)
    for function in offered:
        if isinstance(function, Agent):
            yield _handoff(function, 0 if slug(function.name) else next(free))
        else:
            yield as_tool(function)


def distinct(functions: Iterable[Any]) -> Iterator[Any]:
    """The functions in the order in which they are listed; a function that is listed twice comes once."""
    seen: set[object] = set()
    for function in functions:
        identity = _identity(function)
        if identity not in seen:
            seen.add(identity)
            yield function


def _identity(function: Any) -> object:
    if isinstance(function, Tool):  # a tool in a class is a new object on each look-up on an instance
        made = cast("Tool[..., Any]", function)
        options = (id(getattr(made, field.name)) for field in dataclasses.fields(made) if field.name != "function")
        return (_identity(made.function), *options)
    # So is a bound method, but bound methods are equal if function and instance are the same.
    return function if inspect.ismethod(function) else id(function)
