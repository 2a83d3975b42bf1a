"""`Conversation`: runs whose history is in a store. A caller of `run()` and `stream()`.

It is what a user calls. `_recorded_run` decides what a run begins with, `_recorder` what is written while it runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeVar, overload

from aswarm._agent import Agent, Response
from aswarm._budget import Budget
from aswarm._context import copy_containers
from aswarm._decisions import Decisions
from aswarm._errors import ConfigurationError
from aswarm._messages import Message, normalize
from aswarm._output import Output, as_output
from aswarm._run.options import Messages, RunOptions
from aswarm._swarm import AsyncSwarm

from ._agents import KnownAgents
from ._queue import queue_of
from ._recorded_run import ConversationStream, RecordedRun, RunRequest, RunTarget
from ._records import checked_context, checked_id
from ._store import Change, Store, Stored

T = TypeVar("T")


class Conversation:
    """One conversation in a store. Cheap to make; `store.conversation(...)` makes one too.

    `conversation_id`: any text that is not empty. `swarm`: runs the agents. `agent`: the one that a new conversation begins
    with. `agents`: others that it may be with; those that can be found
    from them need not be listed (`aswarm.graph` shows which). `context_variables`: those of a new conversation.

    Each run loads the conversation, writes the new message first, then what happens, and on every exit what
    `response` says. Runs of one conversation in one process (with one store object, in one event loop) wait for each
    other. If another process has written to the conversation meanwhile, a run raises `Conflict`.
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
        self._target = RunTarget(checked_id(conversation_id), store, swarm, KnownAgents(agent, agents), self.load)
        self._context = checked_context(context_variables)

    @property
    def id(self) -> str:
        """The id of the conversation in its store."""
        return self._target.id

    async def load(self) -> Stored:
        """The conversation as the store has it; one without messages if it was never written."""
        stored = await self._target.store.load(self.id)
        agent = self._target.agents.start.name
        return stored or Stored(self.id, agent=agent, context_variables=copy_containers(self._context))

    # --- runs ---

    @overload
    async def run(
        self,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        agent: Agent | None = None,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: None = None,
    ) -> Response: ...

    @overload
    async def run(
        self,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        agent: Agent | None = None,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: type[T] | Output[T],
    ) -> Response[T]: ...

    @overload
    async def run(
        self,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        agent: Agent | None = None,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any,
    ) -> Response: ...

    async def run(
        self,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        agent: Agent | None = None,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
    ) -> Response:
        """Add messages and run until the model answers. The other arguments are those of `AsyncSwarm.run`.

        `messages`: the new ones only; a str is one of the user. Calls that are still open are answered as not run, or as
        unknown if they had begun; `resume` runs them instead. `context_variables`: added to the stored ones.
        `agent`: takes the conversation over; by default the stored one continues.

        Raises what `AsyncSwarm.run` raises, and `Conflict`. ConfigurationError also for context variables that are not
        JSON, for a stored agent that cannot be found, and for a run inside a tool of the same conversation.
        """
        options = _options(model_override, debug, max_turns, execute_tools, run_id, budget, output)
        return await RecordedRun(self._target, RunRequest(options, messages, context_variables, agent)).to_end()

    def stream(
        self,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        agent: Agent | None = None,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
        deltas: bool = True,
    ) -> ConversationStream:
        """Add messages and run with typed events: `async with chat.stream("...") as run: async for event in run: ...`.

        Takes what `run` takes and raises what it raises: when the block is entered, while it reads, or when it is left.
        `RunFinished` comes once the answer is in the store.
        """
        options = _options(model_override, debug, max_turns, execute_tools, run_id, budget, output)
        run = RecordedRun(self._target, RunRequest(options, messages, context_variables, agent))
        return ConversationStream(run, deltas=deltas)

    async def resume(
        self,
        decisions: bool | Decisions = True,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        revision: str | None = None,
        agent: Agent | None = None,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
    ) -> Response:
        """Continue what the last run has left. `decisions`: as `resume=` of `AsyncSwarm.run`; True runs all open calls.

        Without open calls, after an error or a crash, it asks the model again. `revision`: that of the `Stored` which the
        decisions are about. If the store has another one by then, nothing runs, and `Conflict` is raised.
        Raises what `run` raises, and ConfigurationError if the last message is an answer.
        """
        options = _options(model_override, debug, max_turns, execute_tools, run_id, budget, output)
        return await RecordedRun(
            self._target, _resumed(options, decisions, context_variables, agent, revision)
        ).to_end()

    def resume_stream(
        self,
        decisions: bool | Decisions = True,
        context_variables: Mapping[str, Any] | None = None,
        model_override: str | None = None,
        debug: bool = False,
        max_turns: float = math.inf,
        execute_tools: bool = True,
        *,
        revision: str | None = None,
        agent: Agent | None = None,
        run_id: str | None = None,
        budget: Budget | None = None,
        output: Any = None,
        deltas: bool = True,
    ) -> ConversationStream:
        """`resume` with typed events."""
        options = _options(model_override, debug, max_turns, execute_tools, run_id, budget, output)
        return ConversationStream(
            RecordedRun(self._target, _resumed(options, decisions, context_variables, agent, revision)), deltas=deltas
        )

    # --- the conversation as a whole ---

    async def fork(self, new_id: str, *, at: int | None = None) -> Conversation:
        """Copy the conversation, or its first `at` messages, to a new id. Returns the new conversation.

        Its agent and its context variables are those from when the conversation had `at` messages. Raises `Conflict` if
        the store has `new_id`, ConfigurationError if there are not so many messages.
        """
        target = self._target
        length = len((await self.load()).messages)
        if at is not None and not 0 <= at <= length:
            raise ConfigurationError(f"the conversation {self.id!r} has {length} messages and cannot be forked at {at}")
        await target.store.fork(self.id, checked_id(new_id), until=at)
        return self._with_id(new_id)

    def _with_id(self, new_id: str) -> Conversation:
        target = self._target
        return Conversation(
            target.store,
            new_id,
            target.swarm,
            agent=target.agents.start,
            agents=target.agents.listed,
            context_variables=self._context,
        )

    async def replace(
        self, messages: list[Message], *, agent: Agent | None = None, context_variables: Mapping[str, Any] | None = None
    ) -> None:
        """Set the whole history: import one, or take back its last messages. It waits for runs, as a run does.

        `agent` and `context_variables`: by default the stored ones.
        """
        target = self._target
        slot = await queue_of(target.store, self.id).acquire()
        try:
            stored = await self.load()
            if agent is not None:
                target.agents.check(agent)
            change = Change(
                stored.revision,
                os.urandom(8).hex(),
                0,
                normalize(messages),
                stored.agent if agent is None else agent.name,
                stored.context_variables if context_variables is None else checked_context(context_variables),
            )
            await target.store.write(self.id, change)
        finally:
            slot.release()


def _options(
    model_override: str | None,
    debug: bool,
    max_turns: float,
    execute_tools: bool,
    run_id: str | None,
    budget: Budget | None,
    output: Any,
) -> partial[RunOptions]:
    return partial(
        RunOptions,
        model_override=model_override,
        debug=debug,
        max_turns=max_turns,
        execute_tools=execute_tools,
        run_id=run_id,
        budget=budget,
        output=as_output(output),
    )


def _resumed(
    options: partial[RunOptions],
    decisions: bool | Decisions,
    context_variables: Mapping[str, Any] | None,
    agent: Agent | None,
    revision: str | None,
) -> RunRequest:
    if decisions is False:
        raise ConfigurationError(
            "resume takes True, or decisions by the id of the call such as {'call_1': False}; not False"
        )
    return RunRequest(options, (), context_variables, agent, decisions, revision)


def stream_from(
    chat: Conversation,
    stored: Stored,
    messages: Messages,
    context_variables: Mapping[str, Any] | None,
    *,
    max_turns: float,
    run_id: str,
) -> ConversationStream:
    """`chat.stream(messages, ...)` for a caller that has just loaded the conversation. If it has changed since, it is loaded again."""
    options = partial(RunOptions, max_turns=max_turns, run_id=run_id)
    run = RecordedRun(chat._target, RunRequest(options, messages, context_variables, stored=stored))  # noqa: SLF001 - of this module
    return ConversationStream(run, deltas=True)
