"""`Swarm`: the front for scripts, notebooks and code that comes from Swarm, without `await`.

It has no loop of its own: it waits for the one engine of `AsyncSwarm`. What blocks (plain functions and instructions,
hooks, blocking clients) runs in the thread of the caller, as in a script.
"""

from __future__ import annotations

import functools
import inspect
import math
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self, overload

from ._agent import Agent, Response
from ._arguments import Messages
from ._caller import Caller, CallersThread, in_callers_thread
from ._client import make_blocking_client
from ._completions import source_for
from ._execution import ToolErrorHook, ToolFailure
from ._interrupts import Interrupts
from ._pace import RateLimits
from ._per_process import PerProcess
from ._request import CompletionSource
from ._shared_loop import SharedLoop
from ._swarm import AsyncSwarm
from ._sync_streams import SyncClassicStream, SyncEventStream
from ._threads import Workplace
from ._tools import is_async


class Swarm:
    """Runs agents and waits for them. May be shared by any number of threads.

    `client`: a blocking `OpenAI` or an `AsyncOpenAI` (Azure and subclasses included), anything with a plain or async
    `chat.completions.create`, or a `CompletionSource`. Without one, a blocking `OpenAI()` is made on first use, for each
    process, and closed by `close()`. A client that was passed in is never closed.

    Plain functions, plain instructions, a plain `tool_error` and what a blocking client does run in the caller's thread,
    except functions with `@tool(concurrent=True)`, `timeout` or `abandon_on_cancel`, which take a thread of their own.
    Async functions run on an event loop that the waiting callers step; where one runs already, as in a notebook, a
    thread does. Ctrl-C cancels the run, waits until it has ended, and raises KeyboardInterrupt.

    The keywords are those of `AsyncSwarm`, but for `transport`: what waits for one run at a time needs no wide pool.
    """

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
    ) -> None:
        self._engine = _Engine(
            client,
            concurrent_tools=concurrent_tools,
            tool_error=None if tool_error is None else functools.partial(_asked_in_callers_thread, tool_error),
            max_threads=max_threads,
            include_usage=include_usage,
            empty_content=empty_content,
            limits=limits,
        )
        self._loops = PerProcess(SharedLoop, SharedLoop.abandon)
        self._when_dropped = weakref.finalize(self, _drop, self._loops, self._engine.own_clients)

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
    ) -> Response | SyncClassicStream:
        """Run until the model answers and return the `Response`; with `stream=True`, a generator of Swarm's events.

        Takes what `AsyncSwarm.run` takes and raises what it raises, and KeyboardInterrupt at Ctrl-C; each exception
        carries `.response`, what had happened until then.
        """
        if stream:
            return self.run_and_stream(
                agent, messages, context_variables, model_override, debug, max_turns, execute_tools, resume=resume
            )
        run = functools.partial(self._engine.run, agent, messages, context_variables, model_override, False)
        with Interrupts() as interrupts:
            return self._caller().wait_for(lambda: run(debug, max_turns, execute_tools, resume=resume), interrupts)

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
    ) -> SyncClassicStream:
        """Swarm's name for `run(..., stream=True)`."""
        stream = self._engine.run_and_stream(
            agent, messages, context_variables, model_override, debug, max_turns, execute_tools, resume=resume
        )
        return SyncClassicStream(stream, self._caller(), self)

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
    ) -> SyncEventStream:
        """Run with typed events, live: `with swarm.stream(...) as run: for event in run: ...`.

        Takes what `run` takes and raises what it raises. `run.response` is valid however the block ended.
        """
        stream = self._engine.stream(
            agent, messages, context_variables, model_override, debug, max_turns, execute_tools, resume=resume
        )
        return SyncEventStream(stream, self._caller(), self)

    def _caller(self) -> Caller:
        return Caller(self._loops.get())

    # --- closing ---

    def close(self) -> None:
        """End what is open, and close the client that was made here. The swarm may be used again."""
        with Interrupts():
            _close(self._loops, self._engine.own_clients)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _close(loops: PerProcess[SharedLoop], clients: PerProcess[Any]) -> None:
    loop = loops.pop()
    if loop is not None:
        loop.close()
    client = clients.pop()
    if client is not None:
        client.close()


def _drop(loops: PerProcess[SharedLoop], clients: PerProcess[Any]) -> None:
    _close(loops, clients)
    for loop in loops.inherited:
        loop.forget()


async def _asked_in_callers_thread(hook: ToolErrorHook, failure: ToolFailure) -> str:
    told = hook(failure) if is_async(hook) else await in_callers_thread(functools.partial(hook, failure))
    return await told if inspect.isawaitable(told) else told


class _Engine(AsyncSwarm):
    """The one engine, for callers that wait: what blocks goes to their threads."""

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.own_clients = PerProcess(make_blocking_client)

    @property
    def client(self) -> Any:
        return self._client if self._client is not None else self.own_clients.get()

    def use(self, client: Any) -> None:
        """Use this client from now on; None for one of its own."""
        if client is not None:
            self._source_of(client)
        self._client = client

    def _source_of(self, client: Any) -> CompletionSource:
        return source_for(client, in_callers_thread)

    def _workplace(self) -> Workplace:
        return CallersThread(self._threads.get())
