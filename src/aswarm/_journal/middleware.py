"""The two doors of a run, answering from the record of its item as far as that goes, and recording from there on.

Decides the order of record and effect: see the package. What is recorded, and how, is the tape's business.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Protocol

from aswarm._context import copy_containers
from aswarm._errors import AswarmError, ConfigurationError
from aswarm._run.handlers import Handlers, Started
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._tools.tool import writes_context
from aswarm._wire.request import CompletionRequest

from .agent_lookup import Agents
from .fingerprints import asked_of, differences
from .record import Place, Tape, completion_data, outcome_data, recorded_outcome, whole


class Recorder(Protocol):
    """What the doors need of an item."""

    @property
    def id(self) -> str: ...
    @property
    def tape(self) -> Tape: ...
    @property
    def agents(self) -> Agents: ...
    def record(self, kind: str, place: Place, data: str = "") -> None: ...
    def commit(self, kind: str, place: Place) -> Awaitable[None]: ...


class JournalMiddleware:
    """The doors of one attempt at an item. Every attempt has its own: it begins at the start of the record."""

    def __init__(self, item: Recorder, handlers: Handlers) -> None:
        self._item = item
        self._handlers = handlers
        self._turn = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the completion as one whole chunk: as it was recorded, or as it is recorded now."""
        self._turn += 1
        asked = asked_of(request)
        recorded = self._item.tape.completion(self._turn)
        if recorded is not None:
            if changed := differences(recorded["asked"], asked):
                raise ConfigurationError(self._is_another(changed))
            yield recorded["chunk"]
            return
        async with aclosing(self._handlers.complete(request)) as chunks:
            chunk = whole([chunk async for chunk in chunks])
        yield chunk
        # Asked for more, and so by a loop that could read it: what is no completion is not recorded.
        self._item.record("completion", Place(self._turn, 0), completion_data(asked, chunk))

    def _is_another(self, changed: list[str]) -> str:
        return (
            f"the item {self._item.id!r} cannot be resumed: request {self._turn} is not the one that the journal has; "
            f"other {' and '.join(changed)}. Resume with the agents that it began with (instructions that change "
            "from day to day belong into the messages), or run the item anew under another id: its tools then run again"
        )

    async def call_tool(self, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        """Answer from the record, or carry out the call and record it."""
        place = Place(self._turn, call.position)
        if not self._item.tape.knows(place):
            return await self._carry_out(place, call, context, started)
        recorded = self._item.tape.outcome(place)
        name = recorded.get("agent")
        return recorded_outcome(recorded, None if name is None else self._item.agents.get(name), context)

    async def _carry_out(self, place: Place, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        before = copy_containers(context) if call.tool is not None and writes_context(call.tool) else None

        is_handoff = call.tool is not None and call.tool.is_handoff  # has no effect, and says the same again

        async def begin() -> None:
            if not is_handoff:
                await self._item.commit("started", place)
            await started()

        try:
            outcome = await self._handlers.call_tool(call, context, begin)
        except BaseException:
            self._left(place, call, before, context)
            raise
        if not is_handoff or outcome.error is not None:
            self._ended(place, call, outcome, before, context)
        return outcome

    def _ended(
        self,
        place: Place,
        call: ToolCall,
        outcome: ToolOutcome,
        before: Mapping[str, Any] | None,
        context: dict[str, Any],
    ) -> None:
        call.outcome = outcome  # should it be refused here, the run still knows what happened
        self._item.record("outcome", place, outcome_data(outcome, before, context))
        if outcome.agent is not None:
            self._item.agents.check(outcome.agent, call.name)

    def _left(self, place: Place, call: ToolCall, before: Mapping[str, Any] | None, context: dict[str, Any]) -> None:
        """The run ends in the middle of the call. What cannot be recorded now has an unknown outcome later."""
        with suppress(AswarmError):  # what ends the run is more important
            if call.outcome is not None:  # `tool_error` ended it, after the function had ended
                self._item.record("outcome", place, outcome_data(call.outcome, before, context))
            elif self._item.tape.is_running(place) and not call.started:
                self._item.record("withdrawn", place)
