"""Middleware: additions to a run that do not change the loop.

A run has two handlers for its effects: `complete` requests a completion, `call_tool` runs one tool call. A middleware is a
function that gets the `Handlers` of one run and returns `Handlers`, usually with one of them wrapped:

    def timing(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            start = time.monotonic()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            print(handlers.run.id, handlers.run.agent.name, time.monotonic() - start)

        return replace(handlers, complete=complete)

    swarm = AsyncSwarm(middleware=[timing])

A middleware is called once for each run, in the event loop of the run, so a closure can keep the state of that run. The first
middleware in the list is the outermost. The full order, with aswarm's own middleware, from the outside in:

    budget > debug > recorder > the user's > retries > rate limits > source

Rules, which `aswarm.testing.check_middleware` proves:

- A handler wraps every generator that it reads in `contextlib.aclosing`, so that leaving a run closes all of them.
- No cancel scope, timeout or task group is open across a `yield` (PEP 789).
- A cancellation is passed on quickly: a `finally` awaits nothing for long.
- `started` is passed on to the inner handler, or awaited once, directly before the function runs.

Middleware runs on the event loop and must not block it. A middleware may change the request or pass on another request; to send
a request twice, pass on `request.copy()`. It may set `call.arguments` before the call runs, or answer the call itself: return
`ToolOutcome("text")` without calling the inner handler. `ToolOutcome("text", unknown=True)` means that the call has started,
perhaps in an earlier process, and its outcome is unknown: the call is then in `Response.unknown_calls`. If
`call.is_repeatable`, the call may run again. An exception of a handler ends the run with a RunError that has the partial
response; `anyio`'s cancellation is passed on.

`handlers.run.on_end(callback)` calls back when the run ends, on every exit; `handlers.run.log_fields` is for log records.

Ready-made: `retry`, `fallback`, `hedge`, `cache`, `record` and `replay`, `redact`, `clip_results`, `summarise`.
"""

from aswarm._run.handlers import CompletionHandler, Handlers, Middleware, RunInfo, Started, ToolHandler
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._values import public as _public
from aswarm._wire.request import CompletionRequest

from ._cache import cache
from ._clip import clip_results
from ._fallback import fallback
from ._hedge import hedge
from ._recording import record, replay
from ._redact import redact
from ._retry import retry
from ._summarise import summarise

__all__ = [
    "CompletionHandler",
    "CompletionRequest",
    "Handlers",
    "Middleware",
    "RunInfo",
    "Started",
    "ToolCall",
    "ToolHandler",
    "ToolOutcome",
    "cache",
    "clip_results",
    "fallback",
    "hedge",
    "record",
    "redact",
    "replay",
    "retry",
    "summarise",
]

_public.publish(globals())
