"""`debug=True`: prints requests, completions and tool calls in Swarm's words, and logs them to the logger `aswarm`.

It is middleware: no other part of a run knows of it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aswarm._errors import ToolArgumentsError
from aswarm._text import has_colours
from aswarm._tools.conversion import parse_arguments
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.request import CompletionRequest

from .handlers import NO_RUN, Handlers, Middleware, RunInfo, Started
from .plan import ToolCall, ToolOutcome
from .state import recorded_form

logger = logging.getLogger("aswarm")


def debug_middleware(*, execute_tools: bool) -> Middleware:
    """The middleware that prints and logs. `execute_tools`: whether the run carries out the calls of the model."""

    def wrap(handlers: Handlers) -> Handlers:
        printer = _DebugPrinter(handlers, execute_tools=execute_tools)
        return Handlers(printer.complete, printer.call_tool, handlers.run)

    return wrap


@dataclass(frozen=True, slots=True)
class _DebugPrinter:
    handlers: Handlers
    execute_tools: bool

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self._print("Getting chat completion for...:", request.body["messages"])
        accumulator = Accumulator()
        async with aclosing(self.handlers.complete(request)) as chunks:
            async for chunk in chunks:
                accumulator.feed(chunk)
                yield chunk
        message = recorded_form(accumulator.finish().message, request.agent.name)
        self._print("Received completion:", message)
        if not (message["tool_calls"] and self.execute_tools):
            self._print("Ending turn.")

    def call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> Awaitable[ToolOutcome]:
        self._print(call_text(call))
        return self.handlers.call_tool(call, context, started)

    def _print(self, *parts: object) -> None:
        debug_print(*parts, run=self.handlers.run)


def call_text(call: ToolCall) -> str:
    """What is printed of a call before it runs."""
    if call.tool is None:
        return f"Tool {call.name} not found in function map."
    return f"Processing tool call: {call.name} with arguments {_readable(call.arguments)}"


def debug_print(*parts: object, run: RunInfo | None = None) -> None:
    """Print one line as Swarm does, with the time in front, and log it. There are colours only at a terminal."""
    text = " ".join(map(str, parts))
    logger.debug("%s", text, extra=NO_RUN if run is None else run.log_fields)
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")
    line = f"\033[97m[\033[90m{now}\033[97m]\033[90m {text}\033[0m" if has_colours() else f"[{now}] {text}"
    print(line)  # noqa: T201 - printing is its purpose


def _readable(arguments: str) -> object:
    try:
        return parse_arguments(arguments)
    except ToolArgumentsError:
        return arguments
