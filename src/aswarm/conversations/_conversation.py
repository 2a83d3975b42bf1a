"""`Conversation`: runs whose history is in a store, and `ConversationStream`.

A run acquires a slot in the queue, loads the conversation, runs, writes its end, and releases the slot. However it ends, its
response is written and its slot is released. `Recorder` decides when a run writes, and `ConversationSink` what it writes.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Generic, Required, Self, Unpack, overload

from typing_extensions import TypeForm

from aswarm._log.stored import Change, Conflict, Stored, checked_context, checked_id
from aswarm._record.recorder import Recorder
from aswarm._run.options import RunOptions, RunOwner
from aswarm._run.state import RunState
from aswarm._run.streams import EventStream, deliver_after, deliver_live, to_end
from aswarm._runtime import clocks
from aswarm._swarm import AsyncSwarm, prepare
from aswarm._tools.directory import AgentDirectory, listed_by_name
from aswarm._values.agent import Agent, Response
from aswarm._values.context import copy_containers
from aswarm._values.decisions import Resume
from aswarm._values.errors import AswarmError, ConfigurationError
from aswarm._values.events import LoopEvent, RunFinished
from aswarm._values.json import is_object, sendable_data
from aswarm._values.messages import Message, normalize, unanswered_calls
from aswarm._values.output import Output, T, T_co
from aswarm._values.run_keywords import Context, Messages, NewRunKeywords, checked_keywords

from ._queue import QueueSlot, queue_of
from ._sink import ConversationSink, with_new, with_sendable_text
from ._store import Store

logger = logging.getLogger("aswarm")

_HANDED_OVER = "the conversation was handed over to the agent"


class _TurnKeywords(NewRunKeywords, total=False):
    agent: Agent | None


class TypedTurn(_TurnKeywords, Generic[T], total=False):
    """Keywords of `run` with `output`."""

    output: Required[TypeForm[T] | Output[T]]


class AnyTurn(_TurnKeywords, total=False):
    """Keywords of `run`."""

    output: Any


class TypedLiveTurn(TypedTurn[T], Generic[T], total=False):
    """Keywords of `stream` with `output`."""

    deltas: bool


class AnyLiveTurn(AnyTurn, total=False):
    """Keywords of `stream`."""

    deltas: bool


class Resumed(AnyTurn, total=False):
    """Keywords of `resume`."""

    revision: str | None


class LiveResumed(Resumed, total=False):
    """Keywords of `resume_stream`."""

    deltas: bool


class Conversation:
    """One conversation in a store. `store.conversation(...)` also creates this object. Creating it does no I/O.

    Each run first loads the conversation and writes the new message. Then it writes its progress and, however it ends, its
    `response`. The runs of one conversation wait for each other if they use the same store object in the same event loop. If
    another process writes to the conversation during a run, the run raises `Conflict`.

    Args:
        store: The store.
        conversation_id: Any text that is not empty.
        swarm: The swarm that runs the agents.
        agent: The agent that starts a new conversation.
        agents: Other agents with which a stored conversation may continue. Agents in `functions` need no entry, and neither do
            agents that are values of these functions, such as globals of their module.
        context_variables: The context variables of a new conversation.
    """

    def __init__(
        self,
        store: Store,
        conversation_id: str,
        swarm: AsyncSwarm,
        *,
        agent: Agent,
        agents: Iterable[Agent] = (),
        context_variables: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(swarm, AsyncSwarm):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's value
            raise ConfigurationError(f"a conversation needs an AsyncSwarm, not {type(swarm).__name__}")
        self._agents = AgentDirectory((agent, *listed_by_name(agents).values()))
        self._context = checked_context(context_variables)
        self._id, self._store, self._swarm = checked_id(conversation_id), store, swarm

    @property
    def id(self) -> str:
        """The id of the conversation in its store."""
        return self._id

    async def load(self) -> Stored:
        """Return the stored conversation, or an empty conversation if it was never written."""
        return await self._store.load(self._id) or self._new()

    def _new(self) -> Stored:
        return Stored(self._id, agent=self._agents.start.name, context_variables=copy_containers(self._context))

    # --- runs ---

    @overload
    async def run(
        self, messages: Messages, context_variables: Context = None, **keywords: Unpack[TypedTurn[T]]
    ) -> Response[T]: ...

    @overload
    async def run(
        self, messages: Messages, context_variables: Context = None, **keywords: Unpack[AnyTurn]
    ) -> Response: ...

    async def run(self, messages: Messages, context_variables: Context = None, **keywords: Any) -> Response[Any]:
        """Add messages and run until the model answers.

        If the history ends with open calls, these calls are closed. The model reads that a call was not run or, if it had
        started, that its outcome is unknown. Use `resume` to run open calls.

        Args:
            messages: Only the new messages; a str is a message of the user.
            context_variables: Added to the stored context variables.
            agent: The agent that takes over the conversation; by default the stored agent continues.
            output: See `AsyncSwarm.run`.
            keywords: See `RunKeywords`; all but `resume`.

        Raises the errors of `AsyncSwarm.run`, and `Conflict`. Also raises ConfigurationError if a context variable is not JSON,
        if the stored agent cannot be found, or if a tool of a run starts another run of the same conversation.
        """
        arguments = checked_keywords("run", keywords, AnyTurn)
        async with await self._open(messages, context_variables, arguments) as opened:
            return await to_end(opened.state, opened.events)

    @overload
    def stream(
        self, messages: Messages, context_variables: Context = None, **keywords: Unpack[TypedLiveTurn[T]]
    ) -> ConversationStream[T]: ...

    @overload
    def stream(
        self, messages: Messages, context_variables: Context = None, **keywords: Unpack[AnyLiveTurn]
    ) -> ConversationStream: ...

    def stream(self, messages: Messages, context_variables: Context = None, **keywords: Any) -> ConversationStream[Any]:
        """Add messages and run with typed events: `async with chat.stream("...") as run: async for event in run: ...`.

        The arguments and the errors are the same as for `run`. An error is raised when the block starts, while events are read,
        or when the block ends. The answer is stored before the event `RunFinished`.
        """
        arguments = checked_keywords("stream", keywords, AnyLiveTurn)
        deltas = arguments.pop("deltas", True)
        return ConversationStream(partial(self._open, messages, context_variables, arguments, deltas=deltas))

    async def resume(
        self, decisions: Resume = True, context_variables: Context = None, **keywords: Unpack[Resumed]
    ) -> Response:
        """Continue the last run: run its open calls. Without open calls, for example after an error, repeat its last request.

        Args:
            decisions: As `resume=` of `AsyncSwarm.run`: by default, open calls run, except calls that need a decision. A dict
                decides on calls, and `Approve.all()` approves all.
            context_variables: See `run`.
            revision: The `revision` of the `Stored` on which the decisions are based. If the conversation has changed since
                then, nothing runs, and `Conflict` is raised.
            agent: See `run`.
            output: See `run`.
            keywords: See `run`.

        Raises the errors of `run`. Also raises ConfigurationError if the last message is an answer.
        """
        arguments = checked_keywords("resume", keywords, Resumed)
        async with await self._open((), context_variables, _resuming(decisions, arguments)) as opened:
            return await to_end(opened.state, opened.events)

    def resume_stream(
        self,
        decisions: Resume = True,
        context_variables: Context = None,
        **keywords: Unpack[LiveResumed],
    ) -> ConversationStream:
        """Continue the last run like `resume`, and yield typed events like `stream`."""
        arguments = checked_keywords("resume_stream", keywords, LiveResumed)
        deltas = arguments.pop("deltas", True)
        arguments = _resuming(decisions, arguments)
        return ConversationStream(partial(self._open, (), context_variables, arguments, deltas=deltas))

    async def _open(
        self, messages: Messages, context: Context, keywords: Mapping[str, Any], *, deltas: bool | None = None
    ) -> _OpenConversation:
        """Wait for earlier runs, load the conversation, write the new messages, and start the run.

        `deltas`: for live events, whether they have deltas; otherwise None.
        """
        slot = await queue_of(self._store, self._id).acquire()
        try:
            stored = with_sendable_text(await self._store.load(self._id) or self._new())
            history = with_new(stored, normalize(messages))
            options = self._options(stored, history, context, dict(keywords))
            sink = ConversationSink(self._store, stored, history, partial(self._agents.check, what=_HANDED_OVER))
            recorder = Recorder(sink, slot.enter_tool)
            deliver = deliver_after if deltas is None else deliver_live
            state, events = prepare(self._swarm, options, deliver, stream=bool(deltas), recorder=recorder.wrap)
        except BaseException:
            slot.release()
            raise
        recorder.use(state)
        opened = _OpenConversation(sink, state, events, slot)
        try:
            await sink.commit()
        except BaseException as error:
            await opened.close(error)
            raise
        return opened

    def _options(
        self, stored: Stored, history: list[Message], context: Context, keywords: dict[str, Any]
    ) -> RunOptions:
        """Return the options of a run. Raises Conflict, or ConfigurationError if there is nothing to resume."""
        resume, agent = keywords.get("resume", False), keywords.pop("agent", None)
        if keywords.pop("revision", None) not in (None, stored.revision):
            conflict = Conflict(self._id, stored if stored.revision else None)
            conflict.messages = history
            raise conflict
        is_answered = not history or (history[-1]["role"] == "assistant" and not unanswered_calls(history))
        if is_answered and resume is not False and not (is_object(resume) and resume):
            why = "its last message is an answer" if history else "it has no messages"
            raise ConfigurationError(f"the conversation {self._id!r} has nothing to resume: {why}; send a new message")
        if agent is None:
            what = f"the conversation {self._id!r} is with the agent"
            agent = self._agents.get(stored.agent, what) if stored.agent else self._agents.start
        owner = RunOwner(f"conversation:{self._id}", None, self._id, self._store.results)
        variables = {**stored.context_variables, **checked_context(context)}
        return RunOptions(agent, history, variables, owner=owner, **keywords)

    # --- the conversation as a whole ---

    async def fork(self, new_id: str, *, until: int | None = None) -> Conversation:
        """Copy the conversation, or its first `until` messages, to a new id. Returns the new conversation.

        The copy has the agent and the context variables from the time when the conversation had `until` messages. Raises `Conflict`
        if the store already has `new_id`. Raises ConfigurationError if the conversation has fewer than `until` messages.
        """
        length = len((await self.load()).messages)
        if until is not None and not 0 <= until <= length:
            raise ConfigurationError(
                f"the conversation {self.id!r} has {length} messages and cannot be forked at {until}"
            )
        await self._store.fork(self.id, checked_id(new_id), until=until)
        agent, agents = self._agents.start, self._agents.listed.values()
        return Conversation(
            self._store, new_id, self._swarm, agent=agent, agents=agents, context_variables=self._context
        )

    async def replace(
        self, messages: list[Message], *, agent: Agent | None = None, context_variables: Mapping[str, Any] | None = None
    ) -> None:
        """Replace the whole history, to import a history or to remove the last messages.

        First, this waits for the runs of the conversation in this process. By default, the stored agent and context variables
        stay.
        """
        slot = await queue_of(self._store, self.id).acquire()
        try:
            stored = await self.load()
            if agent is not None:
                self._agents.check(agent, _HANDED_OVER)
            name = stored.agent if agent is None else agent.name
            context = stored.context_variables if context_variables is None else checked_context(context_variables)
            revision, history = clocks.urandom(8).hex(), normalize(sendable_data(messages))
            change = Change(stored.revision, revision, 0, history, name, context)
            await self._store.write(self.id, change)
        finally:
            slot.release()


def _resuming(decisions: Resume, keywords: dict[str, Any]) -> dict[str, Any]:
    if decisions is False:
        raise ConfigurationError(
            "resume() takes no argument, True, a dict of decisions by call id, such as {'call_1': False}, or Approve.all(); "
            "not False"
        )
    return {**keywords, "resume": decisions}


class _OpenConversation:
    """A conversation with an active run. The end of `async with` writes the end of the run, and releases its slot.

    It raises the exception of a failed write. If the run has another exception, the failed write is only logged.
    """

    def __init__(
        self, sink: ConversationSink, state: RunState, events: AsyncGenerator[LoopEvent, None], slot: QueueSlot
    ) -> None:
        self.state = sink.state = state
        self.events = events
        self._sink = sink
        self._slot = slot
        self._error: AswarmError | None = None
        self.state.ending.callbacks += (self._note_error,)

    async def live_events(self) -> AsyncGenerator[LoopEvent, None]:
        """Yield the events. Before `RunFinished`, write the end of the run."""
        async with aclosing(self.events):
            async for event in self.events:
                if isinstance(event, RunFinished):
                    await self._sink.finish(self.state.response, self._error)
                yield event

    def _note_error(self, _: Response, error: AswarmError | None) -> None:
        self._error = error

    async def close(self, error: BaseException | None) -> None:
        """Write the end of the run, and release its slot. `error`: the exception of the run, which the caller raises."""
        try:
            await self._sink.finish(self.state.response, self._error)
        except Exception as failure:
            if error is None:
                raise
            is_raised = error is failure or (isinstance(failure, ConfigurationError) and str(failure) == str(error))
            if not is_raised:  # the caller raises the exception of the run, which is more important
                what = "the conversation %r could not be written"
                logger.exception(what, self._sink.conversation_id, extra=self.state.log_fields)
        finally:
            self._slot.release()

    async def __aenter__(self) -> Self:
        return self

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Awaitable[None]:
        return self.close(error)


class ConversationStream(Generic[T_co]):
    """The context manager of `Conversation.stream`. `async with` returns the `EventStream` of the run.

    The start of the block waits for earlier runs and writes the new message. The end of the block stops the run, as for
    `AsyncSwarm.stream`, and writes its response.
    """

    def __init__(self, start: Callable[[], Awaitable[_OpenConversation]]) -> None:
        self._start = start
        self._opened: _OpenConversation | None = None
        self._events: EventStream[T_co]

    async def __aenter__(self) -> EventStream[T_co]:
        if self._opened is not None:
            raise RuntimeError("this stream was already entered; call stream() for each run")
        self._opened = opened = await self._start()
        self._events = EventStream(opened.state, opened.live_events())
        return await self._events.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened is None:
            return
        try:
            await self._events.__aexit__(kind, error, traceback)
        except BaseException as failure:
            await self._opened.close(error or failure)
            raise
        await self._opened.close(error)
