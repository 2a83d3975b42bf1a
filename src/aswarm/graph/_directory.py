"""`AgentDirectory`: agents by name. A recorded run contains only names of agents, so a later run must find the agents."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import cast

from aswarm._values.agent import Agent
from aswarm._values.errors import CallerMistake, ConfigurationError

from ._find import reachable_agents


def listed_by_name(agents: object) -> dict[str, Agent]:
    """Return the agents of an argument `agents=` by name. Raises ConfigurationError if two agents have the same name."""
    if isinstance(agents, Agent) or not isinstance(agents, Iterable):
        raise ConfigurationError(f"agents must be a list of Agents, not {type(agents).__name__}")
    named: dict[str, Agent] = {}
    for agent in cast("Iterable[object]", agents):
        if not isinstance(agent, Agent):
            raise ConfigurationError(f"agents must be a list of Agents; one item is {type(agent).__name__}")
        if named.setdefault(agent.name, agent) is not agent:
            raise ConfigurationError(
                f"agents has two agents named {agent.name!r}; an agent is found by its name, so give each agent its own name"
            )
    return named


class AgentDirectory:
    """Agents of a run by name: the listed agents, then the agents that `aswarm.graph` finds from the listed agents.

    The search calls no function of a user. If it finds two agents with the same name, `find` returns neither of them. The first
    item of `agents` is the start agent. Raises ConfigurationError like `listed_by_name`.
    """

    def __init__(self, agents: Iterable[Agent]) -> None:
        self.listed = listed_by_name(agents)
        self._found: dict[str, list[Agent]] = {}

    @property
    def start(self) -> Agent:
        return next(iter(self.listed.values()))

    @property
    def known(self) -> dict[str, Agent]:
        """All agents that `find` can return, by name. The listed agents are first."""
        found = {name: agents[0] for name, agents in self._search().items() if len(agents) == 1}
        return {**self.listed, **found, **self.listed}

    def find(self, name: str) -> Agent | None:
        """Return the agent with this name. None if there is no such agent, or more than one."""
        if name in self.listed:
            return self.listed[name]
        if name not in self._found:
            self._search()
        agents = self._found.get(name, [])
        return agents[0] if len(agents) == 1 else None

    def get(self, name: str, what: str) -> Agent:
        """Return the agent with this name. Raises ConfigurationError if there is no such agent, or more than one.

        `what`: the start of the error text, such as "the journal has a handoff to the agent".
        """
        agent = self.find(name)
        if agent is None:
            raise ConfigurationError(self._advice(name, what))
        return agent

    def find_or_name(self, name: str, what: str) -> Agent:
        """Return the agent with this name, or a placeholder. A run with the placeholder raises ConfigurationError."""
        return self.find(name) or Agent(name=name, instructions=partial(self._refuse, name, what))

    def _refuse(self, name: str, what: str) -> str:
        raise ConfigurationError(self._advice(name, what))

    def has(self, agent: Agent) -> bool:
        """Return whether a later run would find this agent object by its name."""
        if self.find(agent.name) is not agent and agent.name not in self.listed:
            self._search()  # the agents may have changed since the last search
        return self.find(agent.name) is agent

    def check(self, agent: Agent, what: str) -> None:
        """Raise CallerMistake if a later run could not find this agent. `what`: as for `get`."""
        if not self.has(agent):
            raise CallerMistake(self._advice(agent.name, what))

    def _advice(self, name: str, what: str) -> str:
        count, start = len(self._found.get(name, [])), self.start.name
        if name in self.listed:
            why = "another agent of this name is listed. Give each agent its own name"
        elif count:
            others = "more than one agent" if count > 1 else "another agent"
            why = (
                f"{others} of this name can be found from {start!r}. Give each agent its own name, or list the right one: "
                "agents=[...]"
            )
        else:
            why = (
                f"no agent of this name can be found from {start!r}. List the agent: agents=[...]. Or put it where it can be "
                "found: in the `functions` of an agent, or in a variable that a function returns (`aswarm graph` shows all "
                "agents that can be found)"
            )
        return f"{what} {name!r}. An agent is recorded by its name, and {why}"

    def _search(self) -> dict[str, list[Agent]]:
        found: dict[int, Agent] = {}
        for root in self.listed.values():
            if id(root) not in found:
                found.update({id(agent): agent for agent in reachable_agents(root)})
        self._found = {}
        for agent in found.values():
            self._found.setdefault(agent.name, []).append(agent)
        return self._found
