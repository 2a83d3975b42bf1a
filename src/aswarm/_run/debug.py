"""The middleware of `debug=True`: prints requests, completions and tool calls as Swarm does, and logs them to `aswarm`."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any

from aswarm._tools.conversion import arguments_or_text
from aswarm._values.log_fields import NO_RUN
from aswarm._values.text import has_colours
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.request import CompletionRequest

from .call import ToolCall
from .handlers import Handlers, Middleware, Started
from .history import recorded_form
from .outcome import ToolOutcome
from .run_info import RunInfo

logger = logging.getLogger("aswarm")


def debug_middleware(*, execute_tools: bool) -> Middleware:
    """Return the middleware that prints and logs. `execute_tools`: whether the run executes tool calls."""

    def wrap(handlers: Handlers) -> Handlers:
        run = handlers.run

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            debug_print("Getting chat completion for...:", request.body["messages"], run=run)
            accumulator = Accumulator()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    accumulator.feed(chunk)
                    yield chunk
            message = recorded_form(accumulator.finish().message, request.agent.name)
            debug_print("Received completion:", message, run=run)
            if not (message["tool_calls"] and execute_tools):
                debug_print("Ending turn.", run=run)

        def call_tool(call: ToolCall, context: dict[str, Any], started: Started, /) -> Awaitable[ToolOutcome]:
            debug_print(call_text(call), run=run)
            return handlers.call_tool(call, context, started)

        return replace(handlers, complete=complete, call_tool=call_tool)

    return wrap


def call_text(call: ToolCall) -> str:
    """Return the line that is printed before a call runs."""
    if call.tool is None:
        return f"Tool {call.name} not found in function map."
    arguments = arguments_or_text(call.arguments)
    return f"Processing tool call: {call.name} with arguments {arguments}"


def debug_print(*parts: object, run: RunInfo | None = None) -> None:
    """Print one line with the time in front, as Swarm does, and log it. The line has colours only in a terminal."""
    text = " ".join(map(str, parts))
    logger.debug("%s", text, extra=NO_RUN if run is None else run.log_fields)
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    line = f"\033[97m[\033[90m{now}\033[97m]\033[90m {text}\033[0m" if has_colours() else f"[{now}] {text}"
    # A run must not end because its text cannot be printed, so a character that stdout does not have is printed as an escape.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201 - printing is its purpose
