"""Middlewares that each break one rule of `aswarm.middleware`, with the text of the rule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import anyio

from aswarm.middleware import (
    CompletionHandler,
    CompletionRequest,
    Middleware,
    Started,
    ToolCall,
    ToolHandler,
    ToolOutcome,
)
from tests.support.middleware.middlewares import Chunks, around_calls, around_completions

SCOPE = "no cancel scope, timeout or task group may be open across a `yield`"
CLOSED = "leaving a run must close every generator that a handler reads"
CANCELLED = "a cancellation must be passed on"
STARTED = "`started` must be awaited once"
ENDS = "leaving a run must end it soon"
TASKS = "a task must not outlive its run"


async def scope_across_a_yield(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    with anyio.fail_after(60):
        async with aclosing(inner(request)) as chunks:
            async for chunk in chunks:
                yield chunk


async def group_across_a_yield(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    async with anyio.create_task_group(), aclosing(inner(request)) as chunks:
        async for chunk in chunks:
            yield chunk


async def scope_around_each_chunk(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    async with aclosing(inner(request)) as chunks:
        async for chunk in chunks:
            with anyio.move_on_after(60):
                yield chunk


async def not_closed(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    async for chunk in inner(request):
        yield chunk


KEPT: list[Any] = []


async def kept_open(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    KEPT.append(inner(request))
    async for chunk in KEPT[-1]:
        yield chunk


async def swallows_in_complete(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    try:
        async with aclosing(inner(request)) as chunks:
            async for chunk in chunks:
                yield chunk
    except BaseException:
        yield {"choices": [{"message": {"content": "Sorry."}, "finish_reason": "stop"}]}


async def swallows_quietly(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    with suppress(BaseException):
        async with aclosing(inner(request)) as chunks:
            async for chunk in chunks:
                yield chunk


async def swallows_in_call(
    inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started
) -> ToolOutcome:
    try:
        return await inner(call, context, started)
    except BaseException as error:
        return ToolOutcome(f"failed: {type(error).__name__}")


async def started_twice(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
    await started()
    return await inner(call, context, started)


async def started_never(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
    async def nothing() -> None:
        """Do nothing; `started` is not passed on."""

    return await inner(call, context, nothing)


async def holds_on(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    async with aclosing(inner(request)) as chunks:
        async for chunk in chunks:
            try:
                yield chunk
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep_forever()
                raise


async def holds_on_when_cancelled(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    try:
        async with aclosing(inner(request)) as chunks:
            async for chunk in chunks:
                yield chunk
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()


LEAKED: list[Any] = []


async def leaks_a_task(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    LEAKED.append(asyncio.ensure_future(asyncio.sleep(600)))
    async with aclosing(inner(request)) as chunks:
        async for chunk in chunks:
            yield chunk


async def timeout_across_a_yield(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    async with asyncio.timeout(60), aclosing(inner(request)) as chunks:
        async for chunk in chunks:
            yield chunk


async def asyncio_group_across_a_yield(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
    async with asyncio.TaskGroup(), aclosing(inner(request)) as chunks:
        async for chunk in chunks:
            yield chunk


COMPLETIONS: dict[Callable[..., Chunks], str] = {
    scope_across_a_yield: SCOPE,
    group_across_a_yield: SCOPE,
    scope_around_each_chunk: SCOPE,
    not_closed: CLOSED,
    swallows_in_complete: CANCELLED,
    swallows_quietly: CANCELLED,
    holds_on: ENDS,
    holds_on_when_cancelled: ENDS,
}
CALLS: dict[Callable[..., Any], str] = {swallows_in_call: CANCELLED, started_twice: STARTED, started_never: STARTED}
# Faults that only asyncio has, or that take long to find.
ON_ASYNCIO: dict[Callable[..., Chunks], str] = {
    kept_open: CLOSED,
    leaks_a_task: TASKS,
    timeout_across_a_yield: SCOPE,
    asyncio_group_across_a_yield: SCOPE,
}
ONLY_ON_ASYNCIO = {handle.__name__ for handle in ON_ASYNCIO}
BAD: dict[str, tuple[Middleware, str]] = {
    **{handle.__name__: (around_completions(handle), rule) for handle, rule in {**COMPLETIONS, **ON_ASYNCIO}.items()},
    **{handle.__name__: (around_calls(handle), rule) for handle, rule in CALLS.items()},
}
RULES = [SCOPE, CLOSED, CANCELLED, STARTED, ENDS, TASKS]
