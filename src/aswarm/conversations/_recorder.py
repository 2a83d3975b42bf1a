"""What a run leaves in the store while it goes on: a middleware, and the writes behind it.

What is written is always `run.response` of that moment, which is what the run would leave if it ended there. So a process
that dies leaves in the store what a cancelled run leaves: calls that had ended have their results, a call that had begun
is answered "cancelled; its outcome is unknown", one that had not is open. Nothing has to be repaired when it is read.

It is written, in this order, before the run begins, before a function is called, when a call has ended, before the next
completion, and on every exit. Several calls that wait for a write share one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from aswarm._agent import Agent, Response
from aswarm._errors import AswarmError, CallerMistake, Hold, RunRefused
from aswarm._events import LoopEvent, RunFinished
from aswarm._messages import Message
from aswarm._run.handlers import Handlers, Started
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._runtime.backend import BackgroundTask, wait_shielded
from aswarm._wire.request import CompletionRequest

from ._queue import RunSlot
from ._records import context_error, faults
from ._store import Change, Conflict, Store, Stored


class Recorder:
    """Writes one run of one conversation. `response`: what the run has done so far; to be set before the first `save`.

    `history`: the messages that the run begins with. `check_agent` raises CallerMistake for an agent that no later run
    could find by its name. `slot`: that of the run in its queue.
    """

    def __init__(
        self,
        store: Store,
        stored: Stored,
        history: list[Message],
        check_agent: Callable[[Agent], None],
        slot: RunSlot,
    ) -> None:
        self.response: Callable[[], Response]
        self._slot = slot
        self._store = store
        self._stored = stored  # what the store has, as far as this writer knows
        self._history = history
        self._check_agent = check_agent
        self._uncertain: Change | None = None  # a write that was interrupted: the store may have it
        self._failure: Exception | None = None
        self._is_final = self._is_finished = self._is_refused = False
        self._wanted = self._written = 0
        self._writing: anyio.Event | None = None

    # --- the middleware ---

    def wrap(self, handlers: Handlers) -> Handlers:
        """The handlers, which write before and after they act."""

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            await self.save()
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk

        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            self._slot.enter_tool()
            return await self._call(handlers, call, context, started)

        handlers.run.on_end(self._note_end)
        return replace(handlers, complete=complete, call_tool=call_tool)

    def _note_end(self, _: Response, error: AswarmError | None) -> None:
        self._is_refused = isinstance(error, RunRefused)

    async def _call(self, handlers: Handlers, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        is_handoff = call.tool is not None and call.tool.is_handoff
        has_begun = False

        async def record_start() -> None:
            nonlocal has_begun
            if not is_handoff:  # it has no effect
                has_begun = True
                await self._save_start(call)
            await started()

        try:
            outcome = await handlers.call_tool(call, context, record_start)
        except Hold as hold:
            if has_begun and not call.started:
                call.hold = hold
                await self.save()
            raise
        if has_begun and isinstance(outcome, ToolOutcome):  # pyright: ignore[reportUnnecessaryIsInstance] - a middleware may return anything
            call.outcome = outcome
            await self.save()
        return outcome

    async def _save_start(self, call: ToolCall) -> None:
        """Write that the function may have begun. It must not begin unless this returns."""
        call.started = True
        try:
            await self.save()
        except BaseException:
            call.started = False
            raise

    async def events(self, events: AsyncGenerator[LoopEvent, None]) -> AsyncGenerator[LoopEvent, None]:
        """The events; the last one comes once everything is written."""
        async with aclosing(events):
            async for event in events:
                if isinstance(event, RunFinished):
                    await self.finish()
                yield event

    # --- writing ---

    async def save(self) -> None:
        """Write the run as it is now. Returns once the store has it. Raises what the write raises."""
        self._wanted += 1
        wanted = self._wanted
        while self._written < wanted:
            if self._failure is not None:
                raise self._failure
            if self._writing is None:
                # A task of its own: a cancellation of the run must not leave a write half done.
                self._writing = anyio.Event()
                BackgroundTask(self._write, on_end=partial(self._end_write, self._writing))
            await self._writing.wait()

    async def finish(self) -> None:
        """Write what the run has left, even if the current task is cancelled. Raises what the write raises.

        The error has the response of the run.
        """
        if not isinstance(self._failure, Conflict) and (self._failure is not None or not self._is_final):
            self._is_final = True
            self._failure = None
            await self._finish_shielded()
        self._raise_failure()

    async def _finish_shielded(self) -> None:
        interrupted: BaseException | None = None
        while not self._is_finished:  # the end of an event loop cancels the task that writes, too
            ended = anyio.Event()
            BackgroundTask(self._finish, on_end=ended.set)
            try:
                await wait_shielded(ended)
            except anyio.get_cancelled_exc_class() as error:
                interrupted = error
        self._is_finished = False
        if interrupted is not None:
            raise interrupted

    def _raise_failure(self) -> None:
        if self._failure is not None:
            if isinstance(self._failure, AswarmError) and self._failure.response is None:
                self._failure.response = self.response()
            raise self._failure

    async def _finish(self) -> None:
        try:
            await self.save()
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._failure = error
        self._is_finished = True

    def _end_write(self, event: anyio.Event) -> None:
        self._writing = None
        event.set()

    async def _write(self) -> None:
        wanted = self._wanted
        try:
            if self._uncertain is not None:  # it may have been done: then this changes nothing
                await self._send(self._uncertain)
            change, fault = self._change()
            if fault is not None and not self._is_final:
                raise CallerMistake(fault)
            if change is not None:
                await self._send(change)
            self._written = wanted
            if fault is not None:
                raise CallerMistake(fault)
        except Exception as error:  # noqa: BLE001 - raised by `save`
            self._failure = error

    async def _send(self, change: Change) -> None:
        self._uncertain = change
        try:
            await self._store.write(self._stored.id, change)
        except Conflict as conflict:
            conflict.messages = [*self._history, *self.response().messages]
            raise
        self._uncertain = None
        messages = [*self._stored.messages[: change.keep], *change.messages]
        self._stored = replace(
            self._stored,
            revision=change.revision,
            messages=messages,
            agent=change.agent,
            context_variables=change.context_variables,
            stop=change.stop,
            unknown_calls=list(change.unknown_calls),
        )

    def _change(self) -> tuple[Change | None, str | None]:
        """What the store does not have yet, if anything; and what cannot be stored of it, if anything."""
        response, stored = self.response(), self._stored
        messages = [*self._history, *response.messages]
        while self._is_refused and messages and messages[-1]["role"] == "user":
            del messages[-1]
        keep = common_messages(stored.messages, messages)
        agent, agent_fault = self._agent_name(response.agent)
        context, context_fault = _storable(response.context_variables, stored.context_variables)
        change = Change(
            stored.revision,
            os.urandom(8).hex(),
            keep,
            messages[keep:],
            agent,
            context,
            response.stop if self._is_final else None,
            response.unknown_calls,
        )
        is_known = len(stored.messages) == len(messages) == keep and _rest(stored) == _rest(change)
        return None if is_known and stored.revision else change, agent_fault or context_fault

    def _agent_name(self, agent: Agent) -> tuple[str, str | None]:
        try:
            self._check_agent(agent)
        except CallerMistake as error:
            return self._stored.agent, str(error)
        return agent.name, None


def common_messages(before: list[Message], after: list[Message]) -> int:
    """How many messages the two begin with that are the same."""
    for position, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new and old != new:
            return position
    return min(len(before), len(after))


def _rest(value: Stored | Change) -> tuple[object, ...]:
    # By its text, because 1 == True == 1.0.
    context = repr(value.context_variables)
    return value.agent, value.stop, list(value.unknown_calls), context


def _storable(context: dict[Any, Any], known: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The context variables that can be stored, with the known value in place of one that cannot; and the first fault."""
    found = dict(faults(context))
    if not found:
        return context, None
    kept = {key: value for key, value in context.items() if key not in found}
    kept |= {key: known[key] for key in found if key in known}
    return kept, context_error(next(iter(found.values())))
