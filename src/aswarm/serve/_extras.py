"""What a served run has beside its agents: tools of the client, and a log of its requests. As middleware.

A tool of the client has no function here. Its call is left open, and the client answers it with the next request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from aswarm._errors import Hold
from aswarm._run.handlers import Handlers, Started
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._swarm import AsyncSwarm, with_middleware
from aswarm._tools.conversion import to_text
from aswarm._wire.request import CompletionRequest

from ._entry_maker import CLIENT_TOOL
from ._requests import ClientTool


@dataclass(frozen=True, slots=True)
class RunExtras:
    """`tools`: those of the client. `on_request`: gets each request as it is sent, None for no log of them."""

    tools: Sequence[ClientTool] = ()
    on_request: Callable[[CompletionRequest], None] | None = None


# Of the run in this task. The tools of a client are not offered to a run inside a function.
run_extras: ContextVar[RunExtras] = ContextVar("aswarm_run_extras", default=RunExtras())  # noqa: B039 - frozen


def with_extras(swarm: AsyncSwarm) -> AsyncSwarm:
    """The swarm, whose runs have the extras of their task. It shares clients and limits with the one that was given."""
    # Outermost, so that a cache of the user's knows the tools; innermost, so that a request is logged as it is sent.
    return with_middleware(swarm, _offer_tools, _log_requests)


def _offer_tools(handlers: Handlers) -> Handlers:
    if handlers.run.tool_call is not None:
        return handlers
    tools = run_extras.get().tools

    async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        async with aclosing(handlers.complete(_with_tools(request, tools))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        if call.tool is None:
            if call.decided is not None and call.decided.is_answered:
                return ToolOutcome(to_text(call.decided.answer))
            if any(tool.name == call.name for tool in tools):
                raise Hold(f"{call.name} runs in the client", data=dict(CLIENT_TOOL))
        return await handlers.call_tool(call, context, started)

    return replace(handlers, complete=complete if tools else handlers.complete, call_tool=call_tool)


def _with_tools(request: CompletionRequest, tools: Sequence[ClientTool]) -> CompletionRequest:
    changed = request.copy()
    own: list[dict[str, Any]] = list(changed.body.get("tools") or ())
    names = {tool["function"]["name"] for tool in own}
    changed.body["tools"] = [*own, *(_as_function(tool) for tool in tools if tool.name not in names)]
    return changed


def _as_function(tool: ClientTool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _log_requests(handlers: Handlers) -> Handlers:
    on_request = run_extras.get().on_request
    if on_request is None or handlers.run.tool_call is not None:
        return handlers

    async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        on_request(request)
        async with aclosing(handlers.complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    return replace(handlers, complete=complete)
