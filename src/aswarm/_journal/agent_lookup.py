"""Agents by their names: a journal holds no functions, so a handoff is found again from the agent that it began with."""

from __future__ import annotations

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm.graph import agent_graph


class Agents:
    """The agents that can be reached from `start` without calling anyone's functions (see `aswarm.graph`)."""

    def __init__(self, start: Agent) -> None:
        self.start = start
        self._named: dict[str, list[Agent]] = {start.name: [start]}

    def find(self, name: str) -> Agent | None:
        """The agent of that name; None where there is none, or several."""
        if name not in self._named:
            self._look()
        agents = self._named.get(name, [])
        return agents[0] if len(agents) == 1 else None

    def check(self, agent: Agent, function: str) -> None:
        """Raise ConfigurationError where `agent`, to which `function` has handed off, could not be found again."""
        if self.find(agent.name) is not agent:
            self._look()  # the agents may be others by now
        if self.find(agent.name) is not agent:
            raise ConfigurationError(self._advice(agent.name, f"{function} handed off to"))

    def get(self, name: str) -> Agent:
        """The agent of that name. Raises ConfigurationError where there is none, or several."""
        agent = self.find(name)
        if agent is None:
            raise ConfigurationError(self._advice(name, "the journal has a handoff to"))
        return agent

    def _look(self) -> None:
        self._named = {}
        for node in agent_graph(self.start).agents:
            self._named.setdefault(node.agent.name, []).append(node.agent)

    def _advice(self, name: str, what: str) -> str:
        found = len(self._named.get(name, []))
        why = f"{found} agents of that name can be" if found > 1 else "no such agent can be"
        return (
            f"{what} the agent {name!r}, which the journal holds by its name, but {why} found from {self.start.name!r}. "
            "Give each agent a name of its own, and let it be seen: in the functions of an agent that can be reached, or "
            "as a variable that the function returns (`aswarm graph` shows what is found)"
        )
