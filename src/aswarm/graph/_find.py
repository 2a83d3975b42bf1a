"""The search for the certain and the possible handoffs of an agent. It calls no function."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aswarm._values.agent import Agent
from aswarm.extensions import Tool, tools_of

from ._inspection import inspect_function, referenced_agents
from ._returns import ReturnedAgents, annotated_handoff, read_returns


@dataclass(frozen=True, slots=True)
class FoundHandoff:
    """A certain or possible handoff of a function. `target`: None if the agent cannot be found."""

    function: str
    target: Agent | None
    certain: bool


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent with the names of its functions (except certain handoffs), and all its handoffs."""

    agent: Agent
    functions: tuple[str, ...]
    handoffs: tuple[FoundHandoff, ...]


def reachable_views(start: Agent) -> list[AgentView]:
    """Return the views of all agents that can be reached from `start`, with `start` first.

    Raises ConfigurationError for functions that cannot be offered to a model.
    """
    views: list[AgentView] = []
    seen, waiting = {id(start)}, deque([start])
    while waiting:
        agent = waiting.popleft()
        tools = tools_of(agent)
        names = tuple(tools)
        handoffs = [found for name, tool in tools.items() for found in _handoffs(name, tool)]
        certain = {found.function for found in handoffs if found.certain}
        views.append(AgentView(agent, tuple(name for name in names if name not in certain), tuple(handoffs)))
        for found in handoffs:
            if found.target is not None and id(found.target) not in seen:
                seen.add(id(found.target))
                waiting.append(found.target)
    return views


def _handoffs(name: str, tool: Tool[..., Any]) -> Iterator[FoundHandoff]:
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
