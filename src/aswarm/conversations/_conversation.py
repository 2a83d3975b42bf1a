"""`Conversation`: runs whose history is in a store. It calls `run()` and `stream()`.

`_recorded_run` decides how a run starts. `_recorder` decides when a run writes to the store, and what it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, Required, Unpack, overload

from typing_extensions import TypeForm

from aswarm._log.stored import Change, Stored
from aswarm._log.texts import checked_context, checked_id
from aswarm._runtime import clocks
from aswarm._swarm import AsyncSwarm
from aswarm._tools.directory import AgentDirectory, listed_by_name
from aswarm._values.agent import Agent, Response
from aswarm._values.decisions import Resume
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import sendable_data
from aswarm._values.messages import Message, normalize
from aswarm._values.output import Output, T
from aswarm._values.run_keywords import Context, Messages, NewRunKeywords, checked_keywords

from ._queue import queue_of
from ._recorded_run import HANDED_OVER, ConversationStream, RecordedRun, RunRequest, RunTarget
from ._store import Store


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
        directory = AgentDirectory((agent, *listed_by_name(agents).values()))
        context = checked_context(context_variables)
        self._target = RunTarget(checked_id(conversation_id), store, swarm, directory, context)

    @property
    def id(self) -> str:
        """The id of the conversation in its store."""
        return self._target.id

    async def load(self) -> Stored:
        """Return the stored conversation, or an empty conversation if it was never written."""
        return await self._target.load()

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
        request = RunRequest(messages, context_variables, arguments.pop("agent", None), arguments)
        return await RecordedRun(self._target, request).to_end()

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
        request = RunRequest(messages, context_variables, arguments.pop("agent", None), arguments)
        return ConversationStream(RecordedRun(self._target, request), deltas=deltas)

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
        request = _resumed(decisions, context_variables, arguments)
        return await RecordedRun(self._target, request).to_end()

    def resume_stream(
        self,
        decisions: Resume = True,
        context_variables: Context = None,
        **keywords: Unpack[LiveResumed],
    ) -> ConversationStream:
        """Continue the last run like `resume`, and yield typed events like `stream`."""
        arguments = checked_keywords("resume_stream", keywords, LiveResumed)
        deltas = arguments.pop("deltas", True)
        request = _resumed(decisions, context_variables, arguments)
        return ConversationStream(RecordedRun(self._target, request), deltas=deltas)

    # --- the conversation as a whole ---

    async def fork(self, new_id: str, *, until: int | None = None) -> Conversation:
        """Copy the conversation, or its first `until` messages, to a new id. Returns the new conversation.

        The copy has the agent and the context variables from the time when the conversation had `until` messages. Raises `Conflict`
        if the store already has `new_id`. Raises ConfigurationError if the conversation has fewer than `until` messages.
        """
        target = self._target
        length = len((await self.load()).messages)
        if until is not None and not 0 <= until <= length:
            raise ConfigurationError(
                f"the conversation {self.id!r} has {length} messages and cannot be forked at {until}"
            )
        await target.store.fork(self.id, checked_id(new_id), until=until)
        agent, agents = target.agents.start, target.agents.listed.values()
        return Conversation(
            target.store, new_id, target.swarm, agent=agent, agents=agents, context_variables=target.context
        )

    async def replace(
        self, messages: list[Message], *, agent: Agent | None = None, context_variables: Mapping[str, Any] | None = None
    ) -> None:
        """Replace the whole history, to import a history or to remove the last messages.

        First, this waits for the runs of the conversation in this process. By default, the stored agent and context variables
        stay.
        """
        target = self._target
        slot = await queue_of(target.store, self.id).acquire()
        try:
            stored = await self.load()
            if agent is not None:
                target.agents.check(agent, HANDED_OVER)
            name = stored.agent if agent is None else agent.name
            context = stored.context_variables if context_variables is None else checked_context(context_variables)
            revision, history = clocks.urandom(8).hex(), normalize(sendable_data(messages))
            change = Change(stored.revision, revision, 0, history, name, context)
            await target.store.write(self.id, change)
        finally:
            slot.release()


def _resumed(decisions: Resume, context_variables: Context, arguments: dict[str, Any]) -> RunRequest:
    if decisions is False:
        raise ConfigurationError(
            "resume() takes no argument, True, a dict of decisions by call id, such as {'call_1': False}, or Approve.all(); "
            "not False"
        )
    agent, revision = arguments.pop("agent", None), arguments.pop("revision", None)
    return RunRequest((), context_variables, agent, arguments, decisions, revision)
