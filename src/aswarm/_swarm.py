"""`AsyncSwarm`: assembles a run from its parts, and offers three ways to read it.

Keeps nothing between runs except what belongs to an event loop: a client that it made itself, and worker threads.
"""

from __future__ import annotations

import copy
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from os import PathLike
from threading import get_ident
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from ._agent import Agent, Response, default_model
from ._budget import Budget, checked_budget
from ._decisions import Decisions
from ._errors import ConfigurationError
from ._events import LoopEvent
from ._output import Output, as_output
from ._providers.apis import ApiName, checked_api
from ._providers.default_client import Transport, check_transport, make_client
from ._providers.openai import OpenAISource, source_for
from ._rate_limits.policy import RateLimits
from ._rate_limits.rate_limiter import RateLimiter
from ._run.budget_middleware import budget_middleware, instruct_in_time
from ._run.current_call import OuterRun, running_call, running_run
from ._run.debug import debug_middleware
from ._run.execution import ToolCaller, ToolErrorHook
from ._run.handlers import Handlers, Middleware, MiddlewareStack, RunInfo, chain, isolated
from ._run.instructions import resolve_instructions
from ._run.loop import Loop
from ._run.options import MAX_TURNS, Messages, RunOptions
from ._run.spending import Spending
from ._run.state import RunState
from ._run.streams import ClassicStream, EventDelivery, EventStream, deliver_after, deliver_live, to_end
from ._runtime.backend import PerLoop, scheduler
from ._runtime.threads import FunctionRunner, ThreadPool
from ._wire.request import CompletionSource, RequestSettings
from .batch._batch import Batch
from .batch._settings import BatchSettings, agents_by_name
from .batch._source import Items

T = TypeVar("T")

# The methods of Swarm's that its run calls, which code overrides; and what a middleware does in their place.
STEPS = {
    "get_chat_completion": "wraps `complete`",
    "handle_function_result": "wraps `call_tool`",
    "handle_tool_calls": "wraps `call_tool`",
}


def step_error(owner: str, name: str) -> ConfigurationError:
    """The error for a method of Swarm's that no run would call."""
    return ConfigurationError(
        f"{owner} replaces {name}, which run() never calls; pass middleware=[...] with a function that {STEPS[name]} (see "
        "aswarm.middleware), or write a run() that does not call super().run()"
    )


class AsyncSwarm:
    """Runs agents. Cheap to make, shared by any number of concurrent runs, usable from several event loops.

        async with AsyncSwarm() as swarm:
            response = await swarm.run(Agent(instructions="You help the guests of a hotel."), "Good evening!")

    `client`: an `AsyncOpenAI` (Azure and subclasses included), anything with an async or plain
    `chat.completions.create`, or a `CompletionSource`. Without a client, `AsyncOpenAI()` is made on first use, for each
    event loop, and closed by `aclose()`. A client that was passed in is never closed: make it with
    `async with AsyncOpenAI(...) as client`, and run inside the block.

    `model`: the model of agents that set none; by default the environment variable OPENAI_DEFAULT_MODEL, or a current
    OpenAI model. `api`: the API of openai's clients that is used, "chat" or "responses". "auto" is the Responses API where
    an unpatched client talks to OpenAI itself or to Azure's v1 API, and Chat Completions for every other client and base
    URL.

    `transport="aiohttp"`: the client that is made uses the SDK's aiohttp transport (extra `aiohttp`, asyncio only), with
    no limit of connections and 60 s to connect. Choose it for a hundred runs in flight and more.

    `concurrent_tools`: False runs all calls one after another. `tool_error`: a plain or async function that gets a
    `ToolFailure` and returns the text that the model is told, or raises to end the run. `max_threads`: how many plain
    functions run at once, for each event loop and each depth of runs inside tools. `include_usage`: whether streams are
    asked for usage (`stream_options`); by default clients of openai's are, and others whose `create` names that parameter;
    True asks every client, False none. `empty_content`: "" for servers that refuse null as the content of a message with
    tool calls. `limits`: requests and tokens in a minute, over all runs of this swarm. `middleware`: functions that wrap
    the handlers of every run, the first outermost; see `aswarm.middleware`. `budget`: how much a run may use that has no
    budget of its own.

    Raises `ConfigurationError` for an argument that cannot be used.
    """

    def __init__(
        self,
        client: Any = None,
        *,
        model: str | None = None,
        api: ApiName = "auto",
        transport: Transport = "httpx",
        concurrent_tools: bool = True,
        tool_error: ToolErrorHook | None = None,
        max_threads: int = 40,
        include_usage: bool | None = None,
        empty_content: Literal[""] | None = None,
        limits: RateLimits | None = None,
        middleware: Iterable[Middleware] = (),
        budget: Budget | None = None,
    ) -> None:
        if max_threads < 1:
            raise ConfigurationError(f"max_threads must be at least 1, not {max_threads}")
        check_transport(transport, client)
        self._api: ApiName = checked_api(api)
        self._include_usage = include_usage
        self.model = model or default_model()
        if client is not None:
            self._source_of(client)
        self._client = client
        self._concurrent_tools = concurrent_tools
        self._tool_error = tool_error
        self._empty_content = empty_content
        self._own_clients = PerLoop(partial(make_client, transport))
        self._threads = PerLoop(partial(ThreadPool, max_threads))
        self._rate_limiter = RateLimiter(limits)
        self._middleware = chain(middleware)
        self._budget = checked_budget(budget)

    @property
    def client(self) -> Any:
        """The client that was passed in, or the one made for the running event loop (there must be one)."""
        return self._client if self._client is not None else self._own_clients.get()

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
    ) -> Coroutine[Any, Any, Response[T]]: ...

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
    ) -> Coroutine[Any, Any, Response]: ...

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
    ) -> ClassicStream: ...

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
    ) -> ClassicStream: ...

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
    ) -> Coroutine[Any, Any, Response] | ClassicStream: ...

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
    ) -> Coroutine[Any, Any, Response] | ClassicStream:
        """Run until the model answers. `await` it for the `Response`; with `stream=True`, iterate over Swarm's events.

        `agent`: the agent that begins. `messages`: Chat Completions messages (dicts or SDK objects), or a str as short for
        one message of the user. `context_variables`: copied (its dicts, lists and sets, recursively); seen by functions and
        instructions, never by the model. `model_override`: the model of all agents in this run. `max_turns`: completions at
        most; the tools of the last one still run; 0 sends nothing. A run without a limit is logged once when it has made
        100. `stream=True`: yield Swarm's events. `debug=True`: print and log each step.

        `execute_tools=False`: return when the model calls something, and leave the calls open. `resume=True`: run the calls
        that are open at the end of `messages` first; only for a history that comes from storage you trust.
        `resume={id: decision}` decides on each of them, see `aswarm.waiting`; a call without a decision stays open.
        `run_id`: the id of this run in `Response`, in middleware and in log records; a new one by default. `output`: the
        type of the answer, or an `Output`, whichever agent answers; `response.output` is the answer then. `budget`: how
        much this run may use, with the runs inside its tools; by default that of the swarm.

        Raises ConfigurationError (a mistake of the caller), CompletionError (the provider failed), OutputError (no answer
        has the type), BudgetError (only with `Budget(then="raise")`) or another RunError. Each has `.response`: what had
        happened until then. So has the cancellation exception of a plain run that is cancelled.
        """
        begin = partial(RunOptions, agent, messages, context_variables, model_override, debug, max_turns, execute_tools)
        options = begin(resume, run_id, budget, as_output(output))
        return self._classic_stream(options) if stream else self._run_to_end(options)

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
    ) -> ClassicStream:
        """Swarm's name for `run(..., stream=True)`."""
        begin = partial(RunOptions, agent, messages, context_variables, model_override, debug, max_turns, execute_tools)
        return self._classic_stream(begin(resume, run_id, budget, as_output(output)))

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
    ) -> EventStream:
        """Run with typed events, live: `async with swarm.stream(...) as run: async for event in run: ...`.

        Takes what `run` takes and raises what it raises. `run.response` is valid however the block ended.
        `deltas=False` asks for completions whole; tools are live all the same.
        """
        begin = partial(RunOptions, agent, messages, context_variables, model_override, debug, max_turns, execute_tools)
        options = begin(resume, run_id, budget, as_output(output))
        return EventStream(*self._prepare(options, deliver_live, stream=deltas))

    def batch(
        self,
        agent: Agent,
        items: Items,
        *,
        concurrency: int | Literal["auto"] = 10,
        ordered: bool = False,
        on_error: Literal["keep", "stop"] = "keep",
        attempts: int = 3,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        max_turns: float = MAX_TURNS,
        journal: str | PathLike[str] | None = None,
        agents: Iterable[Agent] = (),
        budget: Budget | None = None,
        output: Any = None,
    ) -> Batch:
        """Run many conversations: `async with swarm.batch(...) as outcomes: async for outcome in outcomes: ...`.

        `items`: a plain or async iterable of `Item`s, of messages (a list, or a str) or of pairs of id and messages; it is
        read only as fast as items may begin. `concurrency`: at most so many items run, or have an outcome that was not
        taken yet; "auto" adapts it to the provider. `ordered`: outcomes come in the order of the items. `on_error="stop"`:
        no item begins after an outcome with an error. `attempts`: how often one completion is requested at most, if it
        fails in a way that may pass; a 429 does not count. `journal`: the path of a file that records every step, so that a
        rerun after a crash continues there. `agents`: agents that the journal looks up by name before it searches
        `aswarm.graph`. The other arguments are those of `run`, for each item (`budget` and `output` too), but `max_turns`
        is 100 here. `aswarm.batch` describes the details.

        The failure of an item is the `error` of its outcome. An exception from reading the items is raised after all
        outcomes. Raises ConfigurationError for a mistake in the arguments: here, or for the journal when the block is
        entered.
        """
        begin = partial(BatchSettings, agent, concurrency, ordered, on_error, attempts, context_variables)
        settings = begin(model_override, max_turns, agents_by_name(agents), budget, as_output(output))
        return Batch(
            items,
            settings,
            run_to_end=self._run_to_end,
            require_client=self._require_client,
            rate_limiter=self._rate_limiter,
            journal=journal,
        )

    def _classic_stream(self, options: RunOptions) -> ClassicStream:
        return ClassicStream(*self._prepare(options, deliver_after, stream=True))

    async def _run_to_end(
        self, options: RunOptions, journal: Middleware | None = None, retries: Middleware | None = None, /
    ) -> Response:
        return await to_end(*self._prepare(options, deliver_after, stream=False, journal=journal, retries=retries))

    # --- assembling a run ---

    def _prepare(
        self, options: RunOptions, deliver: EventDelivery, *, stream: bool, **middleware: Middleware | None
    ) -> tuple[RunState, AsyncGenerator[LoopEvent, None]]:
        for name in STEPS:
            if hasattr(self, name):
                raise step_error(type(self).__name__, name)
        state = RunState(
            options.agent,
            options.messages,
            options.context_variables,
            resume=options.resume,
            empty_content=self._empty_content,
            run_id=options.run_id,
            spending=self._spending(options),
            output=options.output,
        )
        settings = RequestSettings(stream, options.model_override, self._include_usage is not False, self.model)
        is_live = deliver is deliver_live
        start = partial(self._prepare, deliver=deliver, stream=stream and is_live, retries=middleware.get("retries"))
        make_handlers = partial(self._make_handlers, state, options, start, is_live, middleware)
        instruct = self._instruct if state.budget is None else instruct_in_time(self._instruct, state.budget)
        loop = Loop(state, options, settings, make_handlers, instruct, deliver, self._concurrent_tools)
        return state, loop.events()

    def _spending(self, options: RunOptions) -> Spending | None:
        budget = self._budget if options.budget is None else options.budget
        call, run, outer = running_call.get(), running_run.get(), options.around
        # A task that a tool has left running belongs to no call any more.
        if outer is None and run is not None and call is not None and call.outcome is None:
            outer = run.state.spending
        return None if budget is None and outer is None else Spending(budget, outer)

    def _make_handlers(
        self,
        state: RunState,
        options: RunOptions,
        start: Callable[[RunOptions], tuple[RunState, AsyncGenerator[LoopEvent, None]]],
        is_live: bool,
        middleware: Mapping[str, Middleware | None],
    ) -> Handlers:
        budget = state.budget
        run = OuterRun(state, options, start, scheduler() if is_live else None, get_ident())
        source = self._source_of(self.client)
        complete = source.complete if isinstance(source, OpenAISource) else isolated(source.complete)
        call_tool = ToolCaller(self._function_runner(), self._tool_error, state.id, run)
        if budget is not None:
            budget.provider_url = str(getattr(self.client, "base_url", "")) or None
        stack = MiddlewareStack(
            budget=None if budget is None else budget_middleware(state, budget),
            debug=debug_middleware(execute_tools=options.execute_tools) if options.debug else None,
            user=self._middleware,
            rate_limits=self._rate_limiter.middleware(source),
            **middleware,
        )
        return stack.wrap(Handlers(complete, call_tool, RunInfo(state.id, state, running_call.get(), run)))

    async def _instruct(self, agent: Agent, context: dict[str, Any]) -> Any:
        return await resolve_instructions(agent, context, self._function_runner)

    def _source_of(self, client: Any) -> CompletionSource:
        return source_for(client, api=self._api, include_usage=self._include_usage is True)

    def _function_runner(self) -> FunctionRunner:
        return self._threads.get()

    def _require_client(self) -> None:
        """Make the client if there is none yet. Raises what making it raises."""
        _ = self.client

    async def aclose(self) -> None:
        """Close the client that was made for this event loop; a client that was passed in belongs to the caller."""
        client = self._own_clients.pop()
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def prepare_recorded(
    swarm: AsyncSwarm, options: RunOptions, deliver: EventDelivery, recorder: Middleware, *, stream: bool
) -> tuple[RunState, AsyncGenerator[LoopEvent, None]]:
    """A run of the swarm with a middleware of a room above, in the place of the journal: its state and its events."""
    return swarm._prepare(options, deliver, stream=stream, journal=recorder)  # noqa: SLF001 - of this module


def with_middleware(swarm: AsyncSwarm, outermost: Middleware, innermost: Middleware) -> AsyncSwarm:
    """The swarm with this middleware around its own and inside of it. It shares clients and limits with the one that is given."""
    own = swarm._middleware  # noqa: SLF001 - of this module
    changed = copy.copy(swarm)
    changed._middleware = chain([outermost, *([] if own is None else [own]), innermost])  # noqa: SLF001 - of this module
    return changed


def has_rate_limits(swarm: AsyncSwarm) -> bool:
    """Whether the swarm was given `limits=`."""
    return swarm._rate_limiter.has_limits  # noqa: SLF001 - of this module
