"""`AsyncSwarm`: assembles a run from its parts, and offers three ways to read the run.

Between runs, a swarm has only resources of an event loop: its own client, and worker threads.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from ._providers.apis import checked_api
from ._providers.openai import OWN_SOURCES, source_for
from ._providers.own_clients import OwnClients, check_transport, close_client, make_client
from ._rate_limits.policy import RateLimits
from ._rate_limits.rate_limiter import RateLimiter
from ._run.budget_middleware import budget_middleware, instruct_in_time, spending_of
from ._run.current_call import running
from ._run.eager import EagerMiddleware, EagerTools, checked_eager_tools
from ._run.execution import ToolCaller, ToolErrorHook
from ._run.filling import checked_resources
from ._run.handlers import (
    Handlers,
    Middleware,
    MiddlewareStack,
    chain,
    check_steps,
    debug_middleware,
    isolated,
    watch_prompts,
)
from ._run.instructions import resolve_instructions
from ._run.loop import Loop
from ._run.options import RunOptions
from ._run.run_info import OuterRun, RunInfo
from ._run.state import RunState
from ._run.streams import ClassicStream, EventDelivery, EventStream, deliver_after, deliver_live, to_end
from ._runtime.backend import PerLoop, current_loop, scheduler
from ._runtime.threads import FunctionRunner
from ._values.agent import Agent, Response, default_model
from ._values.budget import Budget, checked_budget
from ._values.errors import ConfigurationError
from ._values.events import LoopEvent
from ._values.output import T
from ._values.public_names import explained
from ._values.run_keywords import (
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
from ._values.settings import ApiName, Transport
from ._wire.request import CompletionSource, RequestSettings
from .batch._batch import Batch
from .batch._item import Items
from .batch._settings import AnyBatch, BatchSettings, OutputBatch, PlainBatch, TypedBatch

if TYPE_CHECKING:
    from ._record.entry_recorder import EntryRecorder


@explained
class AsyncSwarm:
    """Runs agents. Any number of concurrent runs may share a swarm, even in several event loops. Creating a swarm is cheap.

        async with AsyncSwarm() as swarm:
            response = await swarm.run(Agent(instructions="You help the guests of a hotel."), "Good evening!")

    Without a client, the swarm creates an `AsyncOpenAI()` in each event loop: `async with` creates it, or else the first run. So
    `async with` raises a ConfigurationError if there is no key. `aclose()` closes this client. The swarm never closes a client
    that you pass: create it with `async with AsyncOpenAI(...) as client`, and run inside the block. After `aclose()`, a swarm
    without your client starts no run in this event loop, until you enter it with `async with` again.

    Args:
        client: An `AsyncOpenAI` (also for Azure, or a subclass), any object with an async or plain
            `chat.completions.create`, or a `CompletionSource`.
        model: The model for agents without a model; by default the environment variable OPENAI_DEFAULT_MODEL, or a current
            model of OpenAI.
        api: The API for clients of openai: "chat" or "responses". "auto": the Responses API for an unpatched client that sends
            to OpenAI itself or to Azure's v1 API, and Chat Completions for every other client and base URL.
        transport: The HTTP library of the default client. "auto": aiohttp on asyncio, if the extra `aiohttp` is installed and
            the environment has no SOCKS proxy; otherwise httpx. With aiohttp, the number of connections has no limit, and the
            timeout to connect is 60 s. "aiohttp": raise ConfigurationError if aiohttp cannot be used. "direct": an
            `HTTPSource`, which does not need the openai package.
        concurrent_tools: False: all calls run one after another.
        eager_tools: True: a call of a tool with `repeatable=True` starts while the model still writes the rest of a streamed
            completion. The tool must need no context variables and no approval, and its return hint must exclude `Result` and
            agents. "always": also stream the completions of `run()`; the caller still gets whole completions.
        tool_error: A plain or async function that gets a `ToolFailure`. It returns the text for the model, or raises to end
            the run.
        max_threads: The maximum of plain functions that run concurrently in an event loop. A run inside a tool has a separate
            maximum, at each level of nesting.
        include_usage: Whether streams request their usage (`stream_options`): True for every client, False for none. By
            default, it is requested from clients of openai, and from clients whose `create` has the parameter
            `stream_options`.
        empty_content: "" for servers that reject null as the content of a message with tool calls.
        rate_limits: The limits of requests and tokens in a minute, for all runs of this swarm together.
        middleware: Functions that wrap the handlers of every run; the first is the outermost. See `aswarm.middleware`.
        budget: The budget of each run that has no budget of its own.
        resources: Clients and connections for functions, by the names of the parameters with the hint `Resource[T]`. The swarm
            does not copy, record or close them.
        prompt_cache: True: at OpenAI's own servers, chats share the cached prompt of their instructions and tools. If the
            instructions of an agent are a text, and its model has cache breakpoints, the text is sent as a message of the
            developer that ends with a breakpoint.

    Raises:
        ConfigurationError: For an unusable argument.
    """

    _runner_class = FunctionRunner  # `Swarm` has other values
    _closed_text = "this AsyncSwarm is closed; run inside its `async with` block, or call aclose() after the last run"

    def __init__(
        self,
        client: Any = None,
        *,
        model: str | None = None,
        api: ApiName = "auto",
        transport: Transport = "auto",
        concurrent_tools: bool = True,
        eager_tools: EagerTools = False,
        tool_error: ToolErrorHook | None = None,
        max_threads: int = 40,
        include_usage: bool | None = None,
        empty_content: Literal[""] | None = None,
        rate_limits: RateLimits | None = None,
        middleware: Iterable[Middleware] = (),
        budget: Budget | None = None,
        resources: Mapping[str, object] | None = None,
        prompt_cache: bool = True,
    ) -> None:
        if max_threads < 1:
            raise ConfigurationError(f"max_threads must be at least 1, not {max_threads}")
        check_transport(transport, client)
        self._api: ApiName = checked_api(api)
        self._include_usage = include_usage
        self.model: str = default_model(model)
        if client is not None:
            self._source_of(client)  # raises ConfigurationError if the client cannot be used
        self._client = client
        self._concurrent_tools = concurrent_tools
        self._eager_tools = checked_eager_tools(eager_tools)
        self._tool_error = tool_error
        self._empty_content = empty_content
        clients = PerLoop(partial(make_client, transport, self._api))
        self._own_clients = OwnClients(clients, current_loop, self._closed_text)
        self._runners = PerLoop(partial(self._runner_class, max_threads))
        self._resources = checked_resources(resources)
        self._instruct = partial(resolve_instructions, function_runner=self._runners.get, resources=self._resources)
        self._rate_limiter = RateLimiter(rate_limits)
        self._middleware = chain(middleware)
        self._budget = checked_budget(budget)
        self._prompt_cache = prompt_cache

    @property
    def client(self) -> Any:
        """The client that was passed, or the swarm's own client in this event loop.

        It is None before `async with` or the first run creates the client, after `aclose()`, and without an event loop.
        """
        return self._own_clients.find() if self._client is None else self._client

    def _open_client(self) -> Any:
        """Return the client for a run, and create it if needed. Raises ConfigurationError if the swarm is closed."""
        return self._own_clients.get() if self._client is None else self._client

    @overload
    def run(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[TypedRun[T]]
    ) -> Coroutine[Any, Any, Response[T]]: ...

    @overload
    def run(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[OutputRun[T]]
    ) -> Coroutine[Any, Any, Response[T]]: ...

    @overload
    def run(
        self, agent: Agent[T], messages: Messages, context_variables: Context = None, **keywords: Unpack[PlainRun]
    ) -> Coroutine[Any, Any, Response[T]]: ...

    @overload
    def run(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[StreamedRun]
    ) -> ClassicStream: ...

    @overload
    def run(
        self, agent: Agent, messages: Messages, context_variables: Any = None, *args: Any, **keywords: Unpack[AnyRun]
    ) -> Any: ...

    def run(
        self, agent: Agent, messages: Messages, context_variables: Context = None, *args: Any, **keywords: Any
    ) -> Coroutine[Any, Any, Response] | ClassicStream:
        """Run until the model answers. `await` the result for the `Response`. With `stream=True`, iterate over Swarm's events.

        Each error has a partial `.response`, and so has the exception that cancels an awaited run.

        Args:
            agent: The first agent.
            messages: Chat Completions messages (dicts or SDK objects), or a str for one message of the user.
            context_variables: Data for functions and instructions, never for the model. The run copies its dicts, lists and
                sets, recursively.
            *args: The arguments of OpenAI's Swarm in its order: `model_override`, `stream`, `debug`, `max_turns` and
                `execute_tools`. New code passes them as keywords.
            stream: True: return an async generator of Swarm's events.
            output: The type of the answer, or an `Output`, for every agent of the run. Read the answer from `response.output`.
            **keywords: See `RunKeywords`: `model_override`, `max_turns`, `debug`, `execute_tools`, `budget`, `resources`,
                `run_id` and `resume`.

        Raises:
            ConfigurationError: A mistake of the caller.
            CompletionError: The provider failed.
            OutputError: No answer has the type of `output`.
            BudgetError: A limit was reached, with `Budget(then="raise")`.
            RunError: Another error of the run.
        """
        if args or keywords:
            keywords = swarm_keywords("run", args, keywords)
        stream = keywords.pop("stream", False)
        options = RunOptions(agent, messages, context_variables, **keywords)
        if stream:
            return ClassicStream(*self._prepare(options, deliver_after, stream=True))
        return self._run_to_end(options)

    def run_and_stream(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Context = None,
        *args: Any,
        **keywords: Unpack[AnyOutputRun],
    ) -> ClassicStream:
        """Return the same stream as `run(..., stream=True)`. The name is from Swarm."""
        options = RunOptions(agent, messages, context_variables, **swarm_keywords("run_and_stream", args, keywords))
        return ClassicStream(*self._prepare(options, deliver_after, stream=True))

    @overload
    def stream(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[TypedStream[T]]
    ) -> EventStream[T]: ...

    @overload
    def stream(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[OutputStream[T]]
    ) -> EventStream[T]: ...

    @overload
    def stream(
        self, agent: Agent[T], messages: Messages, context_variables: Context = None, **keywords: Unpack[PlainStream]
    ) -> EventStream[T]: ...

    def stream(
        self, agent: Agent, messages: Messages, context_variables: Context = None, **keywords: Unpack[AnyStream]
    ) -> EventStream[Any]:
        """Run with live typed events: `async with swarm.stream(...) as run: async for event in run: ...`.

        Arguments and errors are as for `run`. `run.response` is always valid, even after an error in the block. With
        `deltas=False`, the provider sends each completion as a whole; the events of tools are still live.
        """
        arguments = checked_keywords("stream", keywords, AnyStream)
        deltas = arguments.pop("deltas", True)
        options = RunOptions(agent, messages, context_variables, **arguments)
        return EventStream(*self._prepare(options, deliver_live, stream=deltas))

    @overload
    def batch(self, agent: Agent, items: Items, **keywords: Unpack[TypedBatch[T]]) -> Batch[T]: ...

    @overload
    def batch(self, agent: Agent, items: Items, **keywords: Unpack[OutputBatch[T]]) -> Batch[T]: ...

    @overload
    def batch(self, agent: Agent[T], items: Items, **keywords: Unpack[PlainBatch]) -> Batch[T]: ...

    def batch(self, agent: Agent, items: Items, **keywords: Any) -> Batch[Any]:
        """Run many conversations: `async with swarm.batch(...) as outcomes: async for outcome in outcomes: ...`.

        If an item fails, its outcome has an `error`. If reading the items raises an exception, the batch raises it after all
        outcomes. `aswarm.batch` describes the details.

        Args:
            agent: The agent for items without an agent.
            items: A plain or async iterable of `Item`s, of messages (a list, or a str), or of pairs of id and messages. The
                next item is read only when it may start.
            concurrency: The maximum of open items. An item is open from its start until its outcome is read. "auto": adapt the
                maximum to the provider.
            ordered: Whether outcomes come in the order of the items.
            on_error: "stop": start no further item after an outcome with an error.
            attempts: The maximum of requests for one completion, if it fails temporarily. A 429 does not count.
            context_variables: As for `run`. The variables of an item override them.
            journal: The path of a file that records every step. After a crash, a rerun with this file continues the batch.
            agents: The agents among which a rerun with `journal` first looks for a name. Then it looks among the agents that
                are in the functions of these agents, or are values of the functions; see `aswarm.batch`.
            output: As for `run`.
            **keywords: `model_override`, `max_turns` (by default 100), `budget` and `resources`, as for `run`.

        Raises:
            ConfigurationError: A mistake in the arguments. A mistake about the journal is raised when the block is entered.
        """
        from ._tools.directory import listed_by_name  # noqa: PLC0415 - only for batches

        arguments = checked_keywords("batch", keywords, AnyBatch)
        journal = arguments.pop("journal", None)
        arguments["agents"] = listed_by_name(arguments.get("agents", ())).values()
        settings = BatchSettings.of(agent, RunOptions, arguments)
        return Batch(
            items,
            settings,
            run_to_end=self._run_to_end,
            require_client=self._open_client,
            rate_limiter=self._rate_limiter,
            journal=journal,
        )

    async def _run_to_end(
        self, options: RunOptions, recorder: EntryRecorder | None = None, retries: Middleware | None = None, /
    ) -> Response:
        make = partial(self._prepare, options, deliver_after, stream=False, retries=retries)
        if recorder is None:
            return await to_end(*make())
        state, events = make(recorder.delivery, recorder=recorder.wrap)
        recorder.use(state)
        return await to_end(state, events, recorder.record)

    def _prepare(
        self,
        options: RunOptions,
        deliver: EventDelivery,
        recorded: Callable[[EventDelivery], EventDelivery] | None = None,
        *,
        stream: bool,
        recorder: Middleware | None = None,
        retries: Middleware | None = None,
    ) -> tuple[RunState, AsyncGenerator[LoopEvent, None]]:
        """Return the state and the events of a run. `recorded`: wraps the delivery of events, so that a recorder gets them."""
        check_steps(self, {})
        budget = self._budget if options.budget is None else options.budget
        now, outer = running(), options.around
        # A tool may start a task that outlives its call. A run in this task is an inner run only until the call has an outcome.
        if outer is None and now is not None and now.run is not None and now.call.outcome is None:
            outer = now.run.state.spending
        resources = self._resources
        instruct: Callable[[Agent, dict[str, Any]], Awaitable[Any]] = self._instruct
        if options.resources is not None:
            resources = {**resources, **checked_resources(options.resources)}
            instruct = partial(self._instruct, resources=resources)
        state = RunState(
            options.agent,
            options.messages,
            options.context_variables,
            resume=options.resume,
            empty_content=self._empty_content,
            run_id=options.run_id,
            spending=None if budget is None and outer is None else spending_of(budget, outer),
            output=options.output,
            resources=resources,
            concurrent_tools=self._concurrent_tools,
            tools_of_middleware={} if self._middleware is None else self._middleware.tools,
        )
        model, usage = options.model_override, self._include_usage is not False
        settings = RequestSettings(stream, model, usage, self.model, self._prompt_cache, options.settings)
        is_live = deliver is deliver_live
        start = partial(self._prepare, deliver=deliver, stream=stream and is_live, retries=retries)
        make_handlers = partial(self._make_handlers, state, options, start, is_live, recorder, retries)
        if state.toolbox.needs or state.is_typed or callable(options.agent.instructions):
            state.check_agent()
        if state.budget is not None:
            instruct = instruct_in_time(instruct, state.budget)
        # `start` has no recorder, so only this run is recorded, not the runs inside its tools.
        delivery = deliver if recorded is None else recorded(deliver)
        loop = Loop(state, options, settings, make_handlers, instruct, delivery)
        return state, loop.events()

    def _make_handlers(
        self,
        state: RunState,
        options: RunOptions,
        start: Callable[[RunOptions], tuple[RunState, AsyncGenerator[LoopEvent, None]]],
        is_live: bool,
        recorder: Middleware | None,
        retries: Middleware | None,
    ) -> tuple[Handlers, Callable[[], Awaitable[None]] | None]:
        call = None if (now := running()) is None else now.call
        run = OuterRun(state, options, start, scheduler() if is_live else None, get_ident(), call)
        client = self._open_client()
        source = self._source_of(client)
        # The sources of aswarm do not change a request. A source of the user may change it, so it gets a copy.
        complete = source.complete if isinstance(source, OWN_SOURCES) else isolated(source.complete)
        call_tool = ToolCaller(self._runners.get(), self._tool_error, state.id, run)
        budget, state.prompts.url = state.budget, str(getattr(client, "base_url", "")) or None
        if budget is not None:
            budget.provider_url = state.prompts.url
        eager: EagerMiddleware | None = None
        if self._eager_tools and options.execute_tools:
            always, usage = self._eager_tools == "always", self._include_usage is not False
            threads_only = self._runner_class.runs_everything
            eager = EagerMiddleware(state, always=always, include_usage=usage, threads_only=threads_only)
        stack = MiddlewareStack(
            budget=None if budget is None else budget_middleware(budget),
            debug=debug_middleware(execute_tools=options.execute_tools) if options.debug else None,
            recorder=recorder,
            eager_tools=eager,
            user=self._middleware,
            retries=retries,
            prompts=watch_prompts(state.prompts),
            rate_limits=self._rate_limiter.middleware(source),
        )
        handlers = stack.wrap(Handlers(complete, call_tool, RunInfo(run), source=source))
        return handlers, None if eager is None else eager.close

    def _source_of(self, client: Any) -> CompletionSource:
        return source_for(client, api=self._api, include_usage=self._include_usage is True)

    async def aclose(self) -> None:
        """Close the swarm and its own client in this event loop. A client that was passed stays open."""
        if (client := self._own_clients.close()) is not None:
            await close_client(client)

    async def __aenter__(self) -> Self:
        """Open the swarm in this event loop. Raises ConfigurationError if there is no client, and no key to create one.

        The end of the last of several blocks closes the swarm.
        """
        self._own_clients.enter(self._open_client)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._own_clients.exit():
            await self.aclose()


# For the packages of aswarm that record runs. A service without a key fails when it starts, because it requires a client then.
prepare, require_client = AsyncSwarm._prepare, AsyncSwarm._open_client
AsyncSwarm._run_to_end.__qualname__ = "AsyncSwarm.run"  # the name in Python's warning about a forgotten `await`
