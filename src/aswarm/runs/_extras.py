"""Middleware of a served run: tools, settings and notes of the client, and a log of the requests to the model.

A tool of the client runs in the client, not in this process. Its call stays open until the client sends the result, in its
next request.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aswarm._record.entry_maker import CLIENT_TOOL
from aswarm._run.call import ToolCall
from aswarm._run.handlers import Handlers, Started, chain
from aswarm._run.outcome import ToolOutcome
from aswarm._swarm import AsyncSwarm
from aswarm._tools.conversion import to_text
from aswarm._tools.toolbox import toolbox
from aswarm._values.errors import Hold
from aswarm._values.found_tools import CALL_TOOL
from aswarm._values.messages import Message
from aswarm._wire.request import CompletionRequest
from aswarm._wire.responses_request import LIMITS

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

    extended = copy.copy(swarm)  # shares clients and limits
    extended._middleware = chain(filter(None, (swarm._middleware, wrap)))  # noqa: SLF001 - a copy of the swarm
    return extended


def with_client(
    handlers: Handlers, tools: Sequence[ClientTool], settings: Mapping[str, Any], notes: Sequence[Message]
) -> Handlers:
    """Offer the tools of the client and keep their calls open. Add its settings and notes to each request.

    This middleware must be the outermost. Otherwise the key of a caching middleware would not include these tools.
    """

    def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        changed = request.copy()
        _add_tools(changed, tools)
        _add_settings(changed.body, settings)
        _add_notes(changed.body["messages"], notes)
        return handlers.complete(changed)

    async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        if call.tool is None:
            decided = call.decision
            if decided is not None and decided.is_answered:
                return ToolOutcome(to_text(decided.answer))
            if any(tool.name == call.name for tool in tools):
                raise Hold(f"{call.name} runs in the client", data=dict(CLIENT_TOOL))
        return await handlers.call_tool(call, context, started)

    wrapped = complete if tools or settings or notes else handlers.complete
    return replace(handlers, complete=wrapped, call_tool=call_tool)


def _add_tools(request: CompletionRequest, tools: Sequence[ClientTool]) -> None:
    agent_tools: list[dict[str, Any]] = list(request.body.get("tools") or ())
    # Also the deferred tools, which the request does not have: a call of this name is a call of the agent's function.
    names = {CALL_TOOL, *toolbox(request.agent).tools, *(tool["function"]["name"] for tool in agent_tools)}
    new = [tool.to_dict() for tool in tools if tool.name not in names]
    if new:
        request.body["tools"] = [*agent_tools, *({"type": "function", "function": function} for function in new)]


def _add_settings(body: dict[str, Any], settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if key in LIMITS:
            # The limit of output tokens has several names, and a request has only one of them.
            limit = next((name for name in LIMITS if name in body), key)
            body[limit] = min(value, body.get(limit, value))
        elif key != "parallel_tool_calls" or body.get("tools"):  # servers refuse it in a request without tools
            body[key] = value


def _add_notes(messages: list[Message], notes: Sequence[Message]) -> None:
    """Add system texts after the instructions, and texts of the user before the last message of the user."""
    for note in notes:
        if note["role"] == "system":
            at = int(bool(messages) and messages[0]["role"] == "system")
        else:
            at = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=len(messages))
        messages.insert(at, dict(note))
