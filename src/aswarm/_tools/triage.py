"""`create_triage_agent`: an agent that hands over to others, which may hand back to it.

The function only fills `functions` once; the agents are plain agents and may be changed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aswarm._values.agent import Agent, Instructions
from aswarm._values.errors import ConfigurationError

from .hints import name_of
from .toolbox import distinct, tools_of


def create_triage_agent(
    name: str,
    instructions: Instructions,
    agents: Iterable[Agent],
    add_backlinks: bool = False,
    *,
    model: str | None = None,
    tool_choice: str | dict[str, Any] | None = None,
    parallel_tool_calls: bool = True,
    model_settings: dict[str, Any] | None = None,
) -> Agent:
    """Return an agent whose functions are handoffs to `agents`.

    A handoff is the agent itself in `functions`, as `transfer_to_<name>` for the model. An agent listed twice counts once.
    Changing the list `agents` later has no effect; to add a target, append it to the `functions` of the result.

    A backlink comes last, and replaces a handoff to an agent of the same name: if a notebook calls this function again with the
    same agents, each agent has one handoff back, to the newest triage agent. So do not make a triage agent for each request
    over agents that requests share: make all of these agents for each request, or none of them. With backlinks, each agent gets
    a new list as `agent.functions`; the old list does not change. Appending to `agent.functions` later keeps the backlink;
    assigning a list without the triage agent removes it.

    Args:
        name: The name of the triage agent.
        instructions: The instructions of the triage agent.
        agents: The targets of its handoffs.
        add_backlinks: Whether each of `agents` gets a handoff back.
        model: The model of the triage agent; None for the default model.
        tool_choice: As in `Agent`.
        parallel_tool_calls: As in `Agent`.
        model_settings: As in `Agent`.

    Raises:
        ConfigurationError: If an item of `agents` is no Agent, or a handoff has the name of another function of its agent. In
            this case, nothing is changed.
    """
    listed = list(agents)
    for agent in listed:
        if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
            raise ConfigurationError(f"create_triage_agent takes a list of agents, and {agent!r} is not an Agent")
    own_model: dict[str, Any] = {} if model is None else {"model": model}
    triage = Agent(
        name=name,
        instructions=instructions,
        functions=list(distinct(listed)),
        tool_choice=tool_choice,
        parallel_tool_calls=parallel_tool_calls,
        model_settings=model_settings or {},
        **own_model,
    )
    tools_of(triage)
    if add_backlinks:
        linked = [(agent, _with_backlink(agent, triage)) for agent in listed]
        for agent, functions in linked:
            agent.functions = functions
    return triage


def _with_backlink(agent: Agent, triage: Agent) -> list[Any]:
    """Return the new functions of the agent, checked. The agent does not change."""
    functions = [each for each in agent.functions if not (isinstance(each, Agent) and each.name == triage.name)]
    # Only names are compared: building schemas here could fail, because a hint may name a class defined further down.
    names = {name_of(each) for each in functions if not isinstance(each, Agent)}
    handoffs = [*(each for each in functions if isinstance(each, Agent)), triage]
    for name in names.intersection(tools_of(agent.model_copy(update={"functions": handoffs}))):
        raise ConfigurationError(
            f"agent {agent.name!r} already has a function named {name!r}; remove it, or call without add_backlinks"
        )
    return [*functions, triage]
