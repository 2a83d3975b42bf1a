"""`Swarm`: the front for scripts, notebooks and code that comes from Swarm, without `await`.

It waits for runs of the one engine, `AsyncSwarm`. What blocks (plain functions and instructions, hooks, blocking
clients) runs in the thread of the caller, as in a script.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from aswarm._agent import Agent, Response, Result
from aswarm._budget import Budget
from aswarm._decisions import Decisions
from aswarm._output import Output
from aswarm._providers.apis import ApiName
from aswarm._rate_limits.policy import RateLimits
from aswarm._run.debug import debug_print
from aswarm._run.execution import ToolErrorHook
from aswarm._run.handlers import Middleware
from aswarm._run.options import Messages
from aswarm._swarm import STEPS, step_error
from aswarm._tools.conversion import as_result

from .caller import Caller
from .engine import BlockingEngine
from .event_loop import event_loop_thread
from .interrupts import Interrupts
from .sync_streams import SyncClassicStream, SyncEventStream

S = TypeVar("S", bound=SyncClassicStream | SyncEventStream)
T = TypeVar("T")


class Swarm:
    """Runs agents and waits for them. May be shared by any number of threads.

        response = Swarm().run(Agent(instructions="You help the guests of a hotel."), "Good evening!")

    `client`: a blocking `OpenAI` or an `AsyncOpenAI` (Azure and subclasses included), anything with a plain or async
    `chat.completions.create`, or a `CompletionSource`. Without one, a blocking `OpenAI()` is made on first use, for each
    process, and closed by `close()`. A client that was passed in is never closed: make it with `with OpenAI(...) as client`.

    Plain functions, plain instructions, a plain `tool_error` and a blocking client run in the caller's thread, except
    functions with `@tool(concurrent=True)`, `timeout` or `abandon_on_cancel`, which run in a thread of their own. Async
    functions and middleware run on one event loop, in a thread of this process that starts with the first run and ends
    with the program. They must not block it: every Swarm of the process shares it. Ctrl-C cancels the run, waits until
    it has ended, and raises KeyboardInterrupt; a second one does not wait.

    The keywords are those of `AsyncSwarm` without `transport`: a caller that waits for one run at a time needs no large
    pool of connections. In a forked child process a Swarm makes a new client; replace one that was passed in.
    """

    def __init__(
        self,
        client: Any = None,
        *,
        model: str | None = None,
        api: ApiName = "auto",
        concurrent_tools: bool = True,
        tool_error: ToolErrorHook | None = None,
        max_threads: int = 40,
        include_usage: bool | None = None,
        empty_content: Literal[""] | None = None,
        limits: RateLimits | None = None,
        middleware: Iterable[Middleware] = (),
        budget: Budget | None = None,
    ) -> None:
        self._engine = BlockingEngine(
            client,
            model=model,
            api=api,
            concurrent_tools=concurrent_tools,
            tool_error=tool_error,
            max_threads=max_threads,
            include_usage=include_usage,
            empty_content=empty_content,
            limits=limits,
            middleware=middleware,
            budget=budget,
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
        resume: bool | Decisions = False,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: type[T] | Output[T],
    ) -> Response[T]: ...

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
        resume: bool | Decisions = False,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
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
        resume: bool | Decisions = False,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
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
        resume: bool | Decisions = False,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
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
        resume: bool | Decisions = False,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
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
        resume: bool | Decisions = False,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
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
                budget=budget,
                output=output,
            )
        begin = functools.partial(self._engine.run, agent, messages, context_variables, model_override, False)
        run = functools.partial(
            begin, debug, max_turns, execute_tools, resume=resume, run_id=run_id, budget=budget, output=output
        )
        return _wait_for(self._caller(), run)

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
        resume: bool | Decisions = False,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
    ) -> SyncClassicStream:
        """Swarm's name for `run(..., stream=True)`."""
        begin = functools.partial(self._engine.run_and_stream, agent, messages, context_variables, model_override)
        stream = begin(debug, max_turns, execute_tools, resume=resume, run_id=run_id, budget=budget, output=output)
        return self._open(SyncClassicStream(stream, self._caller()))

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
        resume: bool | Decisions = False,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
        deltas: bool = True,
    ) -> SyncEventStream:
        """Run with typed events, live: `with swarm.stream(...) as run: for event in run: ...`.

        Takes what `AsyncSwarm.stream` takes, and raises what `run` raises. `run.response` is valid however the block ended.
        """
        begin = functools.partial(self._engine.stream, agent, messages, context_variables, model_override)
        stream = begin(
            debug, max_turns, execute_tools, resume=resume, run_id=run_id, budget=budget, output=output, deltas=deltas
        )
        return self._open(SyncEventStream(stream, self._caller()))

    # --- the steps of a run, for loops of users ---

    def get_chat_completion(
        self,
        agent: Agent,
        history: Messages,
        context_variables: Mapping[str, Any],
        model_override: str | None,
        stream: bool,
        debug: bool,
    ) -> Any:
        """Ask for one completion, for a loop of your own: `run` does not call this method, and it cannot be overridden.

        Returns what the client's `create` returns: a `ChatCompletion`, or with `stream` an iterable of chunks. Middleware
        and limits do not apply. Raises what `run` raises, and ConfigurationError for a client that is a
        `CompletionSource`, and for a stream from an async client.
        """
        ask = self._engine.complete_once
        work = functools.partial(ask, agent, history, context_variables, model_override, stream, debug)
        return _wait_for(_make_caller(), work)

    def handle_tool_calls(
        self, tool_calls: Iterable[Any], functions: Iterable[Any], context_variables: dict[str, Any], debug: bool
    ) -> Response:
        """Carry out the calls of one message one after another; not called by `run`, as `get_chat_completion`.

        Returns a partial `Response`: the tool messages, the agent that takes over or None, and the changes of the context
        that a `Result` asks for. A function may write to `context_variables`. What fails is told in the tool message.
        """
        work = functools.partial(self._engine.call_once, tool_calls, functions, context_variables, debug)
        return _wait_for(_make_caller(), work)

    def handle_function_result(self, result: object, debug: bool) -> Result:
        """The value that a function returned, as a `Result`; not called by `run`, as `get_chat_completion`.

        Raises TypeError if it has no text.
        """
        try:
            return as_result(result)
        except Exception as error:
            text = (
                f"Failed to cast response to string: {type(result).__name__}. Make sure agent functions return a string "
                f"or Result object. Error: {error}"
            )
            if debug:
                debug_print(text)
            raise TypeError(text) from error

    def _caller(self) -> Caller:
        for name, method in _STEPS.items():
            if name in vars(self) or getattr(type(self), name) is not method:
                raise step_error(type(self).__name__, name)
        return _make_caller()

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


# As they are defined: code for Swarm overrides them, or replaces them by a mock, on the class too.
_STEPS = {name: getattr(Swarm, name) for name in STEPS}


def wait_on_event_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Do `work` on the event loop of every Swarm of this process, and wait for it here. Raises what it raises."""
    return _wait_for(_make_caller(), work)


def _wait_for(caller: Caller, work: Callable[[], Awaitable[T]]) -> T:
    caller.loop.check()
    with Interrupts() as interrupts:
        try:
            return caller.wait_for(work, interrupts)
        finally:
            caller.finish()


def _make_caller() -> Caller:
    with Interrupts():  # the first call starts a thread, and must not be interrupted half way
        return Caller(event_loop_thread())
