"""`create_triage_agent`: creates an agent that hands off to other agents, and optionally the handoffs back.

The function only fills `functions`, once. The agents are plain agents, and may be changed afterwards. An example of Swarm imports it
from here; new code imports it from `aswarm`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._tools.hints import name_of
from ._tools.toolbox import distinct, tools_of
from ._values.agent import Agent, Instructions, is_agent
from ._values.errors import ConfigurationError

__all__ = ["create_triage_agent"]


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

    A handoff is the agent itself in `functions`; the model sees it as `transfer_to_<name>`. An agent that is listed twice
    counts once. A later change of the list `agents` has no effect. To add a target, append it to the `functions` of the result.

    With `add_backlinks`, each agent gets a handoff back to the triage agent, the backlink. It is the last item in a new list
    `agent.functions`; the old list does not change. If you append to `agent.functions` later, the backlink stays. If you assign
    another list, the backlink is lost.

    A backlink replaces an earlier handoff to an agent of the same name. So if a notebook calls this function again with the
    same agents, each agent has only one handoff back, to the newest triage agent. Therefore, do not create a triage agent for
    each request if several requests share the other agents. Create all agents for each request, or none of them.

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
        ConfigurationError: If an item of `agents` is not an Agent, or a handoff and another function of an agent have the same
            name. In this case, no agent changes.
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
    """Return the new functions of the agent, after a check. The agent does not change."""
    functions = [function for function in agent.functions if not (is_agent(function) and function.name == triage.name)]
    # Compare only names. The schemas cannot be created yet, because a hint may name a class that is defined later.
    names = {name_of(function) for function in functions if not is_agent(function)}
    handoffs = [*(function for function in functions if is_agent(function)), triage]
    for name in names.intersection(tools_of(agent.model_copy(update={"functions": handoffs}))):
        raise ConfigurationError(
            f"agent {agent.name!r} already has a function named {name!r}; remove it, or call without add_backlinks"
        )
    return [*functions, triage]
