"""The two handlers of a run, and the middleware that wraps them.

`complete` requests a completion, and `call_tool` executes one tool call. A middleware is a function that gets the handlers
of one run and returns new handlers; usually it wraps one of them. This module defines the types and the order of wrapping.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from aswarm._providers import openai
from aswarm._runtime.backend import HiddenGenerators
from aswarm._tools.conversion import arguments_or_text
from aswarm._tools.tool import Tool
from aswarm._tools.toolbox import tools_of
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm._values.public_names import call_of
from aswarm._values.text import NO_RUN, has_colours
from aswarm._wire.accumulator import Accumulator
from aswarm._wire.prefix import SentPrompts
from aswarm._wire.request import CompletionRequest, CompletionSource

from .call import ToolCall
from .history import recorded_form
from .outcome import ToolOutcome
from .run_info import RunInfo

CompletionHandler: TypeAlias = Callable[[CompletionRequest], AsyncGenerator[Mapping[str, Any], None]]
"""Sends one request and yields the chunks of the answer, as Chat Completions dicts. Without streaming, it yields one chunk."""
Started: TypeAlias = Callable[[], Awaitable[None]]
"""Reports the start of a call. The innermost handler awaits it directly before it runs the function.

It is async because a middleware may have to store the start in a database first.
"""


class ToolHandler(Protocol):
    """Executes one tool call."""

    def __call__(self, call: ToolCall, context: dict[str, Any], started: Started, /) -> Awaitable[ToolOutcome]:
        """Return the outcome of the call. An exception ends the run.

        Args:
            call: The call.
            context: The run's own dict of context variables.
            started: The handler awaits it once, directly before the function runs, and never if the function does not run.
                If it raises a RunError, the function must not run, and the error must propagate.
        """
        ...


_END: Any = object()


@dataclass(frozen=True, slots=True)
class Handlers:
    """The two handlers of one run, and information about the run. Use `dataclasses.replace(handlers, ...)` to wrap a handler.

    Args:
        complete: `complete(request)` returns an async generator of the chunks of one completion, or of one whole completion.
        call_tool: `call_tool(call, context, started)` returns, when awaited, the `ToolOutcome` of the call.
        run: The run.
        may_hold: Whether `call_tool` may raise Hold for any call. If so, two calls that may use the same data do not run
            together. A middleware whose `call_tool` raises Hold must set it; otherwise the run raises ConfigurationError.
        source: The source of requests that have no `source` of their own.
    """

    complete: CompletionHandler
    call_tool: ToolHandler
    run: RunInfo
    may_hold: bool = False
    source: CompletionSource | None = None


Middleware: TypeAlias = Callable[[Handlers], Handlers]
"""Wraps the handlers of a run. Called once for each run, in its event loop, so a closure can hold the state of one run."""


@dataclass(frozen=True, slots=True)
class MiddlewareWithTools:
    """A middleware with functions of its own, which the model may call in every run of the swarm.

        AsyncSwarm(middleware=[MiddlewareWithTools(wrap, [read_notes])])

    They are in each request of an agent that has functions, and of any agent whose history has results of tools, after the
    functions of the agent. So the start of the prompt stays the same. Their calls are calls like any other.

    Args:
        wrap: The middleware.
        functions: Functions and tools, as in `Agent(functions=[...])`.

    Raises:
        ConfigurationError: For a function that cannot be a tool. A run raises it for an agent that has another function with one
            of the names.
    """

    wrap: Middleware
    functions: Sequence[Any]

    def __post_init__(self) -> None:
        tools_of_middleware([self])

    def __call__(self, handlers: Handlers) -> Handlers:
        """Wrap the handlers of a run."""
        return self.wrap(handlers)


@dataclass(frozen=True, slots=True)
class MiddlewareStack:
    """The middleware of one run, in the order of its fields: the first is the outermost."""

    budget: Middleware | None = None
    debug: Middleware | None = None
    recorder: Middleware | None = None
    eager_tools: Middleware | None = None
    user: Middleware | None = None
    retries: Middleware | None = None
    prompts: Middleware | None = None
    rate_limits: Middleware | None = None

    def wrap(self, handlers: Handlers) -> Handlers:
        """Return the handlers with all middleware around them."""
        for name in _INSIDE_OUT:
            middleware: Middleware | None = getattr(self, name)
            if middleware is not None:
                handlers = middleware(handlers)
        return handlers


_INSIDE_OUT = tuple(field.name for field in reversed(fields(MiddlewareStack)))


# OpenAI's Swarm calls these methods in `run`, so programs override them in a subclass. Here a middleware wraps a handler
# instead. The value is the name of that handler.
STEPS = {"get_chat_completion": "complete", "handle_function_result": "call_tool", "handle_tool_calls": "call_tool"}


def check_steps(swarm: object, own: Mapping[str, object]) -> None:
    """Raise ConfigurationError if a subclass overrides a method of Swarm that no run calls. `own`: the original methods."""
    for name, handler in STEPS.items():
        method = vars(swarm).get(name) or getattr(type(swarm), name, None)  # no call of `__getattr__` in each run
        if getattr(method, "__func__", method) is not own.get(name):
            raise ConfigurationError(
                f"{type(swarm).__name__} replaces {name}, which run() never calls; pass middleware=[...] with a function "
                f"that wraps `{handler}` (see aswarm.middleware), or write a run() that does not call super().run()"
            )


@dataclass(frozen=True, slots=True)
class Chain:
    """The middleware of the user as one middleware. The first of `wraps` is the outermost. `tools`: their functions, by name."""

    wraps: tuple[Middleware, ...]
    tools: Mapping[str, Tool[..., Any]]

    def __call__(self, handlers: Handlers) -> Handlers:
        for wrap in reversed(self.wraps):
            name, inner = getattr(wrap, "__qualname__", type(wrap).__name__), handlers
            handlers = wrap(inner)
            if not isinstance(handlers, Handlers):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(
                    f"the middleware {name} returned {_type_of_mistake(handlers)}; it must be a plain function that returns "
                    "Handlers, for example dataclasses.replace(handlers, complete=...)"
                )
            may_hold = handlers.may_hold or inner.may_hold
            complete = _checked_complete(handlers.complete, f"of the middleware {name}")
            handlers = replace(handlers, complete=complete, may_hold=may_hold)
        return replace(handlers, complete=isolated(handlers.complete))


def watch_prompts(prompts: SentPrompts) -> Middleware:
    """Return the middleware that remembers the requests to all sources. `prompts`: gets the requests."""
    return lambda handlers: replace(handlers, complete=prompts.watched(handlers.complete))


def chain(middleware: Iterable[Middleware]) -> Chain | None:
    """Return the middleware of the user as one middleware, or None for an empty list. The first of the list is the outermost.

    The middleware gets a copy of each request, so that it cannot change the history of this or another run. Raises
    ConfigurationError if the argument is not a list, or an item of it is not callable.
    """
    if not isinstance(middleware, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"middleware must be a list, not {type(middleware).__name__}; write middleware=[...], even for a single middleware"
        )
    wraps = tuple(middleware)
    for wrap in wraps:
        if not callable(wrap):
            raise ConfigurationError(
                f"middleware must be functions from Handlers to Handlers, not {type(wrap).__name__}; see aswarm.middleware"
            )
        if call := call_of(wrap):
            raise ConfigurationError(f"middleware has the function {wrap.__name__} itself; write middleware=[{call}]")
    return Chain(wraps, tools_of_middleware(wraps)) if wraps else None


def tools_of_middleware(wraps: Iterable[Middleware]) -> dict[str, Tool[..., Any]]:
    """Return the functions of middleware by name. Raises ConfigurationError if two different functions have the same name."""
    own = [wrap.functions for wrap in wraps if isinstance(wrap, MiddlewareWithTools)]
    of_chains = [wrap.tools.values() for wrap in wraps if isinstance(wrap, Chain)]
    functions = [function for each in (*of_chains, *own) for function in each]
    return tools_of(Agent(name="middleware", functions=functions)) if functions else {}


def _type_of_mistake(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()  # without it, Python warns that the coroutine was never awaited
    return type(value).__name__


def isolated(complete: CompletionHandler) -> CompletionHandler:
    """Return a handler that passes a copy of each request to the handler of the user, which may change the copy.

    The event loop does not see the generators that the user's handler starts; see `HiddenGenerators`.
    """
    complete = _checked_complete(complete, "of a CompletionSource")

    async def complete_isolated(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        async with aclosing(complete(request.copy())) as chunks:
            while (chunk := await HiddenGenerators(anext(chunks, _END))) is not _END:
                yield chunk

    return complete_isolated


def _checked_complete(complete: CompletionHandler, owner: str) -> CompletionHandler:
    def complete_checked(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        chunks = complete(request)
        if not (hasattr(chunks, "__anext__") and hasattr(chunks, "aclose")):
            raise ConfigurationError(
                f"`complete` {owner} must return an async generator, as an `async def` with `yield` does; it returned "
                f"{_type_of_mistake(chunks)}"
            )
        return chunks

    return complete_checked


class _IsolatedSource:
    """A source of a user, which gets a copy of each request."""

    def __init__(self, source: CompletionSource) -> None:
        self._complete = isolated(source.complete)
        self.max_retries: int = getattr(source, "max_retries", 0)

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        return self._complete(request)


def source_for(client: Any) -> CompletionSource:
    """Return the `CompletionSource` of a client, for requests to another client than that of the swarm.

    `client`: an `AsyncOpenAI`, an object with `chat.completions.create`, or a `CompletionSource`. It may change the requests,
    so a source that is not aswarm's gets copies. Raises ConfigurationError for any other value, and for a blocking `OpenAI`.
    """
    source = openai.source_for(client)
    return source if isinstance(source, openai.OWN_SOURCES) else _IsolatedSource(source)


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
