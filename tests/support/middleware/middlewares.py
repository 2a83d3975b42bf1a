"""Helpers to write a middleware in tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio.from_thread

from aswarm import Agent, AsyncSwarm, Swarm, tool
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


def functions_that_run(inner: AsyncSwarm, blocking: Callable[[], Swarm]) -> dict[str, Any]:
    """Return functions that start a run of the agent "inner", each in another way."""

    async def ask() -> str:
        return (await inner.run(Agent(name="inner"), "Hi", run_id="inner")).text

    def ask_in_thread() -> str:
        return anyio.from_thread.run(ask)

    def ask_blocking() -> str:
        return blocking().run(Agent(name="inner"), "Hi").text

    return {
        "async": ask,
        "thread": ask_in_thread,
        "own thread": tool(timeout=30)(ask_in_thread),
        "on the loop": tool(thread=False)(ask),
        "blocking": ask_blocking,
    }


WAYS_TO_START = ["async", "thread", "own thread", "on the loop", "blocking"]
