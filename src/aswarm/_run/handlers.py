"""How a run acts on the world: its two handlers, and the middleware that wraps them.

`complete` asks for a completion, `call_tool` carries out one tool call. Everything that is added to a run is middleware:
a function that gets the handlers of one run and returns handlers, usually with one of them wrapped. This module holds the
types and the order of wrapping; it never runs anything.
"""

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm._runtime.backend import HiddenGenerators
from aswarm._usage import Usage
from aswarm._wire.request import CompletionRequest

from .current_call import OuterRun
from .plan import ToolCall, ToolOutcome
from .state import EndCallback, RunState

CompletionHandler: TypeAlias = Callable[[CompletionRequest], AsyncGenerator[Mapping[str, Any], None]]
"""Sends one request and yields the chunks of its answer, as Chat Completions dicts; a whole answer is one chunk."""
Started: TypeAlias = Callable[[], Awaitable[None]]
"""Marks the start of a call. The innermost handler awaits it directly before it runs the function.

It is awaited because a middleware may have to record that a function runs before it does.
"""


class ToolHandler(Protocol):
    """Carries out one tool call."""

    def __call__(self, call: ToolCall, context: dict[str, Any], started: Started, /) -> Awaitable[ToolOutcome]:
        """Return what the call led to.

        `context` is the run's own dict of context variables. `started` is awaited once, directly before the function
        runs, and not at all where it does not run. A RunError that `started` raises means that the function must not
        run; it is passed on. Whatever this raises ends the run.
        """
        ...


class RunInfo:
    """What a middleware may know about its run. A live view: each attribute is read from the running run."""

    __slots__ = ("_id", "_outer_run", "_state", "_tool_call")

    def __init__(
        self, run_id: str, state: RunState, tool_call: ToolCall | None = None, outer_run: OuterRun | None = None
    ) -> None:
        self._id = run_id
        self._outer_run = outer_run
        self._tool_call = tool_call
        self._state = state

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._id

    @property
    def tool_call(self) -> ToolCall | None:
        """The tool call of the enclosing run that started this run, or None."""
        return self._tool_call

    @property
    def agent(self) -> Agent:
        """The active agent."""
        return self._state.agent

    @property
    def context_variables(self) -> Mapping[str, Any]:
        """The context variables, read-only; values inside it are shared with the run."""
        return MappingProxyType(self._state.context)

    def add_usage(self, usage: Usage, model: str) -> None:
        """Count what a request of the middleware's own has used: for the run, the runs around it, and their budgets.

        Raises ConfigurationError if a budget limits the cost and has no price for the model.
        """
        self._state.spending.add(usage)
        if self._state.budget is not None:
            self._state.budget.add_price(usage, model)

    @property
    def log_fields(self) -> dict[str, Any]:
        """The id of the run and the name of its agent, for `logger.info(..., extra=run.log_fields)`."""
        return self._state.log_fields

    def on_end(self, callback: EndCallback) -> None:
        """Have `callback(response, error)` called once, when the run ends in any way.

        `response` says why: its `stop` is "error" where there is an `error`, an `AswarmError`, and "cancelled" where the run
        was left early. Called on the event loop of the run, before its caller gets the response or the error, and after all
        handlers have ended. The callback must not block. The first that was added is the first that is called, so that of
        the innermost middleware. What it raises is logged.
        """
        self._state.end_callbacks += (callback,)


# The fields of a log record that is about no run: a format with `%(run_id)s` works for it too.
NO_RUN: Mapping[str, None] = {"run_id": None, "agent": None}


def outer_run(info: RunInfo) -> OuterRun | None:
    """What middleware of ours needs to begin a run inside this one; None where a test has made the handlers."""
    return info._outer_run  # noqa: SLF001 - of this module


@dataclass(frozen=True, slots=True)
class Handlers:
    """The two handlers of one run, and information about the run. To change one: `dataclasses.replace(handlers, ...)`.

    `complete(request)` returns an async generator of the chunks of one completion, or of one whole completion.
    `call_tool(call, context, started)` returns, when awaited, the `ToolOutcome` of the call.
    """

    complete: CompletionHandler
    call_tool: ToolHandler
    run: RunInfo


Middleware: TypeAlias = Callable[[Handlers], Handlers]
"""Wraps the handlers of a run. It is called once for each run, in its event loop; a closure can hold the state of that run."""


@dataclass(frozen=True, slots=True)
class MiddlewareStack:
    """The middleware of one run. The order of these fields is the order of wrapping: the first is the outermost."""

    budget: Middleware | None = None
    debug: Middleware | None = None
    journal: Middleware | None = None
    user: Middleware | None = None
    retries: Middleware | None = None
    rate_limits: Middleware | None = None

    def wrap(self, handlers: Handlers) -> Handlers:
        """The handlers with all middleware around them."""
        for field in reversed(fields(self)):
            middleware: Middleware | None = getattr(self, field.name)
            if middleware is not None:
                handlers = middleware(handlers)
        return handlers


def chain(middleware: Iterable[Middleware]) -> Middleware | None:
    """The middleware of a user as one, the first outermost, or None for an empty list.

    A change that it makes to a request reaches neither the history of the run nor another run. Raises ConfigurationError
    for a middleware that is not callable, and for one that is not in a list.
    """
    if not isinstance(middleware, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"middleware must be a list, not {type(middleware).__name__}; write middleware=[...], also for one"
        )
    wraps = tuple(middleware)
    for wrap in wraps:
        if not callable(wrap):
            raise ConfigurationError(
                f"middleware must be functions from Handlers to Handlers, not {type(wrap).__name__}; see aswarm.middleware"
            )

    def chained(handlers: Handlers) -> Handlers:
        for wrap in reversed(wraps):
            handlers = _checked(wrap(handlers), wrap)
            complete = _checked_complete(handlers.complete, f"of the middleware {_name_of(wrap)}")
            handlers = replace(handlers, complete=complete)
        return replace(handlers, complete=isolated(handlers.complete))

    return chained if wraps else None


def _checked(handlers: object, wrap: Middleware) -> Handlers:
    if not isinstance(handlers, Handlers):
        raise ConfigurationError(
            f"the middleware {_name_of(wrap)} returned {_type_of_mistake(handlers)}; it must be a plain function that returns "
            "Handlers, for example dataclasses.replace(handlers, complete=...)"
        )
    return handlers


def _name_of(wrap: Middleware) -> str:
    return str(getattr(wrap, "__qualname__", type(wrap).__name__))


def _type_of_mistake(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()  # else Python warns that it was never awaited
    return type(value).__name__


def isolated(complete: CompletionHandler) -> CompletionHandler:
    """The same handler for code that is not ours: it gets a request that it may change.

    The event loop does not see the generators that such code begins between its chunks; see `HiddenGenerators`.
    """
    complete = _checked_complete(complete, "of a CompletionSource")

    async def complete_isolated(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        async with aclosing(complete(request.copy())) as chunks:
            while (chunk := await HiddenGenerators(anext(chunks, _END))) is not _END:
                yield chunk

    return complete_isolated


def _checked_complete(complete: CompletionHandler, owner: str) -> CompletionHandler:
    def complete_checked(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        return _checked_chunks(complete(request), owner)

    return complete_checked


_END: Any = object()


def _checked_chunks(
    chunks: AsyncGenerator[Mapping[str, Any], None], owner: str
) -> AsyncGenerator[Mapping[str, Any], None]:
    if not (hasattr(chunks, "__anext__") and hasattr(chunks, "aclose")):
        raise ConfigurationError(
            f"`complete` {owner} must return an async generator, as an `async def` with "
            f"`yield` does; it returned {_type_of_mistake(chunks)}"
        )
    return chunks
