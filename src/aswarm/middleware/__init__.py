"""Middleware: what is added to a run without changing the loop.

A run acts on the world through two handlers: `complete` asks for a completion, `call_tool` carries out one tool call. A
middleware is a function that gets the `Handlers` of one run and returns `Handlers`, usually with one of them wrapped:

    def timing(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            begun = time.monotonic()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            print(handlers.run.id, handlers.run.agent.name, time.monotonic() - begun)

        return replace(handlers, complete=complete)

    swarm = AsyncSwarm(middleware=[timing])

It is called once for each run, in the event loop of the run, so a closure can hold the state of that run. The first in
the list is the outermost. With what aswarm adds itself, the order is, from the outside in:

    budget > debug > journal > the user's > retries > rate limits > source

Rules, which `aswarm.testing.check_middleware` proves:

- Every generator that a handler reads stands in `contextlib.aclosing`, so that leaving a run closes all of them.
- No cancel scope, timeout or task group is open across a `yield` (PEP 789).
- A cancellation is passed on, and soon: nothing is awaited for long in a `finally`.
- `started` is passed on to the inner handler, or awaited once, directly before the function runs.

Middleware runs on the event loop and must not block it. The request belongs to the middleware: it may change it, or pass
on another one; to ask twice, it passes on `request.copy()`. `call.arguments` may be set before a call is carried out; a
`ToolOutcome("text")` that is returned without calling the inner handler answers the call in its place.
`ToolOutcome("text", unknown=True)` says that the call has begun, perhaps in an earlier process, and that its outcome is
not known: the call is then in `Response.unknown_calls`. `call.is_repeatable` says whether it may run again. What a handler
raises ends the run, as a RunError with the partial response; `anyio`'s cancellation is passed on.

`handlers.run.on_end(callback)` is for what ends with the run, however it ends; `handlers.run.log_fields` for log records.

Ready-made: `retry`, `fallback`, `cache`, `record` and `replay`, `redact`, `clip_results`, `summarise`.
"""

from aswarm import _public
from aswarm._run.handlers import CompletionHandler, Handlers, Middleware, RunInfo, Started, ToolHandler
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._wire.request import CompletionRequest

from ._cache import cache
from ._clip import clip_results
from ._fallback import fallback
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
    "record",
    "redact",
    "replay",
    "retry",
    "summarise",
]

_public.publish(globals())
