"""Agents as a server of the Model Context Protocol: one tool for each agent, and a run for each call.

Decides what a client is told: the answer, an error, and how far the run is. A run belongs to its call: it is cancelled with
it, and keeps nothing for the next one. Transports are the SDK's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcp.server import Server, ServerRequestContext
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from aswarm import __version__
from aswarm._agent import Agent, Response, slug
from aswarm._agent_tool import PARAMETERS, description_of
from aswarm._errors import AswarmError, ConfigurationError
from aswarm._events import Event, HandedOff, ToolCallStarted, TurnStarted
from aswarm._output import answer_text
from aswarm._run.options import MAX_TURNS
from aswarm._swarm import AsyncSwarm
from aswarm.graph._find import reachable_agents

_LIMITS = {"budget": "the budget is used up", "max_turns": "its turns are used up"}


def serve_agents(
    agents: Agent | Iterable[Agent],
    swarm: AsyncSwarm,
    *,
    name: str = "aswarm",
    max_turns: float = MAX_TURNS,
    model_override: str | None = None,
) -> Server[Any]:
    """A server of the SDK with one tool for each agent: it gets a request, runs until the agent answers, and returns the text.

    `agents`: the agents to serve; a single one is served with all agents that it can hand off to. `max_turns`: of one call. `model_override`: the model for all agents.
    The server object has `run(...)` for stdio and `streamable_http_app()`, an ASGI application for HTTP. It answers clients
    of the protocol of 2026-07-28, and of the sessions before it. A client gets what the run does as progress, and its
    cancellation cancels the run. A call inside that waits for a decision is an error for the client.

    Raises ConfigurationError if two agents have the same name, or one has no name that a tool may have.
    """
    served = _by_name(reachable_agents(agents) if isinstance(agents, Agent) else agents)
    tools = [
        Tool(name=key, description=description_of(agent), input_schema=dict(PARAMETERS))
        for key, agent in served.items()
    ]

    async def list_tools(_: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        agent, request = served.get(params.name), (params.arguments or {}).get("request")
        if agent is None or not isinstance(request, str):
            return _error(f"Call one of {', '.join(served)}, with the argument `request`, a text.")
        try:
            async with swarm.stream(
                agent, request, model_override=model_override, max_turns=max_turns, deltas=False
            ) as run:
                done = 0
                async for event in run:
                    if text := _progress(event):
                        done += 1
                        await context.session.report_progress(done, message=text)
            return _result(run.response)
        except AswarmError as error:
            return _error(f"{type(error).__name__}: {error}")

    return Server(name, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _by_name(agents: Iterable[Agent]) -> dict[str, Agent]:
    served: dict[str, Agent] = {}
    for agent in agents:
        name = slug(agent.name)
        if not name or name in served:
            raise ConfigurationError(
                f"the agent {agent.name!r} cannot be a tool: its name is empty, or another agent has it too; give each agent its "
                "own name"
            )
        served[name] = agent
    return served


def _progress(event: Event) -> str | None:
    match event:
        case TurnStarted():
            return f"{event.agent.name}: asks the model"
        case ToolCallStarted():
            return f"calls {event.name}"
        case HandedOff():
            return f"hands off to {event.target.name}"
        case _:
            return None


def _result(response: Response) -> CallToolResult:
    text = answer_text(response.messages)
    if response.stop == "answer":
        return CallToolResult(content=[TextContent(text=text)])
    if response.stop == "waiting":
        waits = "; ".join(f"{call.name}: {call.reason}" for call in response.waiting)
        return _error(
            f"The agent {response.agent.name} cannot continue here, because a call waits for a decision. {waits}"
        )
    return _error(
        f"The agent {response.agent.name} stopped: {_LIMITS.get(response.stop, response.stop)}. {text}".strip()
    )


def _error(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)], is_error=True)
