"""The current tools of a server, and the agents that follow them: a run keeps the tools of its start, the next run has the new ones.

Security: An agent that offers only some tools of a server never gets others by `latest_tools`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from mcp.types import Tool as ServerTool

from aswarm._values.agent import Agent
from aswarm._values.messages import call_name
from aswarm._values.text import NO_RUN
from aswarm.extensions import (
    AgentDirectory,
    CompletionRequest,
    Handlers,
    Started,
    Tool,
    ToolCall,
    ToolOutcome,
    tools_of,
)

logger = logging.getLogger("aswarm")

Schema = Mapping[str, Any]
_SHOWN = {"name", "title", "description", "input_schema", "annotations"}


def version_of(tool: ServerTool) -> str:
    """Return a hash of all that a model or a user can know about the tool."""
    text = json.dumps(tool.model_dump(mode="json", include=_SHOWN), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(slots=True)
class ToolList:
    """The functions of a server now, and the versions of its tools by their names on the server."""

    server: str
    functions: list[Tool[..., Any]] = field(default_factory=list[Tool[..., Any]])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    # For each function of this server, the names of the list in which it was.
    _lists: WeakKeyDictionary[Any, frozenset[str]] = field(default_factory=WeakKeyDictionary[Any, frozenset[str]])
    _all_names: set[str] = field(default_factory=set[str])

    def take(self, offered: Mapping[str, ServerTool], make: Callable[[str, ServerTool], Tool[..., Any]]) -> None:
        """Set the tools, by their names for the model. If none has changed, the functions stay the same objects."""
        versions = {tool.name: version_of(tool) for tool in offered.values()}
        names = frozenset(offered)
        if self.functions and versions == self.versions and names == self._lists[self.functions[0]]:
            return
        self.functions = [make(name, tool) for name, tool in offered.items()]
        self.versions = versions
        self._all_names |= names
        self._lists.update(dict.fromkeys(self.functions, names))

    def of(self, agent: Agent) -> list[Tool[..., Any]]:
        """Return the functions of the agent that are, or were, functions of this server."""
        return [function for function in agent.functions if isinstance(function, Tool) and function in self._lists]

    def update(self, agent: Agent) -> None:
        """Replace the functions of the agent by the current ones. Only an agent with all functions of a list gets new ones."""
        own = self.of(agent)
        if {*map(id, own)} <= {*map(id, self.functions)}:
            return
        names = frozenset(map(_name, own))
        is_whole, foreign = names == self._lists[own[0]], self._foreign(agent)
        wanted = [function for function in self.functions if is_whole or _name(function) in names]
        if clashes := [_name(function) for function in wanted if _name(function) in foreign]:
            logger.warning(
                "the agent %r does not get new tools of the MCP server %s, because it has functions of these names: %s",
                agent.name, self.server, ", ".join(clashes), extra=NO_RUN,
            )  # fmt: skip
        new = [function for function in wanted if _name(function) not in foreign]
        replaced = {*map(id, own)}
        at = next(at for at, function in enumerate(agent.functions) if id(function) in replaced)
        others = [function for function in agent.functions if id(function) not in replaced]
        agent.functions[:] = [*others[:at], *new, *others[at:]]

    def _foreign(self, agent: Agent) -> set[str]:
        """Return the names of the other tools of the agent."""
        return {name for name, tool in tools_of(agent).items() if tool not in self._lists}

    def schemas(self, agent: Agent) -> list[Schema]:
        """Return the tools of this server that the agent offers."""
        return [function.schema for function in self.of(agent)]

    def put(self, sent: list[Schema], request: CompletionRequest) -> None:
        """Give the request these tools of this server, in place of those that it has."""
        body = request.body
        tools: list[Schema] = body.get("tools", [])
        # The history decides which deferred tools are in a request.
        if (
            any(function.defer for function in self.functions)
            or [tool for tool in tools if call_name(tool) in self._all_names] == sent
        ):
            return
        own = self._all_names - self._foreign(request.agent)
        at = next((at for at, tool in enumerate(tools) if call_name(tool) in own), len(tools))
        others = [tool for tool in tools if call_name(tool) not in own]
        if tools := [*others[:at], *sent, *others[at:]]:
            body["tools"] = tools
            body.setdefault("parallel_tool_calls", request.agent.parallel_tool_calls)
        else:
            for key in ("tools", "tool_choice", "parallel_tool_calls"):
                body.pop(key, None)


def _name(function: Tool[..., Any]) -> str:
    return call_name(function.schema)


class RunTools:
    """The tools of a server in one run. `read`: reads the list of tools again."""

    def __init__(self, handlers: Handlers, tools: ToolList, read: Callable[[], Awaitable[None]]) -> None:
        self._inner = handlers
        self._tools = tools
        self._read = read
        self._is_read = False
        self._sent: dict[int, tuple[Agent, list[Schema]]] = {}  # by the id of the agent, which stays alive here

    @property
    def handlers(self) -> Handlers:
        """The handlers of the run with these tools."""
        return replace(self._inner, complete=self._complete, call_tool=self._call_tool)

    async def _complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        await self._update(request.agent)
        if (sent := self._sent.get(id(request.agent))) is not None:
            self._tools.put(sent[1], request)
        async with aclosing(self._inner.complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        await self._update(call.agent)  # a decision on a call of an earlier run comes before the first completion
        return await self._inner.call_tool(call, context, started)

    async def _update(self, agent: Agent) -> None:
        if id(agent) in self._sent or not self._tools.of(agent):
            return
        if not self._is_read:
            await self._read()
            self._is_read = True
        # All agents of the run together, because `keep_prefix` compares their tools, and a later handoff is in the same run.
        for reached in AgentDirectory((agent,)).reached:
            self._tools.update(reached)
            self._sent.setdefault(id(reached), (reached, self._tools.schemas(reached)))
