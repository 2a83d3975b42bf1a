"""One run of a conversation: it acquires a slot in the queue, runs, writes its end, and releases the slot.

However the run ends, its response is written and its slot is released.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Generic

from aswarm._log.stored import Conflict, Stored
from aswarm._log.texts import checked_context
from aswarm._run.options import RunOptions
from aswarm._run.state import RunState
from aswarm._run.streams import EventStream, deliver_after, deliver_live, to_end
from aswarm._swarm import AsyncSwarm, prepare
from aswarm._tools.directory import AgentDirectory
from aswarm._values.agent import Agent, Response
from aswarm._values.context import copy_containers
from aswarm._values.decisions import Resume
from aswarm._values.errors import ConfigurationError
from aswarm._values.events import LoopEvent
from aswarm._values.json import is_object, sendable_data
from aswarm._values.messages import (
    OUTCOME_UNKNOWN,
    Message,
    call_arguments,
    call_name,
    last_head,
    match_answers,
    message_blocks,
    normalize,
    open_calls,
    settled,
    started_inside,
)
from aswarm._values.output import T_co
from aswarm._values.run_keywords import Context, Messages

from ._queue import RunSlot, queue_of
from ._recorder import ConversationRecorder
from ._store import Store

logger = logging.getLogger("aswarm")

HANDED_OVER = "the conversation was handed over to the agent"


@dataclass(frozen=True, slots=True)
class RunTarget:
    """The data that all runs of one conversation share. `context`: the context variables of a new conversation."""

    id: str
    store: Store
    swarm: AsyncSwarm
    agents: AgentDirectory
    context: Mapping[str, Any]

    async def load(self) -> Stored:
        """Return the stored conversation, or a new one."""
        stored = await self.store.load(self.id)
        return stored or Stored(self.id, agent=self.agents.start.name, context_variables=copy_containers(self.context))


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A caller's request for one run. `keywords`: other arguments of the run.

    `revision`: the required revision of the conversation, None for any revision.
    """

    messages: Messages
    context_variables: Context
    agent: Agent | None
    keywords: Mapping[str, Any]
    resume: Resume = False
    revision: str | None = None


class RecordedRun:
    """One run of one conversation: `open` starts it, `close` finishes it. `state`: the state of the run, set by `open`."""

    def __init__(self, target: RunTarget, request: RunRequest) -> None:
        self._target = target
        self._request = request
        self.state: RunState
        self._slot: RunSlot
        self._recorder: ConversationRecorder | None = None

    async def to_end(self) -> Response:
        events = await self.open(is_live=False, deltas=False)
        try:
            response = await to_end(self.state, events)
        except BaseException as error:
            await self.close(error)
            raise
        await self.close()
        return response

    async def open(self, *, is_live: bool, deltas: bool) -> AsyncGenerator[LoopEvent, None]:
        """Wait for earlier runs, load the conversation, write the new messages, and start the run."""
        target = self._target
        self._slot = await queue_of(target.store, target.id).acquire()
        try:
            return await self._prepare(with_sendable_text(await target.load()), is_live=is_live, deltas=deltas)
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
        is_answered = not history or (history[-1]["role"] == "assistant" and not open_calls(history))
        if is_answered and request.resume is not False and not (is_object(request.resume) and request.resume):
            raise ConfigurationError(
                f"the conversation {target.id!r} has nothing to resume: its last message is an answer. Use run() with a new message"
            )
        agent = request.agent or target.agents.start
        if request.agent is None and stored.agent:
            agent = target.agents.get(stored.agent, f"the conversation {target.id!r} is with the agent")
        context = {**stored.context_variables, **checked_context(request.context_variables)}
        options = RunOptions(agent, history, context, resume=request.resume, **request.keywords)
        recorder = ConversationRecorder(
            target.store, stored, history, partial(target.agents.check, what=HANDED_OVER), self._slot
        )
        deliver = deliver_live if is_live else deliver_after
        self.state, events = prepare(target.swarm, options, deliver, stream=deltas, recorder=recorder.wrap)
        self._recorder, recorder.state = recorder, self.state
        await recorder.save()
        # For live events, `recorder.events` writes the end before it yields `RunFinished`. Otherwise `close` writes the end.
        return recorder.events(events) if is_live else events

    async def close(self, error: BaseException | None = None) -> None:
        """Write the end of the run, and release its slot. `error`: the exception of the run, which the caller raises.

        Raises the exception of a failed write. If the run has another exception, the failed write is only logged.
        """
        try:
            if self._recorder is not None:
                await self._recorder.finish()
        except Exception as failure:
            if error is None:
                raise
            if error is not failure:  # the caller raises the exception of the run, which is more important
                fields = self.state.log_fields
                logger.exception("the conversation %r could not be written", self._target.id, extra=fields)
        finally:
            self._slot.release()


class ConversationStream(Generic[T_co]):
    """The context manager of `Conversation.stream`. `async with` returns the `EventStream` of the run.

    The start of the block waits for earlier runs and writes the new message. The end of the block stops the run, as for
    `AsyncSwarm.stream`, and writes its response.
    """

    def __init__(self, run: RecordedRun, *, deltas: bool) -> None:
        self._run = run
        self._deltas = deltas
        self._events: EventStream[T_co] | None = None

    async def __aenter__(self) -> EventStream[T_co]:
        if self._events is not None:
            raise RuntimeError("this stream was already entered; call stream() for each run")
        events = await self._run.open(is_live=True, deltas=self._deltas)
        self._events = EventStream(self._run.state, events)
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


def with_sendable_text(stored: Stored) -> Stored:
    """Return the conversation with messages that UTF-8 can encode. Older versions stored any text."""
    messages = sendable_data(stored.messages)
    return stored if messages is stored.messages else replace(stored, messages=messages)


def with_new(stored: Stored, messages: list[Message]) -> list[Message]:
    """Return the stored history with the new messages. A tool message answers an open call; any other message closes all of them.

    Otherwise the history would have unanswered calls before its end, which the API refuses.
    """
    answers = next((at for at, message in enumerate(messages) if message["role"] != "tool"), len(messages))
    history = [*stored.messages, *messages[:answers]]
    if answers == len(messages):
        return history
    return [*closed(history, stored), *messages[answers:]]


def closed(history: list[Message], stored: Stored) -> list[Message]:
    """Return the history without open calls: each open call gets an answer, in call order."""
    if not open_calls(history):
        return history
    end = last_head(history)
    [(head, answers)] = message_blocks(history[end:])
    calls: list[Message] = head["tool_calls"]
    matched, started = match_answers(calls, answers), started_inside(head, history[end + 1 :])
    unknown = _unknown(stored, zip(calls, matched, strict=True))
    texts = {at: OUTCOME_UNKNOWN for at, call in enumerate(calls) if at in started or _key(call) in unknown}
    return [*history[: end + 1], *filter(None, settled(calls, matched, texts))]


def _unknown(stored: Stored, pairs: Iterable[tuple[Message, Message | None]]) -> Counter[tuple[str, str, str]]:
    """Return the calls with an unknown outcome, except calls whose answers say that it is unknown. A provider may repeat an id."""
    unknown = Counter((call.id, call.name, call.arguments) for call in stored.unknown_calls)
    unknown.subtract(
        _key(call) for call, answer in pairs if answer and str(answer["content"]).startswith(OUTCOME_UNKNOWN)
    )
    return +unknown


def _key(call: Message) -> tuple[str, str, str]:
    return str(call["id"]), call_name(call), call_arguments(call)
