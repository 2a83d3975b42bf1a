"""Agents by name: a journal holds no functions, so a rerun finds the agents of recorded handoffs by their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm.graph._find import reachable_agents


class AgentLookup:
    """Finds the agents of one item by name.

    First among `listed`, the agents that the caller listed; then among those that `aswarm.graph` finds from `start` and
    from the listed ones, without calling any user function.
    """

    def __init__(self, start: Agent, listed: Mapping[str, Agent] | None = None) -> None:
        if listed and listed.get(start.name, start) is not start:
            raise ConfigurationError(
                f"the batch starts with an agent named {start.name!r}, and `agents` lists another agent of this name. Give "
                "each agent its own name"
            )
        self.start = start
        self._listed = listed or {}
        self._found: dict[str, list[Agent]] = {start.name: [start]}

    def find(self, name: str) -> Agent | None:
        """The agent of that name; None if there is none, or more than one."""
        if name in self._listed:
            return self._listed[name]
        if name not in self._found:
            self._search()
        agents = self._found.get(name, [])
        return agents[0] if len(agents) == 1 else None

    def find_or_name(self, name: str) -> Agent:
        """The agent of that name; if it cannot be found, an agent that has only the name, and refuses to run."""
        return self.find(name) or Agent(name=name, instructions=partial(self._refuse, name))

    def _refuse(self, name: str) -> str:
        raise ConfigurationError(self._advice(name, "the journal has a response of the agent"))

    def check(self, agent: Agent, function: str) -> None:
        """Raise ConfigurationError if a rerun could not find `agent`, to which `function` has handed off."""
        if self.find(agent.name) is not agent and agent.name not in self._listed:
            self._search()  # the agents may have changed since the last search
        if self.find(agent.name) is not agent:
            raise ConfigurationError(self._advice(agent.name, f"{function} handed off to the agent"))

    def get(self, name: str) -> Agent:
        """The agent of that name. Raises ConfigurationError if there is none, or more than one."""
        agent = self.find(name)
        if agent is None:
            raise ConfigurationError(self._advice(name, "the journal has a handoff to the agent"))
        return agent

    def _search(self) -> None:
        found: dict[int, Agent] = {}
        for root in (self.start, *self._listed.values()):
            if id(root) not in found:
                found.update({id(agent): agent for agent in reachable_agents(root)})
        self._found = {}
        for agent in found.values():
            self._found.setdefault(agent.name, []).append(agent)

    def _advice(self, name: str, what: str) -> str:
        count = len(self._found.get(name, ()))
        if name in self._listed:
            why = "`agents` lists another agent of this name. Give each agent its own name"
        elif count:
            others = "more than one agent" if count > 1 else "another agent"
            why = (
                f"{others} of this name can be found from {self.start.name!r}. Give each agent its own name, or pass "
                "the right one to the batch: agents=[...]"
            )
        else:
            why = (
                f"no agent of this name can be found from {self.start.name!r}. Pass the agent to the batch: "
                "agents=[...]. Or let it be found: in the `functions` of an agent, or as a variable that the function "
                "returns (`aswarm graph` shows which agents can be found)"
            )
        return f"{what} {name!r}. The journal records an agent by its name, and {why}"
