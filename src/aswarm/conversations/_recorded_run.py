"""One run of a conversation, from its slot in the queue to its last write.

Decides what the run begins with. However the run ends, what it has left is written, and its slot in the queue is free.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from aswarm._agent import Agent, Response
from aswarm._decisions import Decisions
from aswarm._errors import ConfigurationError
from aswarm._events import LoopEvent
from aswarm._messages import (
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    Message,
    last_head,
    match_answers,
    message_blocks,
    normalize,
    open_calls,
    tool_message,
)
from aswarm._run.options import Messages, RunOptions
from aswarm._run.state import RunState
from aswarm._run.streams import EventStream, deliver_after, deliver_live, to_end
from aswarm._swarm import AsyncSwarm, prepare_recorded

from ._agents import KnownAgents
from ._queue import RunSlot, queue_of
from ._recorder import Recorder
from ._records import checked_context
from ._store import Conflict, Store, Stored

logger = logging.getLogger("aswarm")


@dataclass(frozen=True, slots=True)
class RunTarget:
    """What the runs of one conversation share. `load`: the conversation as the store has it, or a new one."""

    id: str
    store: Store
    swarm: AsyncSwarm
    agents: KnownAgents
    load: Callable[[], Awaitable[Stored]]


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a caller asks of one run. `options` makes its options of the agent, the history, the context and `resume`.

    `revision`: the one that the stored conversation must have, None for any. `stored`: the conversation, if the caller has
    just loaded it; for a run with new messages, whose first write finds out that it has changed since.
    """

    options: Callable[..., RunOptions]
    messages: Messages = ()
    context_variables: Mapping[str, Any] | None = None
    agent: Agent | None = None
    resume: bool | Decisions = False
    revision: str | None = None
    stored: Stored | None = None


class RecordedRun:
    """One run of one conversation: `open` begins it, `close` ends it."""

    def __init__(self, target: RunTarget, request: RunRequest) -> None:
        self._target = target
        self._request = request
        self._slot: RunSlot
        self._recorder: Recorder | None = None
        self._state: RunState

    async def to_end(self) -> Response:
        """Run until the model answers."""
        events = await self.open(is_live=False, deltas=False)
        try:
            response = await to_end(self._state, events)
        except BaseException as error:
            await self.close(error)
            raise
        await self.close()
        return response

    async def stream(self, *, deltas: bool) -> EventStream:
        """Begin the run, and return its events."""
        events = await self.open(is_live=True, deltas=deltas)
        return EventStream(self._state, events)

    async def open(self, *, is_live: bool, deltas: bool) -> AsyncGenerator[LoopEvent, None]:
        """Wait for the runs before this one, load the conversation, write what the run begins with, and begin it."""
        target = self._target
        self._slot = await queue_of(target.store, target.id).acquire()
        known = self._request.stored
        try:
            if known is not None:
                with suppress(Conflict):
                    return await self._prepare(known, is_live=is_live, deltas=deltas)
                self._recorder = None
            return await self._prepare(await target.load(), is_live=is_live, deltas=deltas)
        except BaseException as error:
            await self.close(error)
            raise

    async def _prepare(self, stored: Stored, *, is_live: bool, deltas: bool) -> AsyncGenerator[LoopEvent, None]:
        request, target = self._request, self._target
        history = with_new(stored, normalize(request.messages))
        if request.revision not in (None, stored.revision):
            conflict = Conflict(target.id, stored if stored.revision else None)
            conflict.messages = history
            raise conflict
        if request.resume is True:
            _check_can_resume(target.id, history)
        agent = request.agent or (target.agents.get(stored.agent, target.id) if stored.agent else target.agents.start)
        context = {**stored.context_variables, **checked_context(request.context_variables)}
        options = request.options(agent, history, context, resume=request.resume)
        recorder = Recorder(target.store, stored, history, target.agents.check, self._slot)
        deliver = deliver_live if is_live else deliver_after
        self._state, events = prepare_recorded(target.swarm, options, deliver, recorder.wrap, stream=deltas)
        self._recorder = recorder
        recorder.response = lambda: self._state.response
        await recorder.save()
        return recorder.events(events)

    async def close(self, error: BaseException | None = None) -> None:
        """Write what the run has left, and let the next one begin. `error`: what has ended the run, if anything.

        Raises what the write raises, unless `error` says that the caller has an exception to raise already.
        """
        try:
            if self._recorder is not None:
                await self._recorder.finish()
        except Exception as failure:
            if error is None:
                raise
            if error is not failure:  # the exception of the run is more important
                fields = self._state.log_fields
                logger.exception("the conversation %r could not be written", self._target.id, extra=fields)
        finally:
            self._slot.release()


class ConversationStream:
    """What `Conversation.stream` returns: `async with` it for the `EventStream` of the run.

    Entering the block waits for earlier runs and writes the new message. Leaving it ends the run, as of `AsyncSwarm.stream`,
    and writes what the run has left.
    """

    def __init__(self, run: RecordedRun, *, deltas: bool) -> None:
        self._run = run
        self._deltas = deltas
        self._events: EventStream | None = None

    async def __aenter__(self) -> EventStream:
        if self._events is not None:
            raise RuntimeError("this stream was entered before; call stream() for each run")
        self._events = await self._run.stream(deltas=self._deltas)
        return await self._events.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._events is None:
            return
        try:
            await self._events.__aexit__(kind, error, traceback)
        except BaseException as failure:
            await self._run.close(error or failure)
            raise
        await self._run.close(error)


def with_new(stored: Stored, messages: list[Message]) -> list[Message]:
    """The stored history and the new messages. New tool messages answer calls; any other one closes those that are open.

    Otherwise the history would have calls in its middle that nothing answers.
    """
    answers = next((at for at, message in enumerate(messages) if message["role"] != "tool"), len(messages))
    history = [*stored.messages, *messages[:answers]]
    if answers == len(messages):
        return history
    return [*closed(history, stored), *messages[answers:]]


def closed(history: list[Message], stored: Stored) -> list[Message]:
    """The history with an answer to each call at its end, in call order."""
    if not open_calls(history):
        return history
    end = last_head(history)
    [(head, answers)] = message_blocks(history[end:])
    calls: list[Message] = head["tool_calls"]
    unknown = {call.id for call in stored.unknown_calls}
    closing = [
        answer or tool_message(call, OUTCOME_UNKNOWN if call["id"] in unknown else INTERRUPTED)
        for call, answer in zip(calls, match_answers(calls, answers), strict=True)
    ]
    return [*history[: end + 1], *closing]


def _check_can_resume(conversation_id: str, history: list[Message]) -> None:
    if not history or (history[-1]["role"] == "assistant" and not open_calls(history)):
        raise ConfigurationError(
            f"the conversation {conversation_id!r} has nothing to resume: its last message is an answer. Use run() with a new message"
        )
