"""`create_triage_agent`: one agent that hands over to others, which may hand back to it.

Decides only when it is called which agent may hand over to which: agents stay plain, and may be changed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aswarm._agent import Agent, Instructions
from aswarm._errors import ConfigurationError

from .hints import name_of
from .toolbox import tools_of


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
    """An agent whose functions are handoffs to `agents`; with `add_backlinks`, each of them gets a handoff back to it.

    `model`, `tool_choice`, `parallel_tool_calls` and `model_settings` are those of the triage agent, as in `Agent`;
    None is the default model.

    A handoff is the agent itself in `functions`, which the model sees as `transfer_to_<name>`. An agent listed twice
    counts once. A backlink comes last, and replaces a handoff to an agent of the same name: if a notebook calls this
    again with the same agents, each has one way back, to the newest triage agent. So do not make a triage agent for
    each request over agents that requests share: make all of these agents for each request, or none of them.

    With backlinks, each agent gets a new list as `agent.functions`; the old list does not change. Appending to
    `agent.functions` later keeps the backlink; assigning a list without the triage agent removes it. Changing the list
    `agents` later has no effect; to hand over to one more agent, append it to the `functions` of the result.

    Raises ConfigurationError if an item of `agents` is no Agent, or if a handoff would have the name of another
    function of its agent; nothing is changed then.
    """
    listed = [_checked(agent) for agent in agents]
    own_model: dict[str, Any] = {} if model is None else {"model": model}
    triage = Agent(
        name=name,
        instructions=instructions,
        functions=_once(listed),
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


def _checked(agent: Agent) -> Agent:
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - what a caller may pass
        raise ConfigurationError(f"create_triage_agent takes a list of agents, and {agent!r} is not an Agent")
    return agent


def _once(agents: list[Agent]) -> list[Agent]:
    return list({id(agent): agent for agent in agents}.values())


def _with_backlink(agent: Agent, triage: Agent) -> list[Any]:
    """The new functions of the agent. Checks them and does not change the agent."""
    functions = [each for each in agent.functions if not (isinstance(each, Agent) and each.name == triage.name)]
    # Only names are compared: building schemas here could fail, because a hint may name a class defined further down.
    names = {name_of(each) for each in functions if not isinstance(each, Agent)}
    handoffs = [*filter(_is_agent, functions), triage]
    for name in names.intersection(tools_of(agent.model_copy(update={"functions": handoffs}))):
        raise ConfigurationError(
            f"agent {agent.name!r} already has a function named {name!r}; remove it, or call without add_backlinks"
        )
    return [*functions, triage]


def _is_agent(function: object) -> bool:
    return isinstance(function, Agent)
