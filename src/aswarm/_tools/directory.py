"""Agents by name. A stored run contains only names of agents, so a later run must find the agents.

A later run finds the agents that the caller lists, the agents in their `functions`, and the agents that are values of these
functions: globals of the module, variables of a closure, defaults, and attributes of the object of a method, each also one level
inside a list or a dict. So a function that returns a global agent needs no declaration. The search calls no function, runs no
property, and reads no source. A client cannot start a found agent: it only takes over a run, or continues.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple, cast

from aswarm._values.agent import Agent, is_agent
from aswarm._values.errors import CallerMistake, ConfigurationError

from .hints import closure_of
from .tool import Tool

_MOST = 1000  # items of a list or a dict that are searched
_SHOWN = 3  # places in an error text


def listed_by_name(agents: object) -> dict[str, Agent]:
    """Return the agents of an argument `agents=` by name. Raises ConfigurationError if two agents have the same name."""
    if is_agent(agents) or not isinstance(agents, Iterable):
        raise ConfigurationError(f"agents must be a list of Agents, not {type(agents).__name__}")
    named: dict[str, Agent] = {}
    for agent in cast("Iterable[object]", agents):
        if not is_agent(agent):
            raise ConfigurationError(f"agents must be a list of Agents; one item is {type(agent).__name__}")
        if named.setdefault(agent.name, agent) is not agent:
            raise ConfigurationError(
                f"agents has two agents named {agent.name!r}; an agent is found by its name, so give each agent its own name"
            )
    return named


class AgentDirectory:
    """Agents of a run by name: the listed agents, then the agents in their functions, then the agents in values of functions.

    If a name has two agents of the same kind, `find` returns neither of them. The first item of `agents` is the start agent.
    Raises ConfigurationError like `listed_by_name`.
    """

    def __init__(self, agents: Iterable[Agent]) -> None:
        self.listed: dict[str, Agent] = listed_by_name(agents)
        self._found: dict[str, list[_Found]] = {}

    @property
    def start(self) -> Agent:
        """The first of the listed agents."""
        return next(iter(self.listed.values()))

    @property
    def known(self) -> dict[str, Agent]:
        """All agents that `find` can return, by name. The listed agents are first."""
        unambiguous = {name: entries[0].agent for name, entries in self._search().items() if len(entries) == 1}
        return {**self.listed, **unambiguous, **self.listed}

    @property
    def in_functions(self) -> list[Agent]:
        """The listed agents, and the agents that they can reach through agents in `functions`."""
        return [entry.agent for entry in _in_functions(self.listed.values())]

    @property
    def reached(self) -> list[Agent]:
        """All agents that a search for a name looks through. The listed agents are first."""
        return [entry.agent for entry in _reached(self.listed.values())]

    def find(self, name: str) -> Agent | None:
        """Return the agent with this name. None if there is no such agent, or more than one."""
        if name in self.listed:
            return self.listed[name]
        if name not in self._found:
            self._search()
        matches = self._found.get(name, [])
        return matches[0].agent if len(matches) == 1 else None

    def get(self, name: str, what: str) -> Agent:
        """Return the agent with this name. Raises ConfigurationError if there is no such agent, or more than one.

        `what`: the start of the error text, such as "the journal has a handoff to the agent".
        """
        agent = self.find(name)
        if agent is None:
            raise ConfigurationError(self._advice(name, what))
        return agent

    def find_or_name(self, name: str, what: str) -> Agent:
        """Return the agent with this name, or a placeholder. A run with the placeholder raises ConfigurationError."""
        return self.find(name) or Agent(name=name, instructions=functools.partial(self._refuse, name, what))

    def _refuse(self, name: str, what: str) -> str:
        raise ConfigurationError(self._advice(name, what))

    def has(self, agent: Agent) -> bool:
        """Return whether a later run would find this agent object by its name."""
        if agent.name in self.listed:
            return self.listed[agent.name] is agent
        if self.find(agent.name) is not agent:
            self._search()  # the agents may have changed since the last search
        return self.find(agent.name) is agent

    def check(self, agent: Agent, what: str) -> None:
        """Raise CallerMistake if a later run could not find this agent. `what`: as for `get`."""
        if not self.has(agent):
            raise CallerMistake(self._advice(agent.name, what))

    def _advice(self, name: str, what: str) -> str:
        matches, start = self._found.get(name, []), self.start.name
        if name in self.listed:
            why = "another agent of this name is listed. Give each agent its own name"
        elif matches:
            places = ", ".join(match.place for match in matches[:_SHOWN]) + (", ..." if len(matches) > _SHOWN else "")
            others = "more than one agent" if len(matches) > 1 else "another agent"
            variables = [
                match.place.rpartition(".")[2] for match in matches if match.place.replace(".", "_").isidentifier()
            ]
            why = (
                f"{others} of this name can be found from {start!r} ({places}). Give each agent its own name, or list the right "
                f"one: agents=[{variables[0] if variables else '...'}]"
            )
        else:
            why = (
                f"no agent of this name can be found from {start!r}. List the agent: agents=[...]. Or put it where it can be "
                "found: in the `functions` of an agent, or in a variable of a function there, such as a global of its module"
            )
        return f"{what} {name!r}. An agent is recorded by its name, and {why}"

    def _search(self) -> dict[str, list[_Found]]:
        self._found = _by_name(_reached(self.listed.values()))
        return self._found


# --- the search -------------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """An agent and the place where the search found it. `is_declared`: whether it was found in `functions` alone."""

    agent: Agent
    place: str
    is_declared: bool


def _by_name(entries: Iterable[_Found]) -> dict[str, list[_Found]]:
    """Return the found agents by name. An agent in `functions` comes before the agents in values, which may not be in use."""
    named: dict[str, list[_Found]] = {}
    for entry in entries:
        named.setdefault(entry.agent.name, []).append(entry)
    return {name: [entry for entry in same if entry.is_declared] or same for name, same in named.items()}


def _in_functions(start: Iterable[Agent]) -> list[_Found]:
    entries = {id(agent): _Found(agent, "agents", is_declared=True) for agent in start}
    waiting = deque(entries.values())
    while waiting:
        owner = waiting.popleft().agent
        for function in _functions_of(owner):
            if _is_agent(function) and id(function) not in entries:
                entries[id(function)] = entry = _Found(function, f"functions of {owner.name!r}", is_declared=True)
                waiting.append(entry)
    return [*entries.values()]


def _reached(start: Iterable[Agent]) -> list[_Found]:
    entries = {id(entry.agent): entry for entry in _in_functions(start)}
    waiting, visited = deque(entries.values()), set[int]()

    def add(agent: Any, place: str) -> None:
        if id(agent) not in entries:
            entries[id(agent)] = entry = _Found(agent, place, is_declared=False)
            waiting.append(entry)

    while waiting:
        owner = waiting.popleft().agent
        for function in _functions_of(owner):
            if _is_agent(function):
                add(function, f"functions of {owner.name!r}")
                continue
            for place, value in _values_of(function, visited):
                for item in _with_items(value):
                    if _is_agent(item):
                        add(item, place)
    return [*entries.values()]


def _functions_of(agent: Agent) -> Iterator[Any]:
    """Yield the functions of an agent, and the functions of its code tools; an agent for each handoff."""
    waiting = deque[Any](agent.functions)
    while waiting:
        function = waiting.popleft()
        if isinstance(function, Tool):
            tool = cast("Tool[..., Any]", function)
            waiting.extend(tool._inside)
            yield tool.function() if tool.is_handoff else tool
        else:
            yield function


def _is_agent(value: object) -> bool:
    # Not `isinstance`, because it reads `__class__`, which is a property of proxies: it would run code of the user.
    return Agent in type(value).__mro__


# Methods of the built-in types, because an overriding method of a subclass would run code of the user.
_ITEMS: tuple[tuple[type, Callable[[Any], Iterable[Any]]], ...] = (
    (dict, dict[Any, Any].values),
    (list, list[Any].__iter__),
    (tuple, tuple[Any, ...].__iter__),
)


def _with_items(value: Any) -> list[Any]:
    for kind, read in _ITEMS:
        if kind in type(value).__mro__:
            return list(islice(read(value), _MOST))
    return [value]


# --- the values of a function -----------------------------------------------------------------------------------------


def _values_of(function: Any, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function has at hand, with their places. It may be in partials, tools, methods and decorators.

    `visited`: the ids of the callables and globals that were read, because the functions of a module share its globals.
    """
    if id(function) in visited:
        return
    visited.add(id(function))
    match function:
        case Tool():
            yield from _values_of(cast("Any", function).function, visited)
        case functools.partial():
            partial: Any = cast("Any", function)
            values: list[Any] = [*partial.args, *partial.keywords.values()]
            yield from (("an argument of a partial", value) for value in values)
            yield from _values_of(partial.func, visited)
        case types.MethodType():
            yield from _attributes(function.__self__)
            yield from _values_of(function.__func__, visited)
        case types.FunctionType():
            yield from _values_at_hand(cast("Any", function), visited)
        case type():
            pass
        case _:
            yield from _attributes(function)
            if (wrapped := _own_attributes(function).get("__wrapped__")) is not None:  # as of `functools.cache`
                yield from _values_of(wrapped, visited)
            call = inspect.getattr_static(cast("Any", type(function)), "__call__", None)
            if isinstance(call, types.FunctionType):
                yield from _values_of(call, visited)


def _values_at_hand(function: Any, visited: set[int]) -> Iterator[tuple[str, Any]]:
    name = function.__qualname__
    yield from ((f"{variable} in {name}", value) for variable, value in closure_of(function).items())
    defaults: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield from ((f"a default of {name}", value) for value in defaults)
    if (wrapped := function.__dict__.get("__wrapped__")) is not None:
        yield from _values_of(wrapped, visited)
    variables = function.__globals__
    if id(variables) not in visited:
        visited.add(id(variables))
        module = variables.get("__name__", "")
        yield from ((f"{module}.{variable}", value) for variable, value in list(variables.items()))


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, and of its classes, without running a property, a descriptor or `__getattr__`."""
    is_class = type in type(holder).__mro__
    kind: type[Any] = holder if is_class else cast("Any", type(holder))
    if _is_agent(holder):
        yield f"an object of {kind.__qualname__}", holder
    for name, value in list(_own_attributes(holder).items()):
        yield f"{kind.__qualname__}.{name}", value
    for base in kind.__mro__:
        for name, value in list(vars(base).items()):
            if type(value) is types.MemberDescriptorType and not is_class:  # a slot
                with suppress(AttributeError):
                    yield f"{kind.__qualname__}.{name}", value.__get__(holder)
            else:
                yield f"{kind.__qualname__}.{name}", value


def _own_attributes(holder: object) -> dict[str, Any]:
    try:
        attributes: Any = object.__getattribute__(holder, "__dict__")
    except AttributeError:  # an object with slots
        return {}
    return cast("dict[str, Any]", attributes) if type(attributes) is dict else {}
