"""Middleware: additions to a run that do not change the loop.

A run has two handlers: `complete` requests a completion, and `call_tool` executes one tool call. A middleware is a function
that gets the `Handlers` of one run and returns new `Handlers`. Usually it wraps one of these two handlers:

    def timing(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            start = time.monotonic()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            print(handlers.run.run_id, handlers.run.agent.name, time.monotonic() - start)

        return replace(handlers, complete=complete)

    swarm = AsyncSwarm(middleware=[timing])

A middleware is called once for each run, in the event loop of the run, so a closure can hold the state of one run. The first
middleware in the list is the outermost. This is the full order with aswarm's own middleware; the first is the outermost:

    budget > debug > recorder > the user's > retries > rate limits > source

A middleware must follow these rules. `aswarm.testing.check_middleware` tests them:

- A handler wraps every generator that it reads in `contextlib.aclosing`, so that leaving a run closes all generators.
- No cancel scope, timeout or task group is open across a `yield` (PEP 789).
- A handler passes on a cancellation quickly: a `finally` awaits nothing for long.
- A handler passes `started` on to the inner handler. Or it awaits `started` once, directly before the function runs.

Middleware runs on the event loop and must not block it. A middleware may change the request or pass on another request. To
send a request twice, it passes on `request.copy()`. It may set `call.arguments` before the call runs. It may also answer the
call itself: return `ToolOutcome("text")` without calling the inner handler. `ToolOutcome("text", unknown=True)` means that
the call has started, perhaps in an earlier process, and that its outcome is unknown. `Response.unknown_calls` lists such
calls. If `call.is_repeatable`, the call may run again. If a handler raises an exception, the run ends with a RunError that
has the partial response. A handler must always pass on `anyio`'s cancellation.

`handlers.run.on_end(callback)` calls the callback once at the end of the run, even after an error or a cancellation.
`handlers.run.log_fields` is for log records. `MiddlewareWithTools` also gives functions to the agents.

Ready-made: `retry`, `fallback`, `hedge`, `cache`, `record` and `replay`, `redact`, `clip_results`, `spill_results`,
`summarize`, `keep_prefix`, `diagnose_cache`.
"""

from aswarm._values import public_names as _public
from aswarm.extensions import (
    CompletionHandler,
    CompletionRequest,
    EndCallback,
    Handlers,
    Middleware,
    MiddlewareWithTools,
    RunInfo,
    Started,
    ToolCall,
    ToolHandler,
    ToolOutcome,
)

from ._cache import cache
from ._hedge import hedge
from ._keep_prefix import LateRole, diagnose_cache, keep_prefix
from ._long_results import clip_results, spill_results
from ._recording import record, replay
from ._redact import redact
from ._retry import fallback, retry
from ._summarize import summarize

__all__ = [
    "CompletionHandler",
    "CompletionRequest",
    "EndCallback",
    "Handlers",
    "LateRole",
    "Middleware",
    "MiddlewareWithTools",
    "RunInfo",
    "Started",
    "ToolCall",
    "ToolHandler",
    "ToolOutcome",
    "cache",
    "clip_results",
    "diagnose_cache",
    "fallback",
    "hedge",
    "keep_prefix",
    "record",
    "redact",
    "replay",
    "retry",
    "spill_results",
    "summarize",
]

_public.publish(globals())
