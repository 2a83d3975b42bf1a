"""The middleware of the journal: it answers from the record of an item as far as that goes, and then records.

Decides the order of record and effect; the package describes it. `record` decides the form of the records.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from aswarm._errors import AswarmError, ConfigurationError
from aswarm._run.handlers import Handlers, Middleware, Started
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._wire.request import CompletionRequest
from aswarm._wire.whole import as_one_chunk

from .entry import JournalEntry
from .fingerprints import differences, request_fingerprint
from .record import CallKey, completion_data, recorded_outcome
from .turn_changes import TurnChanges


def journal_middleware(entry: JournalEntry) -> Middleware:
    """The middleware for the runs of one item. Each run begins at the start of the record."""

    def wrap(handlers: Handlers) -> Handlers:
        journaled = _JournalHandlers(entry, handlers)
        return replace(handlers, complete=journaled.complete, call_tool=journaled.call_tool)

    return wrap


class _JournalHandlers:
    """The two handlers of one run."""

    def __init__(self, entry: JournalEntry, handlers: Handlers) -> None:
        self._entry = entry
        self._handlers = handlers
        self._turn = 0
        self._changes = TurnChanges(entry.steps.outcomes(0))

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the completion as one whole chunk: the recorded one, or a new one that is then recorded."""
        self._turn += 1
        self._changes = TurnChanges(self._entry.steps.outcomes(self._turn))
        fingerprint = request_fingerprint(request)
        recorded = self._entry.steps.completion(self._turn)
        if recorded is not None:
            if changed := differences(recorded["asked"], fingerprint):
                raise ConfigurationError(self._cannot_resume(changed))
            yield recorded["chunk"]
            return
        async with aclosing(self._handlers.complete(request)) as chunks:
            chunk = as_one_chunk([chunk async for chunk in chunks])
        yield chunk
        # The loop comes back only if it could read the chunk: an answer that is no completion is not recorded.
        self._entry.record("completion", CallKey(self._turn, 0), completion_data(fingerprint, chunk))

    def _cannot_resume(self, changed: list[str]) -> str:
        return (
            f"the item {self._entry.id!r} cannot be resumed: request {self._turn} differs from the recorded one in its "
            f"{' and '.join(changed)}. Resume with the agents that the item began with (put text that changes from day "
            "to day, such as the date, into the messages and not into the instructions), or run the item again under "
            "another id: its tools then run again"
        )

    async def call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        """Answer from the record, or carry out the call and record it."""
        key = CallKey(self._turn, call.position)
        steps = self._entry.steps
        if not steps.has_call(key) or (call.is_repeatable and steps.is_running(key)):
            return await self._call_and_record(key, call, context, started)
        recorded = steps.outcome(key)
        name = recorded.get("agent")
        if not steps.is_running(key):
            self._changes.repeat(context, call.position)
        return recorded_outcome(recorded, None if name is None else self._entry.agents.get(name))

    async def _call_and_record(
        self, key: CallKey, call: ToolCall, context: dict[str, Any], started: Started
    ) -> ToolOutcome:
        # It has no effect, and gives the same answer in a rerun.
        is_handoff = call.tool is not None and call.tool.is_handoff
        if not is_handoff:
            self._changes.repeat(context)

        async def record_start() -> None:
            if not is_handoff:
                await self._entry.commit("started", key)
            await started()

        with self._changes.watching(call, context):
            try:
                outcome = await self._handlers.call_tool(call, context, record_start)
            except BaseException:
                self._record_exit(key, call, context)
                raise
            if not is_handoff or outcome.error is not None:
                self._record_outcome(key, call, outcome, context)
        return outcome

    def _record_outcome(self, key: CallKey, call: ToolCall, outcome: ToolOutcome, context: dict[str, Any]) -> None:
        call.outcome = outcome  # the run knows how the call ended, even if the journal cannot record it
        self._entry.record("outcome", key, self._changes.data(call, outcome, context))
        if outcome.agent is not None:
            self._entry.agents.check(outcome.agent, call.name)

    def _record_exit(self, key: CallKey, call: ToolCall, context: dict[str, Any]) -> None:
        """An exception leaves the call. If this cannot be recorded, the outcome of the call is unknown later."""
        with suppress(AswarmError):  # the exception that leaves the call is more important
            if call.outcome is not None:  # `tool_error` raised it, after the function had ended
                self._entry.record("outcome", key, self._changes.data(call, call.outcome, context))
            elif self._entry.steps.is_running(key) and not call.started:
                self._entry.record("withdrawn", key)
