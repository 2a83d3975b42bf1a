"""`Swarm`: the front for scripts, notebooks and code that comes from Swarm, without `await`.

It waits for runs of the one engine, `AsyncSwarm`. What blocks (plain functions and instructions, hooks, blocking
clients) runs in the thread of the caller, as in a script.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
import warnings
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from aswarm._agent import Agent, Response
from aswarm._providers.default_client import make_blocking_client
from aswarm._providers.openai import source_for
from aswarm._rate_limits.policy import RateLimits
from aswarm._run.execution import ToolErrorHook, ToolFailure
from aswarm._run.handlers import Middleware
from aswarm._run.options import Messages
from aswarm._runtime.forks import PerProcess
from aswarm._runtime.threads import FunctionRunner
from aswarm._swarm import AsyncSwarm
from aswarm._tools.tool import is_async
from aswarm._wire.request import CompletionSource

from .caller import Caller, CallerThreadRunner, in_callers_thread
from .event_loop import event_loop_thread
from .interrupts import Interrupts
from .sync_streams import SyncClassicStream, SyncEventStream

S = TypeVar("S", bound=SyncClassicStream | SyncEventStream)

# The methods that a subclass of Swarm's `Swarm` could override, and what to do instead.
_HOOKS = {
    "get_chat_completion": "pass a client, or a CompletionSource as the client",
    "handle_function_result": "return a Result, or rewrite failures with tool_error=",
    "handle_tool_calls": "decorate functions with @tool, or rewrite failures with tool_error=",
}


class Swarm:
    """Runs agents and waits for them. May be shared by any number of threads.

    `client`: a blocking `OpenAI` or an `AsyncOpenAI` (Azure and subclasses included), anything with a plain or async
    `chat.completions.create`, or a `CompletionSource`. Without one, a blocking `OpenAI()` is made on first use, for each
    process, and closed by `close()`. A client that was passed in is never closed.

    Plain functions, plain instructions, a plain `tool_error` and a blocking client run in the caller's thread, except
    functions with `@tool(concurrent=True)`, `timeout` or `abandon_on_cancel`, which run in a thread of their own. Async
    functions and middleware run on one event loop, in a thread of this process that starts with the first run and ends
    with the program. They must not block it: every Swarm of the process shares it. Ctrl-C cancels the run, waits until it has ended, and raises KeyboardInterrupt; a second one does not wait.

    The keywords are those of `AsyncSwarm` without `transport`: a caller that waits for one run at a time needs no large
    pool of connections. In a forked child process a Swarm makes a new client; replace one that was passed in.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Warn about methods of Swarm's that are overridden, and that are never called here."""
        super().__init_subclass__(**kwargs)
        for name in sorted(_HOOKS.keys() & vars(cls).keys()):
            warnings.warn(f"{cls.__name__}.{name} is never called; {_HOOKS[name]}", UserWarning, stacklevel=2)

    def __init__(
        self,
        client: Any = None,
        *,
        concurrent_tools: bool = True,
        tool_error: ToolErrorHook | None = None,
        max_threads: int = 40,
        include_usage: bool = True,
        empty_content: Literal[""] | None = None,
        limits: RateLimits | None = None,
        middleware: Iterable[Middleware] = (),
    ) -> None:
        self._engine = _Engine(
            client,
            concurrent_tools=concurrent_tools,
            tool_error=None if tool_error is None else functools.partial(_call_hook, tool_error),
            max_threads=max_threads,
            include_usage=include_usage,
            empty_content=empty_content,
            limits=limits,
            middleware=middleware,
        )
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[SyncClassicStream | SyncEventStream] = weakref.WeakSet()

    @property
    def client(self) -> Any:
        """The client that was passed in, or the blocking `OpenAI` made for this process. May be set."""
        return self._engine.client

    @client.setter
    def client(self, client: Any) -> None:
        self._engine.use(client)

    # --- the three ways to run ---

    @overload
    def run(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        stream: Literal[False] = False,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        resume: bool = False,
        run_id: str | None = None,
    ) -> Response: ...

    @overload
    def run(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        *,
        stream: Literal[True],
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        resume: bool = False,
        run_id: str | None = None,
    ) -> SyncClassicStream: ...

    @overload
    def run(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Mapping[str, Any] | None,
        model_override: str | None,
        stream: Literal[True],
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        resume: bool = False,
        run_id: str | None = None,
    ) -> SyncClassicStream: ...

    @overload
    def run(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        stream: bool = False,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        resume: bool = False,
        run_id: str | None = None,
    ) -> Response | SyncClassicStream: ...

    def run(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        stream: bool = False,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        resume: bool = False,
        run_id: str | None = None,
    ) -> Response | SyncClassicStream:
        """Run until the model answers and return the `Response`; with `stream=True`, a generator of Swarm's events.

        Takes what `AsyncSwarm.run` takes and raises what it raises, and KeyboardInterrupt at Ctrl-C; each exception
        carries `.response`, what had happened until then.
        """
        if stream:
            return self.run_and_stream(
                agent,
                messages,
                context_variables,
                model_override,
                debug,
                max_turns,
                execute_tools,
                resume=resume,
                run_id=run_id,
            )
        begin = functools.partial(self._engine.run, agent, messages, context_variables, model_override, False)
        run = functools.partial(begin, debug, max_turns, execute_tools, resume=resume, run_id=run_id)
        caller = _make_caller()
        caller.loop.check()
        with Interrupts() as interrupts:
            return caller.wait_for(run, interrupts)

    def run_and_stream(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        resume: bool = False,
        run_id: str | None = None,
    ) -> SyncClassicStream:
        """Swarm's name for `run(..., stream=True)`."""
        begin = functools.partial(self._engine.run_and_stream, agent, messages, context_variables, model_override)
        stream = begin(debug, max_turns, execute_tools, resume=resume, run_id=run_id)
        return self._open(SyncClassicStream(stream, _make_caller()))

    def stream(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        resume: bool = False,
        run_id: str | None = None,
        deltas: bool = True,
    ) -> SyncEventStream:
        """Run with typed events, live: `with swarm.stream(...) as run: for event in run: ...`.

        Takes what `AsyncSwarm.stream` takes, and raises what `run` raises. `run.response` is valid however the block ended.
        """
        begin = functools.partial(self._engine.stream, agent, messages, context_variables, model_override)
        stream = begin(debug, max_turns, execute_tools, resume=resume, run_id=run_id, deltas=deltas)
        return self._open(SyncEventStream(stream, _make_caller()))

    # --- closing ---

    def close(self) -> None:
        """End the open streams, except those that are being read, and close a client that this Swarm made.

        The Swarm may be used again.
        """
        with self._lock:
            streams = tuple(self._streams)
        with ExitStack() as stack:  # what one of them raises does not keep the others open
            client = self._engine.own_clients.pop()
            if client is not None:
                stack.callback(client.close)
            for stream in streams:
                stack.callback(stream.close_if_idle)

    def _open(self, stream: S) -> S:
        with self._lock:
            self._streams.add(stream)
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _make_caller() -> Caller:
    with Interrupts():  # the first call starts a thread, and must not be interrupted half way
        return Caller(event_loop_thread())


async def _call_hook(hook: ToolErrorHook, failure: ToolFailure) -> str:
    text = hook(failure) if is_async(hook) else await in_callers_thread(functools.partial(hook, failure))
    return await text if inspect.isawaitable(text) else text


class _Engine(AsyncSwarm):
    """The engine for callers that wait: what blocks goes to their threads."""

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.own_clients = PerProcess(make_blocking_client)

    @property
    def client(self) -> Any:
        return self._client if self._client is not None else self.own_clients.get()

    def use(self, client: Any) -> None:
        """Use this client from now on; with None, make one."""
        if client is not None:
            self._source_of(client)
        self._client = client

    def _source_of(self, client: Any) -> CompletionSource:
        return source_for(client, in_callers_thread)

    def _function_runner(self) -> FunctionRunner:
        return CallerThreadRunner(self._threads.get())
