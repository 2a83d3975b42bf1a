"""The functions that a case names: an agent must have them, or no attempt can pass.

Known are the functions of the agents that `aswarm.graph` finds. Where more may come, nothing is refused.
"""

from __future__ import annotations

import difflib

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._json import is_array
from aswarm._tools.toolbox import tools_of
from aswarm.graph import agent_graph

from ._case import Case


def check_names(case: Case, agent: Agent) -> None:
    """Raise ConfigurationError for a function that no agent has which can be reached from this one."""
    if case.calls_nothing or case.function is ... or case.function is None:
        return
    known = _known(agent)
    for name in case.function if is_array(case.function) else [case.function]:
        if known is not None and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the functions are: {', '.join(known) or 'none'}"
            raise ConfigurationError(f"the case {str(case)!r} expects {name!r}, a function that no agent has; {hint}")


def _known(agent: Agent) -> list[str] | None:
    """The names of all functions; None where others may come: by a handoff that is not certain, or by settings."""
    graph = agent_graph(agent)
    agents = [node.agent for node in graph.agents]
    if any(handoff.target is None for handoff in graph.handoffs) or any(
        "tools" in each.model_settings for each in agents
    ):
        return None
    return list(dict.fromkeys(name for each in agents for name in tools_of(each)))
