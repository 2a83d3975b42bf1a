"""`debug=True`: what is asked, received and called, on stdout in Swarm's words, and in the logger `aswarm`.

Wraps the doors and looks at the events; the loop does not know of it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any

from aswarm._events import CompletionFinished, LoopEvent, RunFinished
from aswarm._tools.conversion import parse_arguments
from aswarm._wire.request import CompletionHandler, CompletionRequest

from .execution import Started, ToolHandler
from .loop import Handlers
from .plan import ToolCall, ToolOutcome

logger = logging.getLogger("aswarm")


def debug_print(*parts: object) -> None:
    """Print one line as Swarm does, with the time in front, and log it."""
    text = " ".join(map(str, parts))
    logger.debug("%s", text)
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    print(f"\033[97m[\033[90m{now}\033[97m]\033[90m {text}\033[0m")  # noqa: T201 - printing is what it is for


def debug_doors(doors: Handlers) -> Handlers:
    """The same doors, telling what goes through."""
    return replace(doors, complete=_telling_completion(doors.complete), call_tool=_telling_tool(doors.call_tool))


def _telling_completion(
    complete: CompletionHandler,
) -> CompletionHandler:
    async def told(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        debug_print("Getting chat completion for...:", request.body["messages"])
        async with aclosing(complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    return told


def _telling_tool(call_tool: ToolHandler) -> ToolHandler:
    def told(call: ToolCall, context: dict[str, Any], started: Started) -> Awaitable[ToolOutcome]:
        if call.tool is None:
            debug_print(f"Tool {call.name} not found in function map.")
        else:
            debug_print(f"Processing tool call: {call.name} with arguments {_shown(call.arguments)}")
        return call_tool(call, context, started)

    return told


def _shown(arguments: str) -> object:
    try:
        return parse_arguments(arguments)
    except ValueError:
        return arguments


async def debug_events(events: AsyncGenerator[LoopEvent, None]) -> AsyncGenerator[LoopEvent, None]:
    """The same events, telling what was received and that the turn ends."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, CompletionFinished):
                debug_print("Received completion:", event.message)
            elif isinstance(event, RunFinished) and event.response.stop in ("answer", "tool_calls"):
                debug_print("Ending turn.")
            yield event
