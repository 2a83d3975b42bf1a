"""A hint for a case that expects a function which no agent has. The agents are the agents that `aswarm.graph` finds.

This is a hint and not an error: a function may hand off to an agent that `aswarm.graph` cannot find without a call.
"""

from __future__ import annotations

import difflib
import logging

from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm._values.log_fields import NO_RUN
from aswarm.extensions import tools_of
from aswarm.graph import agent_graph

from ._case import Case

logger = logging.getLogger("aswarm")


class FunctionNames:
    """The names of the functions that the agents of one evaluation have. Each agent is inspected once."""

    def __init__(self) -> None:
        self._known: dict[int, list[str] | None] = {}  # the key is `id(agent)`, because two agents can be equal
        self._logged: set[tuple[int, str]] = set()

    def hint(self, case: Case, agent: Agent) -> str:
        """Return a text about the unknown names in the case, or an empty text. Each unknown name is logged once as a warning."""
        if case.calls_nothing or case.function is ... or case.function is None:
            return ""
        if id(agent) not in self._known:
            self._known[id(agent)] = _known(agent)
        existing = self._known[id(agent)]
        if existing is None:
            return ""
        names = dict.fromkeys([case.function] if isinstance(case.function, str) else case.function)
        texts: list[str] = []
        for name in [name for name in names if name not in existing]:
            near = difflib.get_close_matches(name, existing, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the functions are: {', '.join(existing) or 'none'}"
            text = f"aswarm.graph finds no agent with the function {name!r}; {hint}"
            texts.append(text)
            if (id(agent), name) not in self._logged:
                self._logged.add((id(agent), name))
                logger.warning("the case %r expects %r; %s", str(case), name, text, extra=NO_RUN)
        return "; ".join(texts)


def _known(agent: Agent) -> list[str] | None:
    """Return the names of all functions, or None if there may be more.

    An unknown target of a handoff may have more functions, and so may an agent with "tools" in its `model_settings`.
    """
    try:
        graph = agent_graph(agent)
    except ConfigurationError:
        return None  # the run raises this error if it reaches the agent
    agents = [node.agent for node in graph.agents]
    if any(handoff.target is None for handoff in graph.handoffs) or any(
        "tools" in each.model_settings for each in agents
    ):
        return None
    return list(dict.fromkeys(name for each in agents for name in tools_of(each)))
