"""`ConversationRecorder`: saves a run to its conversation while it runs, as a middleware.

Each write stores the current `run.response`: the response that the run would have if it were cancelled at this moment. So a
dead process leaves the same state as a cancelled run. Finished calls have their results, a started call is answered
"cancelled; its outcome is unknown", and other calls are open. The stored state needs no repair when it is loaded.

The run is written before each request to the model, before and after each call of a function, and at its end. Calls that wait
for a write at the same time share one write.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from aswarm._log.stored import Change, Conflict, Stored
from aswarm._log.texts import context_error, faults
from aswarm._run.call import Call, ToolCall
from aswarm._run.handlers import Handlers, Started
from aswarm._run.outcome import ToolOutcome
from aswarm._run.state import RunState
from aswarm._runtime import clocks
from aswarm._runtime.backend import BackgroundTask, raise_if_own, wait_shielded
from aswarm._values.agent import Agent, Response
from aswarm._values.errors import AswarmError, CallerMistake, Hold, RunRefused
from aswarm._values.events import LoopEvent, RunFinished
from aswarm._values.messages import Message
from aswarm._wire.request import CompletionRequest

from ._queue import RunSlot
from ._store import Store


class ConversationRecorder:
    """Writes one run of one conversation. `state`: the state of the run; set it before the first `save`.

    `history`: the messages that the run starts with. `check_agent`: raises CallerMistake for an agent that a later run could
    not find by its name. `slot`: the slot of the run in its queue.
    """

    def __init__(
        self, store: Store, stored: Stored, history: list[Message], check_agent: Callable[[Agent], None], slot: RunSlot
    ) -> None:
        self.state: RunState
        self._slot = slot
        self._store = store
        self._stored = stored  # the conversation after the last write of this run
        self._history = history
        self._check_agent = check_agent
        self._agent: Agent | None = None  # the last checked agent
        self._uncertain: Change | None = None  # the change of an interrupted write: it may be in the store
        self._failure: Exception | None = None
        self._is_final = self._is_finished = self._is_refused = False
        self._wanted = 0  # the number of calls of `save`
        self._written = 0  # the number of the last call of `save` whose state is in the store
        self._writing: anyio.Event | None = None

    # --- the middleware ---

    def wrap(self, handlers: Handlers) -> Handlers:
        """Return handlers that call `handlers`, and write the run before and after each call."""
        handlers.run.on_end(self._note_end)
        return replace(
            handlers, complete=partial(self._complete, handlers), call_tool=partial(self._call_tool, handlers)
        )

    def _note_end(self, _: Response, error: AswarmError | None) -> None:
        self._is_refused = isinstance(error, RunRefused)

    async def _complete(
        self, handlers: Handlers, request: CompletionRequest
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        await self.save()
        async with aclosing(handlers.complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _call_tool(
        self, handlers: Handlers, call: ToolCall, context: dict[str, Any], started: Started
    ) -> ToolOutcome:
        self._slot.enter_tool()
        if call.tool is not None and call.tool.is_handoff:  # a handoff has no side effect, so its start needs no record
            return await handlers.call_tool(call, context, started)
        call = Call.of(call)
        has_started = False

        async def record_start() -> None:
            nonlocal has_started
            has_started = True
            call.start()
            try:
                await self.save()  # if `save` raises, the function does not start
            except BaseException:
                call.withdraw()
                raise
            await started()

        try:
            outcome = await handlers.call_tool(call, context, record_start)
        except Hold as hold:
            if has_started and not call.has_started:
                call.wait(hold)
                await self.save()
            raise
        if has_started:
            call.finish(outcome)
            await self.save()
        return outcome

    async def events(self, events: AsyncGenerator[LoopEvent, None]) -> AsyncGenerator[LoopEvent, None]:
        """Yield the events. Before the last event, write the end of the run."""
        async with aclosing(events):
            async for event in events:
                if isinstance(event, RunFinished):
                    await self.finish()
                yield event

    # --- writing ---

    async def save(self) -> None:
        """Write the current state of the run, and wait until it is stored. Raises the error of the write."""
        self._wanted += 1
        wanted = self._wanted
        while self._written < wanted:
            if self._failure is not None:
                raise self._failure
            if self._writing is not None:
                await self._writing.wait()
                continue
            self._writing = written = anyio.Event()
            try:
                await self._write()
            except anyio.get_cancelled_exc_class() as error:  # the next call of `_write` repeats the write
                await raise_if_own(error)
            except Exception as error:  # noqa: BLE001 - raised above, or by `finish`
                self._failure = error
            finally:
                self._writing = None
                written.set()

    async def finish(self) -> None:
        """Write the end of the run, even if the current task is cancelled.

        Raises the error of the write. An AswarmError has the response of the run.
        """
        if not isinstance(self._failure, Conflict) and (self._failure is not None or not self._is_final):
            self._is_final = True
            self._failure = None
            await self._finish_shielded()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            if isinstance(self._failure, AswarmError) and self._failure.response is None:
                self._failure.response = self.state.response
            raise self._failure

    async def _finish_shielded(self) -> None:
        interrupted: BaseException | None = None
        while not self._is_finished:  # `asyncio.run` cancels all tasks at its end, even this background task
            ended = anyio.Event()
            BackgroundTask(self._finish, on_end=ended.set)
            try:
                await wait_shielded(ended)
            except anyio.get_cancelled_exc_class() as error:
                interrupted = error
        self._is_finished = False
        if interrupted is not None:
            raise interrupted

    async def _finish(self) -> None:
        with suppress(Exception):  # `finish` raises the exception, which is in `_failure`
            await self.save()
        self._is_finished = True

    async def _write(self) -> None:
        wanted, change, fault = self._wanted, self._uncertain, None
        is_repeated = change is not None  # the store ignores a change that it already has
        if not is_repeated:
            change, fault = self._change()
            if fault is not None and not self._is_final:
                raise CallerMistake(fault)
        if change is not None:
            self._uncertain = change
            try:
                await self._store.write(self._stored.id, change)
            except Conflict as conflict:
                conflict.messages = [*self._history, *self.state.response.messages]
                raise
            self._uncertain = None
            self._stored = replace(
                self._stored,
                revision=change.revision,
                messages=[*self._stored.messages[: change.keep], *change.messages],
                agent=change.agent,
                context_variables=change.context_variables,
                stop=change.stop,
                unknown_calls=list(change.unknown_calls),
            )
        if not is_repeated:
            self._written = wanted
        if fault is not None:
            raise CallerMistake(fault)

    def _change(self) -> tuple[Change | None, str | None]:
        """Return the next change and the fault that prevents a complete write. Both may be None."""
        response, stored, fault = self.state.response, self._stored, None
        messages = [*self._history, *response.messages]
        while self._is_refused and messages and messages[-1]["role"] == "user":
            del messages[-1]
        keep, agent = common_messages(stored.messages, messages), response.agent.name
        if response.agent is not self._agent:
            try:
                self._check_agent(response.agent)
                self._agent = response.agent
            except CallerMistake as error:
                agent, fault = stored.agent, str(error)
        context, context_fault = response.context_variables, None
        if context:
            context, context_fault = storable(context, stored.context_variables)
        stop = response.stop if self._is_final else None
        is_stored = (
            len(stored.messages) == len(messages) == keep
            and (stored.agent, stored.stop, stored.unknown_calls) == (agent, stop, response.unknown_calls)
            and repr(stored.context_variables) == repr(context)  # as text, because 1 == True == 1.0
        )
        revision = clocks.urandom(8).hex()
        change = Change(stored.revision, revision, keep, messages[keep:], agent, context, stop, response.unknown_calls)
        return None if is_stored and stored.revision else change, fault or context_fault


def common_messages(before: list[Message], after: list[Message]) -> int:
    """Return the number of equal messages at the start of both lists."""
    for position, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new and old != new:
            return position
    return min(len(before), len(after))


def storable(context: dict[Any, Any], stored: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the context variables to store, and the first fault or None.

    A variable that is not JSON keeps its stored value.
    """
    faulty = dict(faults(context))
    if not faulty:
        return context, None
    kept = {key: value for key, value in context.items() if key not in faulty}
    kept |= {key: stored[key] for key in faulty if key in stored}
    return kept, context_error(next(iter(faulty.values())))
