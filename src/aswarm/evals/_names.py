"""The functions that a case names: says which of them no agent has, as far as `aswarm.graph` finds agents.

That is a hint. It refuses no case, because a function can hand off to an agent that only its call would show.
"""

from __future__ import annotations

import difflib
import logging

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._run.handlers import NO_RUN
from aswarm._tools.toolbox import tools_of
from aswarm.graph import agent_graph

from ._case import Case

logger = logging.getLogger("aswarm")


class FunctionNames:
    """The names of the functions that the agents of one evaluation have. Each agent is inspected once."""

    def __init__(self) -> None:
        self._known: dict[int, list[str] | None] = {}  # by the id of the agent: two agents can be equal
        self._logged: set[tuple[int, str]] = set()

    def hint(self, case: Case, agent: Agent) -> str:
        """What to say of the names that no agent has; empty if there are none. Each is logged once as a warning."""
        if case.calls_nothing or case.function is ... or case.function is None:
            return ""
        if id(agent) not in self._known:
            self._known[id(agent)] = _known(agent)
        known = self._known[id(agent)]
        if known is None:
            return ""
        names = dict.fromkeys([case.function] if isinstance(case.function, str) else case.function)
        texts = {name: _text(name, known) for name in names if name not in known}
        for name, text in texts.items():
            if (id(agent), name) not in self._logged:
                self._logged.add((id(agent), name))
                logger.warning("the case %r expects %r; %s", str(case), name, text, extra=NO_RUN)
        return "; ".join(texts.values())


def _text(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the functions are: {', '.join(known) or 'none'}"
    return f"aswarm.graph finds no agent with the function {name!r}; {hint}"


def _known(agent: Agent) -> list[str] | None:
    """The names of all functions; None where others may come: by a handoff that is not certain, or by settings."""
    try:
        graph = agent_graph(agent)
    except ConfigurationError:
        return None  # the run says it, if it reaches the agent that cannot be used
    agents = [node.agent for node in graph.agents]
    if any(handoff.target is None for handoff in graph.handoffs) or any(
        "tools" in each.model_settings for each in agents
    ):
        return None
    return list(dict.fromkeys(name for each in agents for name in tools_of(each)))
