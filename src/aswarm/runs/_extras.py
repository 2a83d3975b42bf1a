"""Middleware of a served run: tools of the client, and a log of the requests to the model.

A tool of the client runs in the client, not in this process. Its call stays open until the client sends the result, in its
next request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aswarm._record.entry_maker import CLIENT_TOOL
from aswarm._run.handlers import Handlers, Started
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._swarm import AsyncSwarm, with_innermost
from aswarm._tools.conversion import to_text
from aswarm._values.errors import Hold
from aswarm._wire.request import CompletionRequest

from ._requests import ClientTool


def with_request_log(swarm: AsyncSwarm, on_request: Callable[[CompletionRequest], None]) -> AsyncSwarm:
    """Return a copy of the swarm that calls `on_request` before each request. The copy has the same clients and limits."""

    def wrap(handlers: Handlers) -> Handlers:
        if handlers.run.tool_call is not None:  # a run that a function of this run started
            return handlers

        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            on_request(request)
            return handlers.complete(request)

        return replace(handlers, complete=complete)

    return with_innermost(swarm, wrap)


def offer_tools(handlers: Handlers, tools: Sequence[ClientTool]) -> Handlers:
    """Offer the tools of the client, and keep their calls open.

    This middleware must be the outermost. Otherwise the key of a caching middleware would not include these tools.
    """

    def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        return handlers.complete(_with_tools(request, tools))

    async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        if call.tool is None:
            if call._decided is not None and call._decided.is_answered:
                return ToolOutcome(to_text(call._decided.answer))
            if any(tool.name == call.name for tool in tools):
                raise Hold(f"{call.name} runs in the client", data=dict(CLIENT_TOOL))
        return await handlers.call_tool(call, context, started)

    return replace(handlers, complete=complete if tools else handlers.complete, call_tool=call_tool)


def _with_tools(request: CompletionRequest, tools: Sequence[ClientTool]) -> CompletionRequest:
    changed = request.copy()
    own: list[dict[str, Any]] = list(changed.body.get("tools") or ())
    names = {tool["function"]["name"] for tool in own}
    new = [tool.to_dict() for tool in tools if tool.name not in names]
    changed.body["tools"] = [*own, *({"type": "function", "function": function} for function in new)]
    return changed
