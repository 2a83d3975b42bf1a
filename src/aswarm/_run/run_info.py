"""Information about a run, for middleware and for the functions of its calls, and the runs that they start inside it."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from typing_extensions import Unpack

from aswarm._tools.filled import filled_parameters
from aswarm._values.agent import Agent, C, Response, as_type
from aswarm._values.budget import Budget
from aswarm._values.decisions import Resume
from aswarm._values.events import Event, LoopEvent
from aswarm._values.messages import Message, MessageBlock
from aswarm._values.output import as_output
from aswarm._values.run_keywords import Context, Messages, RunKeywords, checked_keywords
from aswarm._values.usage import CacheMiss, Usage
from aswarm._wire.request import CompletionRequest

from .call import Call, ToolCall
from .filling import read_arguments
from .options import ResultStore, RunOptions, RunOwner
from .state import EndCallback, RunState
from .streams import to_end, typed


@dataclass(frozen=True, slots=True)
class OuterRun:
    """The run of the current tool call, for the runs that the tool starts.

    `start`: starts a run with the same client, limits and middleware. It returns the state and the events; reading the events
    drives the run.
    `call_soon`: schedules a callback in the thread of the event loop; None if the events of tools are not delivered live.
    `thread`: the id of the thread of the event loop.
    `tool_call`: the call of the outer run whose function has started the run, or None.
    """

    state: RunState
    options: RunOptions
    start: Callable[[RunOptions], tuple[RunState, AsyncGenerator[LoopEvent, None]]]
    call_soon: Callable[[Callable[[], None]], object] | None
    thread: int
    tool_call: ToolCall | None


class InnerRun(AsyncIterator[Event]):
    """A run inside a run, see `RunInfo.start`: an async iterator of its events. Reading the events drives the run.

        async with aclosing(current_call().run.start(agent, request)) as run:
            async for event in run:
                progress(event)

    `aclose` ends the run. If the function of a call has started it, the calls of the run whose outcome is unknown are then in
    `Response.unknown_calls` of the outer run.
    """

    def __init__(self, state: RunState, events: AsyncGenerator[LoopEvent, None], caller: Call | None) -> None:
        self._state = state
        self._unread: AsyncGenerator[LoopEvent, None] | None = events
        self._events: AsyncGenerator[Any, None] = events
        self._caller = caller

    @property
    def response(self) -> Response:
        """The results so far, a valid `Response` at any moment."""
        return self._state.response

    @property
    def has_started(self) -> bool:
        """Whether a function has started in the run, or in a run inside it."""
        return self._state.turn.has_started

    def __anext__(self) -> Coroutine[Any, Any, Event]:
        if self._unread is not None:
            self._events, self._unread = typed(self._unread), None
        return self._events.__anext__()

    async def finish(self) -> Response:
        """Read the run to its end, and return its response. Raises the errors of `AsyncSwarm.run`."""
        try:
            return await to_end(self._state, self._events)
        finally:
            self._note_unknown()

    async def aclose(self) -> None:
        """End the run: close the HTTP response, cancel the tools and await their end."""
        try:
            await self._events.aclose()
        finally:
            self._note_unknown()

    def _note_unknown(self) -> None:
        caller, self._caller = self._caller, None
        if caller is not None and not caller.is_merged:  # a task of the function may outlive its call
            caller.note_unknown_inside([*caller.unknown_inside, *self.response.unknown_calls])

    @staticmethod
    def check(agent: Agent, messages: Messages, *, resume: Resume = False, output: Any = None) -> None:
        """Raise ConfigurationError if a run cannot start with these arguments. A tool checks with it the decisions on its call."""
        RunState(agent, messages, None, resume=resume, output=as_output(output))


class RunInfo:
    """Information about the run, for a middleware, and for the function of a call. Each attribute has the current value."""

    __slots__ = ("_caller", "_run")

    def __init__(self, run: OuterRun, caller: Call | None = None) -> None:
        self._run = run
        self._caller = caller  # the call whose function starts runs

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._run.state.id

    @property
    def user(self) -> str | None:
        """The id of the user who owns the run, see `RunRecord`; None outside of `aswarm.runs`. A run inside a run has the same."""
        return self._owner.user

    @property
    def conversation(self) -> str | None:
        """The id of the conversation of the run, or None. A run inside a run has the same."""
        return self._owner.conversation

    @property
    def owner(self) -> str:
        """The owner of the long results of the run, and of the runs inside it, see `ResultStore`."""
        return self._owner.key

    @property
    def results(self) -> ResultStore | None:
        """The place for long results in the store of the conversation, see `Store.results`; None if there is none."""
        return self._owner.results

    @property
    def _owner(self) -> RunOwner:
        return self._run.options.owner or RunOwner(f"run:{self._run.state.id}")

    @property
    def tool_call(self) -> ToolCall | None:
        """The tool call of the outer run that started this run, or None."""
        return self._run.tool_call

    @property
    def agent(self) -> Agent:
        """The active agent."""
        return self._run.state.agent

    @property
    def context_variables(self) -> Mapping[str, Any]:
        """The context variables, as a read-only view. Nested values are the objects of the run, so do not change them."""
        return MappingProxyType(self._run.state.context)

    def context_as(self, kind: type[C]) -> C:
        """Return the context variables as a TypedDict, a dataclass or a pydantic model; a write to it changes nothing else.

        Raises ConfigurationError if the context variables do not fit, or cannot have this type.
        """
        return as_type(self._run.state.context, kind)

    def add_usage(self, usage: Usage, model: str | None) -> None:
        """Add the usage of a request that the middleware itself has sent, to this run, its outer runs, and their budgets.

        `model`: the model of the request; None for the model of the run. Raises ConfigurationError if a budget limits the
        cost and the model has no price.
        """
        self._run.state.prompts.set_price(usage := replace(usage), model)
        self._run.state.spending.add(usage)
        if self._run.state.budget is not None:
            self._run.state.budget.add_price(usage, model)

    def priced(self, request: CompletionRequest, usage: Usage) -> Usage:
        """Return a copy of the usage of the request's answer, whose `cost` is known. Call it before the next request."""
        usage, prompts = replace(usage), self._run.state.prompts
        prompts.set_price(usage, None if prompts.is_of_conversation(request) else request.body["model"])
        return usage

    def cache_miss(self, request: CompletionRequest, usage: Usage) -> CacheMiss | None:
        """Return the miss of the cache by this request, as `CompletionFinished` has it; None for a request of the middleware itself.

        `usage`: the usage of its answer. Call it before the next request.
        """
        prompts = self._run.state.prompts
        return prompts.miss(usage) if prompts.is_of_conversation(request) else None

    @property
    def turn(self) -> int:
        """The number of the current turn, from 1; 0 while calls run that `resume=` has decided on."""
        return self._run.state.turns

    @property
    def messages(self) -> list[Message]:
        """The input and the messages so far, without a turn whose calls have no results yet."""
        return [*self._run.state.history.settled]

    @property
    def blocks(self) -> list[MessageBlock]:
        """The recorded messages in blocks, with their senders; `messages` are their sent form, without senders."""
        return self._run.state.history.blocks

    @property
    def resources(self) -> Mapping[str, object]:
        """The resources of the swarm and of the run, by their names."""
        return self._run.state.resources

    def arguments_for(self, function: Callable[..., Any], context: int | str = "context_variables") -> dict[str, Any]:
        """Return the keyword arguments that the run has for a function of a user: the context variables, and its resources.

        `context`: the parameter for the context variables, by its name or its position. They are read-only. Raises
        ConfigurationError if they do not fit the type of the parameter.
        """
        filled = filled_parameters(function, context)
        return {} if filled is None else read_arguments(filled, self._run.state.context, self.resources)

    @property
    def log_fields(self) -> dict[str, Any]:
        """The id of the run and the name of its agent, for `logger.info(..., extra=run.log_fields)`."""
        return self._run.state.log_fields

    def on_end(self, callback: EndCallback) -> None:
        """Call `callback(response, error)` once at the end of the run, however it ends.

        `response.stop` is the reason: "error" if the run failed, "cancelled" if it was closed or cancelled. `error` is an
        `AswarmError` if the run failed, otherwise None. The callback runs on the event loop of the run, after all handlers
        have finished, and before the caller gets the response or the error. It must not block. Callbacks run in the order in
        which they were added, so the innermost middleware is first. An exception of a callback is logged.
        """
        self._run.state.ending.callbacks += (callback,)

    def start(
        self,
        agent: Agent,
        messages: Messages,
        context_variables: Context = None,
        *,
        output: Any = None,
        **keywords: Unpack[RunKeywords],
    ) -> InnerRun:
        """Return a run inside this run, which starts when it is read: `await info.start(agent, "Is this polite?").finish()`.

        It has the client, the limits and the middleware of this run, and its usage counts here, also for the budget of this run.
        The arguments are as for `AsyncSwarm.stream`. By default, `model_override`, `max_turns`, `debug`, `resources` and
        `prompt_cache_key` are the same as in this run. Without `budget`, the budget of this run applies.
        """
        outer = self._run.options
        own: dict[str, Any] = {
            "model_override": outer.model_override,
            "debug": outer.debug,
            "max_turns": outer.max_turns,
            "resources": outer.resources,
            "prompt_cache_key": outer.prompt_cache_key,
            # With a budget of the outer run, the default budget of the swarm is not added.
            "budget": None if outer.budget is None else Budget(),
            **checked_keywords("start", keywords, RunKeywords),
        }
        is_over = self._caller is not None and self._caller.outcome is not None
        around = None if is_over else self._run.state.spending
        own |= {"output": as_output(output), "around": around, "owner": self._owner}
        options = RunOptions(agent, messages, context_variables, **own)
        return InnerRun(*self._run.start(options), self._caller)
