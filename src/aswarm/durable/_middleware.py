"""The middleware of a durable run: each completion and each tool call is a step that the engine records.

Decides the order of record and effect, and the numbers of the steps. The numbers are fixed when a completion is known, in the
order in which the model made its calls, so that each of several concurrent calls gets its own outcome in a replay.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import anyio

from aswarm._errors import AswarmError, ConfigurationError
from aswarm._journal.agent_lookup import AgentLookup
from aswarm._journal.fingerprints import differences, request_fingerprint
from aswarm._journal.record import completion_data, recorded_outcome
from aswarm._journal.turn_changes import TurnChanges
from aswarm._messages import INTERRUPTED, OUTCOME_UNKNOWN
from aswarm._run.handlers import Handlers, Middleware, Started
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._wire.request import CompletionRequest
from aswarm._wire.whole import as_one_chunk, whole_message

from ._steps import Steps

_SECONDS_WHEN_CANCELLED = 10.0


def durable_middleware(run_id: str, version: str, steps: Steps, agents: AgentLookup, open_calls: int) -> Middleware:
    """The middleware of one run in one process. `open_calls`: how many calls the run begins with.

    It wraps this run only. A run that a function starts is a part of the call of that function.
    """

    def wrap(handlers: Handlers) -> Handlers:
        durable = _DurableHandlers(run_id, version, steps, agents, handlers)
        durable.reserve(open_calls)
        return replace(handlers, complete=durable.complete, call_tool=durable.call_tool)

    return wrap


class _DurableHandlers:
    """The two handlers of one run."""

    def __init__(self, run_id: str, version: str, steps: Steps, agents: AgentLookup, handlers: Handlers) -> None:
        self._run_id = run_id
        self._version = version
        self._steps = steps
        self._agents = agents
        self._handlers = handlers
        self._turn = 0
        self._places: list[tuple[Any, Any]] = []  # for each call of the turn: its start, and its outcome
        self._outcomes: dict[int, Mapping[str, Any]] = {}  # those that are recorded, by the position of the call
        self._recorded = 0  # how many outcomes of the turn have been recorded
        self._changes = TurnChanges()

    def reserve(self, calls: int) -> None:
        """Fix the numbers of the steps of a turn: two for each call."""
        self._places = [(self._steps.reserve(), self._steps.reserve()) for _ in range(calls)]
        ends = {at: end for at, (_, end) in enumerate(self._places) if self._steps.is_recorded(end)}
        self._outcomes = {at: json.loads(self._steps.output(end)) for at, end in ends.items()}
        in_order = sorted(self._outcomes.items(), key=lambda each: each[1]["order"])
        self._recorded = in_order[-1][1]["order"] if in_order else 0
        self._changes = TurnChanges(in_order)

    # --- completions ---

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the recorded completion; or a new one as it comes, which is then recorded."""
        self._turn += 1
        name = f"completion:{self._turn}"
        place = self._steps.reserve()
        fingerprint = request_fingerprint(request)
        if self._steps.is_recorded(place):
            recorded = json.loads(await self._steps.record(place, name))
            if not self._steps.is_over and (changed := differences(recorded["asked"], fingerprint)):
                raise ConfigurationError(self._cannot_continue(changed))
            chunk: Mapping[str, Any] = recorded["chunk"]
            self.reserve(_calls_of(chunk))
            yield chunk
            return
        await self._steps.require_open()
        chunks: list[Mapping[str, Any]] = []
        is_whole = False
        async with aclosing(self._handlers.complete(request)) as source:
            async for chunk in source:
                chunks.append(chunk)
                if whole_message(chunk) is None:
                    yield chunk
                else:
                    is_whole = True
        chunk = as_one_chunk(chunks)
        for last in [chunk] if is_whole else _missing_ids(chunk, chunks):
            yield last
        await _finished(self._steps.record(place, name, completion_data(fingerprint, chunk)))
        self.reserve(_calls_of(chunk))

    def _cannot_continue(self, changed: list[str]) -> str:
        return (
            f"the run {self._run_id!r} cannot be continued: request {self._turn} differs from the recorded one in its "
            f"{' and '.join(changed)}. This process has the version {self._version!r}. Give code with other agents another "
            "version=, and put text that changes from day to day, such as the date, into the messages and not into the instructions"
        )

    # --- tool calls ---

    async def call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        """Answer from the record, or carry out the call and record it."""
        start, end = self._places[call.position]
        name = f"tool:{call.id}"
        if call.position in self._outcomes:
            recorded = self._outcomes[call.position]
            self._changes.repeat(context, call.position)
            self._steps.see(start)
            await self._steps.record(end, name)
            agent = recorded.get("agent")
            return recorded_outcome(recorded, None if agent is None else self._agents.get(agent))
        if self._steps.is_recorded(start):  # a process has died while the function ran
            await self._steps.record(start, f"started:{call.id}")
            return _without_outcome(OUTCOME_UNKNOWN)
        is_handoff = call.tool is not None and call.tool.is_handoff
        if self._steps.is_over and not is_handoff:  # a repeatable function may have begun all the same
            return _without_outcome(OUTCOME_UNKNOWN if call.is_repeatable else INTERRUPTED)
        return await self._call_and_record(call, context, started, is_handoff=is_handoff)

    async def _call_and_record(
        self, call: ToolCall, context: dict[str, Any], started: Started, *, is_handoff: bool
    ) -> ToolOutcome:
        """`is_handoff`: a handoff has no effect, and gives the same answer in a replay, so it needs no record."""
        start, _ = self._places[call.position]
        if not is_handoff:
            self._changes.repeat(context)

        async def record_start() -> None:
            if not (is_handoff or call.is_repeatable):
                await self._steps.record(start, f"started:{call.id}")
            await started()

        with self._changes.watching(call, context):
            try:
                outcome = await self._handlers.call_tool(call, context, record_start)
            except BaseException:
                with suppress(AswarmError):  # the exception that leaves the call is more important
                    if call.outcome is not None:  # `tool_error` raised it, after the function had ended
                        await self._record_outcome(call, call.outcome, context)
                raise
            if not is_handoff or outcome.error is not None:
                call.outcome = outcome  # the run knows how the call ended, even if it cannot be recorded
                await self._record_outcome(call, outcome, context)
                if outcome.agent is not None:
                    self._agents.check(outcome.agent, call.name)
        return outcome

    async def _record_outcome(self, call: ToolCall, outcome: ToolOutcome, context: dict[str, Any]) -> None:
        data = self._changes.data(call, outcome, context, self._recorded + 1)
        self._recorded += 1
        await _finished(self._steps.record(self._places[call.position][1], f"tool:{call.id}", data))


async def _finished(recording: Coroutine[Any, Any, Any]) -> None:
    """Record something that has happened: a run that is cancelled waits for the database too, but not without end."""
    task = asyncio.create_task(recording)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        with anyio.move_on_after(_SECONDS_WHEN_CANCELLED, shield=True), suppress(Exception):
            await task
        raise


def _without_outcome(text: str) -> ToolOutcome:
    record = {"content": text, "error": text, "unknown": text is OUTCOME_UNKNOWN}
    return recorded_outcome(record, None)


def _calls_of(chunk: Mapping[str, Any]) -> int:
    message = whole_message(chunk) or {}
    return len(message.get("tool_calls") or ())


def _missing_ids(whole: Mapping[str, Any], chunks: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A chunk with the ids of calls that came without one, so that the run has those that are recorded."""
    calls = (whole_message(whole) or {}).get("tool_calls") or ()
    if not calls:
        return []
    sent = json.dumps(chunks, default=str)
    made = [{"index": at, "id": call["id"]} for at, call in enumerate(calls) if json.dumps(call["id"]) not in sent]
    return [{"choices": [{"index": 0, "delta": {"tool_calls": made}}]}] if made else []
