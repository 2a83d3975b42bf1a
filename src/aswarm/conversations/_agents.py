"""The agents of a conversation by name: a store holds no functions, so a later run finds its agent by the name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from aswarm._agent import Agent
from aswarm._errors import CallerMistake, ConfigurationError
from aswarm.graph._find import reachable_agents


class KnownAgents:
    """The agents that a conversation may be with: those that were listed, and those that `aswarm.graph` finds from them.

    A listed agent comes before a found one of the same name. Raises ConfigurationError for two listed agents of one name.
    """

    def __init__(self, start: Agent, listed: Iterable[Agent] = ()) -> None:
        if isinstance(listed, Agent) or not isinstance(listed, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"agents must be a list of Agents, not {type(listed).__name__}")
        self.start = start
        self._listed: dict[str, Agent] = {}
        for agent in cast("Iterable[object]", (start, *listed)):
            if not isinstance(agent, Agent):
                raise ConfigurationError(f"a conversation is with Agents; one of them is {type(agent).__name__}")
            if self._listed.setdefault(agent.name, agent) is not agent:
                raise ConfigurationError(
                    f"a conversation has two agents named {agent.name!r}; a store keeps an agent by its name, so give each its own"
                )
        self._found: dict[str, list[Agent]] = {}

    @property
    def listed(self) -> list[Agent]:
        """The agents that the caller named, the one to begin with first."""
        return list(self._listed.values())

    def find(self, name: str) -> Agent | None:
        """The agent of that name; None if there is none, or more than one."""
        if name in self._listed:
            return self._listed[name]
        if name not in self._found:
            self._search()
        agents = self._found.get(name, [])
        return agents[0] if len(agents) == 1 else None

    def get(self, name: str, conversation_id: str) -> Agent:
        """The agent of that name. Raises ConfigurationError if it cannot be found."""
        agent = self.find(name)
        if agent is None:
            raise ConfigurationError(self._advice(name, f"the conversation {conversation_id!r} is with the agent"))
        return agent

    def check(self, agent: Agent) -> None:
        """Raise CallerMistake if a later run could not find this agent by its name."""
        if self.find(agent.name) is not agent and agent.name not in self._listed:
            self._search()  # the agents may have changed since the last search
        if self.find(agent.name) is not agent:
            raise CallerMistake(self._advice(agent.name, "the conversation was handed over to the agent"))

    def _search(self) -> None:
        found: dict[int, Agent] = {}
        for root in self._listed.values():
            if id(root) not in found:
                found.update({id(agent): agent for agent in reachable_agents(root)})
        self._found = {}
        for agent in found.values():
            self._found.setdefault(agent.name, []).append(agent)

    def _advice(self, name: str, what: str) -> str:
        count = len(self._found.get(name, ()))
        if name in self._listed or count:
            others = "more than one agent" if count > 1 else "another agent"
            why = f"{others} of this name is known. Give each agent its own name"
        else:
            why = (
                f"no agent of this name can be found from {', '.join(map(repr, self._listed))}. Pass it to the conversation: "
                "agents=[...]. Or let it be found: in the `functions` of an agent, or as a variable that the function "
                "returns (`aswarm graph` shows which agents can be found)"
            )
        return f"{what} {name!r}. A store keeps an agent by its name, and {why}"
