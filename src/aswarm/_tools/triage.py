"""`create_triage_agent`: one agent that hands over to others, and, where wanted, is handed back to.

It decides who may hand over to whom when it is called, and nothing afterwards: agents stay plain, and may be changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aswarm._agent import Agent, Instructions
from aswarm._errors import ConfigurationError

from .hints import name_of
from .toolbox import tools_of


def create_triage_agent(
    name: str, instructions: Instructions, agents: Iterable[Agent], add_backlinks: bool = False
) -> Agent:
    """An agent whose functions are handoffs to `agents`; with `add_backlinks`, each of them gets a handoff back to it.

    A handoff is the agent itself in `functions`, which the model sees as `transfer_to_<name>`. An agent listed twice
    counts once. A backlink comes last, and takes the place of a handoff to an agent of the same name: calling this
    again with the same agents, as a notebook does, leaves each with one way back, to the newest triage agent. So do not
    make a triage agent for each request over agents that requests share; make all of them, or none.

    What is changed is `agent.functions`, which becomes a new list: a list that you hold stays as it is. Appending to
    `agent.functions` later keeps the backlink; assigning a list without the triage agent removes it. What you later do
    to the list `agents` has no effect; to hand over to one more agent, append it to the `functions` of the result.

    Raises ConfigurationError, and has then changed nothing, for what is no Agent, and where a handoff would have the
    name of another function of its agent.
    """
    listed = [_checked(agent) for agent in agents]
    triage = Agent(name=name, instructions=instructions, functions=_once(listed))
    tools_of(triage)
    if add_backlinks:
        linked = [(agent, _with_backlink(agent, triage)) for agent in listed]
        for agent, functions in linked:
            agent.functions = functions
    return triage


def _checked(agent: Agent) -> Agent:
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - what a caller may pass
        raise ConfigurationError(f"create_triage_agent hands over to agents, and {agent!r} is none")
    return agent


def _once(agents: list[Agent]) -> list[Agent]:
    return list({id(agent): agent for agent in agents}.values())


def _with_backlink(agent: Agent, triage: Agent) -> list[Any]:
    """The functions that the agent is to have, checked without changing the agent."""
    functions = [each for each in agent.functions if not (isinstance(each, Agent) and each.name == triage.name)]
    # By name only: a schema is built once, and the hints of a function may name what its module defines further down.
    names = {name_of(each) for each in functions if not isinstance(each, Agent)}
    handoffs = [*filter(_is_agent, functions), triage]
    for name in names.intersection(tools_of(agent.model_copy(update={"functions": handoffs}))):
        raise ConfigurationError(
            f"agent {agent.name!r} has a function named {name!r} already; leave it out, or do without the backlink"
        )
    return [*functions, triage]


def _is_agent(function: object) -> bool:
    return isinstance(function, Agent)
