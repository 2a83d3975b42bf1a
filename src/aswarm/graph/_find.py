"""Finds the handoffs of one agent without calling a function. Decides which are certain and which are only possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aswarm._agent import Agent
from aswarm._tools.hints import name_of
from aswarm._tools.toolbox import distinct, tools_of

from ._inspection import InspectedFunction, inspect_function
from ._references import referenced_agents
from ._returns import ReturnedAgents, annotated_handoff, read_returns


@dataclass(frozen=True, slots=True)
class FoundHandoff:
    """A function hands off to `target`, certainly or perhaps; `target` is None for an agent that cannot be found."""

    function: str
    target: Agent | None
    certain: bool


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as the model is offered it: the names of its functions in order, and the handoffs behind them."""

    agent: Agent
    functions: tuple[str, ...]
    handoffs: tuple[FoundHandoff, ...]

    @property
    def plain_functions(self) -> tuple[str, ...]:
        """The functions that may or may not hand off."""
        certain = {found.function for found in self.handoffs if found.certain}
        return tuple(name for name in self.functions if name not in certain)


def view_of(agent: Agent) -> AgentView:
    """Inspect the functions of an agent. Raises ConfigurationError for functions that cannot be offered."""
    return _view(agent, tuple(tools_of(agent)))


def reachable_views(start: Agent, view: Callable[[Agent], AgentView] = view_of) -> list[AgentView]:
    """The views of all agents that can be reached from `start`, itself first."""
    views: list[AgentView] = []
    known, waiting = {id(start)}, deque([start])
    while waiting:
        views.append(view(waiting.popleft()))
        for found in views[-1].handoffs:
            if found.target is not None and id(found.target) not in known:
                known.add(id(found.target))
                waiting.append(found.target)
    return views


def reachable_agents(start: Agent) -> list[Agent]:
    """The agents that can be reached from `start`, itself first.

    Functions are not checked: their schemas would take most of the time, and a journal searches on the event loop.
    """
    return [view.agent for view in reachable_views(start, _unchecked_view)]


def _unchecked_view(agent: Agent) -> AgentView:
    return _view(agent, tuple(map(name_of, distinct(agent.functions))))


def _view(agent: Agent, names: tuple[str, ...]) -> AgentView:
    functions = zip(names, distinct(agent.functions), strict=True)
    return AgentView(agent, names, tuple(found for name, function in functions for found in _handoffs(name, function)))


def _handoffs(name: str, function: Any) -> Iterator[FoundHandoff]:
    if isinstance(function, Agent):
        yield FoundHandoff(name, function, certain=True)
        return
    inspected = inspect_function(function)
    returned = ReturnedAgents(is_complete=False) if inspected is None else read_returns(inspected)
    yield from (FoundHandoff(name, agent, certain=True) for agent in _each_once(returned.agents))
    annotated = None if returned.is_complete else annotated_handoff(function)
    is_open = not returned.is_complete and annotated is not False
    possible = _possible(inspected, returned.agents) if inspected and is_open else []
    yield from (FoundHandoff(name, agent, certain=False) for agent in possible)
    if returned.makes_agent or ((annotated or returned.hands_off) and not returned.agents and not possible):
        yield FoundHandoff(name, None, certain=False)


def _possible(inspected: InspectedFunction, certain: list[Agent]) -> list[Agent]:
    agents = _each_once(referenced_agents(inspected))
    return [agent for agent in agents if all(agent is not known for known in certain)]


def _each_once(agents: list[Agent]) -> list[Agent]:
    return list({id(agent): agent for agent in agents}.values())
