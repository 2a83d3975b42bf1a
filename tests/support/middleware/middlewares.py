"""Helpers to write a middleware in tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aswarm.middleware import (
    CompletionHandler,
    CompletionRequest,
    Handlers,
    Middleware,
    Started,
    ToolCall,
    ToolHandler,
    ToolOutcome,
)

Chunks = AsyncGenerator[Mapping[str, Any], None]
HandleCompletion = Callable[[CompletionHandler, CompletionRequest], Chunks]
HandleCall = Callable[[ToolHandler, ToolCall, dict[str, Any], Started], Awaitable[ToolOutcome]]


def around_completions(handle: HandleCompletion) -> Middleware:
    """Return a middleware whose `complete` is this function, with the inner handler as its first argument."""

    def wrap(handlers: Handlers) -> Handlers:
        return replace(handlers, complete=lambda request: handle(handlers.complete, request))

    return wrap


def around_calls(handle: HandleCall) -> Middleware:
    """Return the same for `call_tool`."""

    def wrap(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            return await handle(handlers.call_tool, call, context, started)

        return replace(handlers, call_tool=call_tool)

    return wrap


async def passed_on(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    """Yield the chunks of the inner handler unchanged."""
    async with aclosing(inner(request)) as chunks:
        async for chunk in chunks:
            yield chunk


def asking_first(change: Callable[[dict[str, Any]], object]) -> Middleware:
    """Return a middleware that changes the body of each request."""

    def changed(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        change(request.body)
        return inner(request)

    return around_completions(changed)


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return a chunk of Chat Completions."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}
