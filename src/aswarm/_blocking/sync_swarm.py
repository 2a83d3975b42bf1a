"""`Swarm`: runs agents without `await`, for scripts, notebooks and code that comes from Swarm.

`Swarm` waits for runs of `AsyncSwarm`. Plain functions and instructions, hooks and blocking clients run in the thread of the
caller, as in a script.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, cast, overload

import sniffio

from aswarm._providers.anthropic import AnthropicSource
from aswarm._providers.compatible import CompatibleClientSource, close_reply
from aswarm._providers.openai import source_for
from aswarm._providers.own_clients import OwnClients, make_blocking_client
from aswarm._rate_limits.policy import RateLimits
from aswarm._run.eager import EagerTools
from aswarm._run.execution import ToolCaller, ToolErrorHook, ToolFailure
from aswarm._run.group import run_group
from aswarm._run.handlers import STEPS, Middleware, call_text, check_steps, debug_print
from aswarm._run.options import RunOptions
from aswarm._run.outcome import ToolOutcome
from aswarm._run.state import RunState
from aswarm._run.streams import EventStream
from aswarm._runtime.backend import PerProcess
from aswarm._swarm import AsyncSwarm
from aswarm._tools.conversion import as_result
from aswarm._tools.tool import is_async
from aswarm._values.agent import Agent, Response, Result
from aswarm._values.budget import Budget
from aswarm._values.decisions import Approve
from aswarm._values.errors import ConfigurationError
from aswarm._values.output import T
from aswarm._values.public_names import explained
from aswarm._values.run_keywords import (
    AnyOutputRun,
    AnyRun,
    AnyStream,
    Context,
    Messages,
    OutputRun,
    OutputStream,
    PlainRun,
    PlainStream,
    StreamedRun,
    TypedRun,
    TypedStream,
    checked_keywords,
    swarm_keywords,
)
from aswarm._values.settings import ApiName
from aswarm._wire.request import CompletionSource, RequestSettings

from .caller import Caller, CallerThreadRunner, in_callers_thread
from .event_loop import Interrupts, event_loop_thread
from .sync_streams import SyncClassicStream, SyncEventStream

_NO_ASYNC_STREAM = (
    "get_chat_completion cannot stream from an async client; use a blocking client such as OpenAI(...), or use stream()"
)


class BlockingEngine(AsyncSwarm):
    """The engine of `Swarm`, for blocking callers."""

    _runner_class = CallerThreadRunner
    _closed_text = "this Swarm is closed; run inside its `with` block, or call close() after the last run"

    def __init__(self, client: Any, *, tool_error: ToolErrorHook | None = None, **options: Any) -> None:
        hook = None if tool_error is None else functools.partial(_call_hook, tool_error)
        super().__init__(client, tool_error=hook, **options)
        clients = PerProcess(functools.partial(make_blocking_client, self._api))
        self._own_clients = self.own_clients = OwnClients(clients, lambda: clients, self._closed_text)

    def use(self, client: Any) -> None:
        """Use this client from now on. With None, make a new client on first use."""
        if client is not None:
            self._source_of(client)
        self._client = client

    def _source_of(self, client: Any) -> CompletionSource:
        return source_for(client, in_callers_thread, self._api, include_usage=self._include_usage is True)

    # --- the steps of Swarm's loop ---

    async def complete_once(self, options: RunOptions, stream: bool) -> Any:
        """Ask for one completion, and return the client's reply."""
        client = self._open_client()
        source = self._source_of(client)
        if source is client or isinstance(source, AnthropicSource):
            raise ConfigurationError(
                "get_chat_completion needs a client with chat.completions.create, not a CompletionSource; use run()"
            )
        # openai wraps its async `create` in a plain function.
        if stream and is_async(inspect.unwrap(client.chat.completions.create)):
            raise ConfigurationError(_NO_ASYNC_STREAM)
        state = RunState(options.agent, options.messages, options.context_variables, empty_content=self._empty_content)
        instructions = await self._instruct(options.agent, state.context)
        request = state.request(
            instructions, RequestSettings(stream, options.model_override, include_usage=False, default_model=self.model)
        )
        if options.debug:
            debug_print("Getting chat completion for...:", request.body["messages"])
        reply = await CompatibleClientSource(client, in_callers_thread).reply(request)
        if hasattr(reply, "__aiter__"):
            await close_reply(reply, in_callers_thread)
            raise ConfigurationError(_NO_ASYNC_STREAM)
        return reply

    async def call_once(
        self, tool_calls: Iterable[Any], functions: Iterable[Any], context_variables: dict[str, Any], debug: bool
    ) -> Response:
        """Execute the calls one after another. Functions write to the dict `context_variables` itself.

        Functions with `approve` run too, because the caller has decided to make these calls. If a call waits for another reason,
        its tool message is an error.
        """
        asked = {"role": "assistant", "content": None, "tool_calls": list(tool_calls)}
        state = RunState(Agent(functions=list(functions)), [asked], {}, resume=Approve.all())
        call_tool = ToolCaller(self._runners.get(), self._tool_error, state.id, resources=self._resources)
        changes: dict[str, Any] = {}
        for call in state.turn.calls:
            if debug:
                debug_print(call_text(call))
            await run_group([call], context_variables, call_tool, lambda _event: None, may_hold=True)
            if call.hold is not None:
                call.finish(ToolOutcome(f"Error: the call waits for a decision: {call.hold.reason}"))
            if call.outcome and call.outcome.result:
                changes.update(call.outcome.result.context_variables)
        handoff = state.end_turn()
        made = state.response
        return Response(
            messages=made.messages,
            agent=cast("Agent", handoff and handoff[1]),  # None without a handoff, as in Swarm
            context_variables=changes,
            unknown_calls=made.unknown_calls,
        )


async def _call_hook(hook: ToolErrorHook, failure: ToolFailure) -> str:
    text = hook(failure) if is_async(hook) else await in_callers_thread(functools.partial(hook, failure), must_run=True)
    return await text if inspect.isawaitable(text) else text


S = TypeVar("S", bound=SyncClassicStream | SyncEventStream[Any])


class SwarmKeywords(TypedDict, total=False):
    """Keywords of `Swarm`. They are keywords of `AsyncSwarm` too, which describes them and has their defaults."""

    model: str | None
    api: ApiName
    concurrent_tools: bool
    eager_tools: EagerTools
    tool_error: ToolErrorHook | None
    max_threads: int
    include_usage: bool | None
    empty_content: Literal[""] | None
    rate_limits: RateLimits | None
    middleware: Iterable[Middleware]
    budget: Budget | None
    resources: Mapping[str, object] | None
    prompt_cache: bool


@explained
class Swarm:
    """Runs agents and waits for them. Any number of threads may share a Swarm.

        response = Swarm().run(Agent(instructions="You help the guests of a hotel."), "Good evening!")

    `client`: a blocking `OpenAI` or an `AsyncOpenAI` (or a subclass, such as the clients for Azure), an object with a plain or
    async `chat.completions.create`, or a `CompletionSource`. Without a client, the Swarm makes a blocking `OpenAI()` in `with`
    or on first use, one for each process, and `close()` closes it. Then the Swarm starts no run until `with` opens it again. Your own client is never closed: make it with `with OpenAI(...) as
    client`.

    Plain functions, plain instructions, a plain `tool_error` and a blocking client run in the caller's thread. Functions
    with `@tool(concurrent=True)`, `timeout` or `abandon_on_cancel` run in their own threads. Async functions and middleware
    run on one event loop, in a thread that starts with the first run and ends with the program. They must not block this loop,
    because all Swarms of the process share it. Ctrl-C cancels the run, waits for its end, and raises KeyboardInterrupt. After a
    second Ctrl-C, the caller no longer waits.

    The other keywords are the keywords of `AsyncSwarm`, without `transport`: a caller that waits for one run at a time needs no
    large pool of connections. In a forked child process, a Swarm makes a new client. Your own client must be replaced there.
    """

    def __init__(self, client: Any = None, **keywords: Unpack[SwarmKeywords]) -> None:
        self._engine = BlockingEngine(client, **checked_keywords("Swarm", keywords, SwarmKeywords))
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[SyncClassicStream | SyncEventStream[Any]] = weakref.WeakSet()

    @property
    def client(self) -> Any:
        """Your client, or the blocking `OpenAI` of this process, which is made if needed. It may be set.

        Raises ConfigurationError if the Swarm is closed, and its client is not yours.
        """
        return self._engine._open_client()

    @client.setter
    def client(self, client: Any) -> None:
        self._engine.use(client)

    # --- the three ways to run ---

    @overload
    def run(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[TypedRun[T]]
    ) -> Response[T]: ...

    @overload
    def run(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[OutputRun[T]]
    ) -> Response[T]: ...

    @overload
    def run(
        self, agent: Agent[T], messages: Messages, context_variables: Context = None, **keywords: Unpack[PlainRun]
    ) -> Response[T]: ...

    @overload
    def run(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[StreamedRun]
    ) -> SyncClassicStream: ...

    @overload
    def run(
        self, agent: Agent, messages: Messages, context_variables: Any = None, *args: Any, **keywords: Unpack[AnyRun]
    ) -> Any: ...

    def run(
        self, agent: Agent, messages: Messages, context_variables: Context = None, *args: Any, **keywords: Any
    ) -> Response | SyncClassicStream:
        """Run until the model answers, and return the `Response`. With `stream=True`, return a generator of Swarm's events.

        The arguments and the errors are the same as for `AsyncSwarm.run`. Ctrl-C raises KeyboardInterrupt. Each exception has
        `.response`, the partial response.
        """
        if args or keywords:
            keywords = swarm_keywords("run", args, keywords)
            if keywords.pop("stream", False):
                return self.run_and_stream(agent, messages, context_variables, **keywords)
        run = functools.partial(self._engine.run, agent, messages, context_variables, **keywords)
        return _wait_for(self._caller(), run)

    def run_and_stream(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Context = None,
        *args: Any,
        **keywords: Unpack[AnyOutputRun],
    ) -> SyncClassicStream:
        """Run with Swarm's events, like `run(..., stream=True)`."""
        stream = self._engine.run_and_stream(agent, messages, context_variables, *args, **keywords)
        return self._open(SyncClassicStream(stream, self._caller()))

    @overload
    def stream(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[TypedStream[T]]
    ) -> SyncEventStream[T]: ...

    @overload
    def stream(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[OutputStream[T]]
    ) -> SyncEventStream[T]: ...

    @overload
    def stream(
        self, agent: Agent[T], messages: Messages, context_variables: Context = None, **keywords: Unpack[PlainStream]
    ) -> SyncEventStream[T]: ...

    def stream(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[AnyStream]
    ) -> SyncEventStream[Any]:
        """Run with typed events: `with swarm.stream(...) as run: for event in run: ...`.

        The arguments are the same as for `AsyncSwarm.stream`, and the errors are the same as for `run`. `run.response` is valid
        at any time, even after an error.
        """
        stream: EventStream = self._engine.stream(agent, messages, context_variables, **keywords)
        return self._open(SyncEventStream(stream, self._caller()))

    # --- the steps of a run, for loops that users write ---

    def get_chat_completion(
        self,
        agent: Agent,
        history: Messages,
        context_variables: Mapping[str, Any],
        model_override: str | None,
        stream: bool,
        debug: bool,
    ) -> Any:
        """Request one completion, for your own loop. `run` does not call this method, and raises if a subclass overrides it.

        Returns the result of the client's `create`: a `ChatCompletion` or, with `stream`, an iterable of chunks. Middleware and
        limits do not apply. Raises the errors of `run`. Also raises ConfigurationError if the client is a `CompletionSource`, or
        if `stream` is set and the client is async.
        """
        options = RunOptions(agent, history, context_variables, model_override, debug)
        return _wait_for(_make_caller(), functools.partial(self._engine.complete_once, options, stream))

    def handle_tool_calls(
        self, tool_calls: Iterable[Any], functions: Iterable[Any], context_variables: dict[str, Any], debug: bool
    ) -> Response:
        """Execute the calls of one message, one after another. `run` does not call this method (see `get_chat_completion`).

        Returns a partial `Response`: the tool messages, the agent of a handoff or None, and the context variables of the
        functions' `Result`s. A function may also write to `context_variables`. Errors are in the tool messages.
        """
        work = functools.partial(self._engine.call_once, tool_calls, functions, context_variables, debug)
        return _wait_for(_make_caller(), work)

    def handle_function_result(self, result: object, debug: bool) -> Result:
        """Return the value of a function as a `Result`. `run` does not call this method (see `get_chat_completion`).

        Raises TypeError if the value cannot be converted to text.
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
        check_steps(self, _STEPS)
        # asyncio's name for the running loop, or trio's; no function call, because each run comes here.
        if asyncio._get_running_loop() is not None or sniffio.thread_local.name is not None:
            _warn_of_event_loop()
        return _make_caller()

    # --- closing ---

    def close(self) -> None:
        """Stop the open streams that are not being read now. If this Swarm made a client, close the client.

        Afterwards, a Swarm without your client starts no run until you enter it with `with` again.
        """
        client = self._engine.own_clients.close()
        with self._lock:
            streams = tuple(self._streams)
        with ExitStack() as stack:  # closes all streams, even if one of them raises
            if client is not None:
                stack.callback(client.close)
            for stream in streams:
                stack.callback(stream._close_if_idle)

    def _open(self, stream: S) -> S:
        with self._lock:
            self._streams.add(stream)
        return stream

    def __enter__(self) -> Self:
        """Open the Swarm. Raises ConfigurationError if there is no client, and no key to create one.

        The end of the last of several blocks closes the Swarm.
        """
        self._engine.own_clients.enter(self._engine._open_client)
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine.own_clients.exit():
            self.close()


# The original methods. Code for Swarm may override them or replace them with a mock, even on the class; `run` then raises.
_STEPS = {name: getattr(Swarm, name) for name in STEPS}


def _warn_of_event_loop() -> None:
    if "ipykernel" not in sys.modules:  # the code of a notebook always runs on an event loop
        text = "Swarm blocks the event loop of this thread until the run ends; use AsyncSwarm: `await swarm.run(...)`"
        # 1 is this function, 2 `_caller`, 3 `run`, and 4 the line that calls it.
        warnings.warn(text, UserWarning, stacklevel=4)


def wait_on_event_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Do `work` on the event loop that all Swarms of this process share. Wait for its value, or raise its exception."""
    return _wait_for(_make_caller(), work)


def engine_of(swarm: Swarm) -> BlockingEngine:
    """Return the engine, for code that uses `wait_on_event_loop`. Raises the error of `run` if a method was overridden."""
    check_steps(swarm, _STEPS)
    return swarm._engine


def _wait_for(caller: Caller, work: Callable[[], Awaitable[T]]) -> T:
    caller.loop.check()
    with Interrupts() as interrupts:
        try:
            return caller.wait_for(work, interrupts)
        finally:
            caller.finish()


def _make_caller() -> Caller:
    with Interrupts():  # the first call starts a thread: Ctrl-C must not interrupt the start
        return Caller(event_loop_thread())
