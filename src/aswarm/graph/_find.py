"""Who can hand off to whom, found without calling anyone's functions. Decides what is certain, and what only may be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aswarm._agent import Agent
from aswarm._tools.toolbox import distinct, tools_of

from ._hint import says_handoff
from ._mentions import mentioned_agents
from ._returns import Returns, read_returns
from ._subject import subject_of


@dataclass(frozen=True, slots=True)
class Found:
    """A function of an agent hands off to `target`, certainly or perhaps; None for an agent that cannot be found."""

    function: str
    target: Agent | None
    certain: bool


@dataclass(frozen=True, slots=True)
class Offer:
    """What an agent offers to the model: the names of its functions in order, and the handoffs behind them."""

    functions: tuple[str, ...]
    found: tuple[Found, ...]


def offer_of(agent: Agent) -> Offer:
    """Look at the functions of an agent. Raises ConfigurationError for functions that cannot be offered."""
    names = tuple(tools_of(agent))
    functions = zip(names, distinct(agent.functions), strict=True)
    return Offer(names, tuple(found for name, function in functions for found in _handoffs(name, function)))


def _handoffs(name: str, function: Any) -> Iterator[Found]:
    if isinstance(function, Agent):
        yield Found(name, function, certain=True)
        return
    subject = subject_of(function)
    seen = Returns(is_complete=False) if subject is None else read_returns(subject)
    yield from (Found(name, agent, certain=True) for agent in _each_once(seen.agents))
    says = None if seen.is_complete else says_handoff(function)
    maybe = mentioned_agents(subject) if subject and not seen.is_complete and says is not False else []
    others = [agent for agent in _each_once(maybe) if all(agent is not known for known in seen.agents)]
    yield from (Found(name, agent, certain=False) for agent in others)
    if seen.makes_agent or ((says or seen.hands_off) and not seen.agents and not others):
        yield Found(name, None, certain=False)


def _each_once(agents: list[Agent]) -> list[Agent]:
    return list({id(agent): agent for agent in agents}.values())
