"""`EntryRecorder`: records a run as entries while it runs, and replays the entries of earlier attempts.

It also wraps the delivery of tool events. The run does not wait for a commit of completions and results: the next commit
includes them.

| the process died | the next attempt |
|---|---|
| before the completion was recorded | repeats the request to the model |
| before the start of a call was recorded | runs the function, because it has not run |
| after the start, before the result was recorded | answers the call "cancelled; its outcome is unknown", unless it is repeatable |
| after the result was recorded | answers the call from the record |

Some functions make calls themselves (`Tool._is_replayed`). A call of such a function is not answered as unknown. Its function
runs again, and the table applies to the calls inside.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import anyio

from aswarm._run.call import Call, ToolCall
from aswarm._run.calls_inside import CODE_STARTED, OTHER_CALLS
from aswarm._run.current_call import restart_code
from aswarm._run.execution import ToolCaller, announcement, finished_event
from aswarm._run.handlers import Handlers, Started
from aswarm._run.outcome import ToolOutcome
from aswarm._run.state import RunState
from aswarm._run.streams import EventDelivery
from aswarm._tools.directory import AgentDirectory
from aswarm._tools.tool import NeedsApproval
from aswarm._values.agent import UnknownCall
from aswarm._values.context import copy_containers
from aswarm._values.decisions import is_run_inside
from aswarm._values.errors import AswarmError, CallLost, ConfigurationError, Hold
from aswarm._values.events import (
    CallWaiting,
    CompletionDelta,
    CompletionFinished,
    Emit,
    Event,
    LoopEvent,
    RunFinished,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
    typed_events,
)
from aswarm._values.json import is_object, jsonable
from aswarm._values.messages import INTERRUPTED, OUTCOME_UNKNOWN, call_arguments
from aswarm._wire.request import CompletionRequest

from .entries import Entry, data_of_hold
from .facts import INSIDE, CallKey, CallPlace, Facts, differences, request_fingerprint
from .outcomes import TurnChanges, outcome_fields, recorded_chunk, recorded_outcome, unknown_inside, waiting_fields
from .recorder import Recorder, Sink


class Maker(Protocol):
    """Makes the entries of one run, see `EntryMaker`."""

    def event(self, event: Event, state: RunState, private: Mapping[str, Any] | None = None, /) -> list[Entry]: ...

    def withdrawn_call(self, call: Call, /) -> Entry: ...


class EntryRecorder(Recorder):
    """Records one attempt of a run in a log.

    `add`: records an entry.
    `recorded`: the entries of earlier attempts.
    `agents`: finds the agents of recorded handoffs.
    `mismatch`: returns the error for a request that differs from the recorded request. Its arguments are the number of the
    request, and the parts that differ.
    `stop`: called after the replay of all facts, if the run must only be replayed. None for a run that continues.
    """

    def __init__(
        self,
        sink: Sink,
        maker: Maker,
        agents: AgentDirectory,
        mismatch: Callable[[int, str], ConfigurationError],
        *,
        recorded: Iterable[Entry] = (),
        stop: Callable[[], None] | None = None,
        deltas: bool = True,
    ) -> None:
        super().__init__(sink)
        self.finished: RunFinished | None = None
        self._maker = maker
        self._agents = agents
        self._mismatch = mismatch
        self._facts = Facts(recorded)
        # The first attempt has nothing to replay, so it adds every entry without a check.
        self.add: Callable[[Entry], None] = sink.add if self._facts.is_empty else self._add_new
        self._stop = stop
        self._deltas = deltas
        self._has_middleware = False  # a middleware may write to the context variables during any call
        self._turn = 0
        self._shown_turn = 0  # the turn of the last event; `_turn` may be one ahead, because it counts requests
        self._request: Mapping[str, str] = {}
        self._changes: TurnChanges
        # The calls that finished in this turn and attempt, by place.
        self._outcomes: dict[CallPlace, Mapping[str, Any]] = {}
        self._inside: dict[CallPlace, ToolCall] = {}  # the calls inside code of this turn
        self._announced: set[CallPlace] = set()  # the places of recorded starts that are not announced yet
        self._seen: set[CallPlace] = set()  # the places of all calls inside code with an event in this turn and attempt

    def use(self, state: RunState) -> None:
        """Record the run with this state. Call it before the first event."""
        super().use(state)
        self._changes = TurnChanges(self._facts.outcomes.get(0, ()), state.context)

    @property
    def is_behind(self) -> bool:
        """Whether the run is still in a recorded turn."""
        return self._turn <= self._facts.last_turn

    # --- completions ---

    def wrap(self, handlers: Handlers) -> Handlers:
        """Return wrapped handlers. They return recorded results, or call the original handler and record its result."""
        self._has_middleware = not isinstance(handlers.call_tool, ToolCaller)
        return super().wrap(handlers)

    def _complete(self, handlers: Handlers, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self._turn += 1
        self._changes = TurnChanges(self._facts.outcomes.get(self._turn, ()), self.state.context)
        self._outcomes, self._inside, self._seen = {}, {}, set()
        self._request = request_fingerprint(request)
        recorded = self._facts.completions.get(self._turn)
        if recorded is not None:
            return self._repeated(recorded)
        # Return a new completion directly, because each chunk would have to pass through another generator.
        return handlers.complete(request) if self._stop is None else self._stopped(self._stop)

    async def _repeated(self, recorded: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any], None]:
        changed = differences(recorded["_request"], self._request)
        if changed and self._stop is None:
            raise self._mismatch(self._turn, " and ".join(changed))
        self._changes.apply(self.state.context, recorded.get("_outcome", {}))  # of a middleware around the completion
        yield recorded_chunk(recorded)

    async def _stopped(self, stop: Callable[[], None]) -> AsyncGenerator[Mapping[str, Any], None]:
        stop()
        await anyio.sleep_forever()
        yield {}  # pragma: no cover - makes this a generator

    # --- tool calls ---

    async def _call_tool(
        self, handlers: Handlers, call: ToolCall, context: dict[str, Any], started: Started
    ) -> ToolOutcome:
        call = Call.of(call)
        key = CallKey(self._turn, *_place(call))
        if call.tool is not None and call.tool.is_handoff:
            return await self._hand_off(handlers, key, call, context, started)
        self._check_inside(key, call)
        if (fields := self._facts.finished.get(key)) is not None:
            return self._recorded(key, call, context, fields)
        if (waiting := self._facts.waiting.get(key)) is not None:
            self._changes.repeat(context, key[1:])
            call.note_unknown_inside(unknown_inside(waiting.get("_outcome", {})))
            if (waiting.get("kind") or waiting["_kind"]) == "approval":
                raise NeedsApproval(waiting["reason"])
            raise Hold(waiting["reason"], data=data_of_hold(waiting))
        if call.tool is not None and call.tool._is_replayed and key in self._facts.started:
            if self._stop is not None:
                return self._without_end_of_code(key, call, context)
            restart_code(self._facts.code_starts.get(key))
        elif key in self._facts.started and not call.is_repeatable:  # the process died while the function ran
            return self._without_outcome(call, OUTCOME_UNKNOWN)
        if self._stop is not None:  # execute nothing; but a repeatable function may have started in an earlier attempt
            may_have_run = call.is_repeatable or call.has_started_inside
            return self._without_outcome(call, OUTCOME_UNKNOWN if may_have_run else INTERRUPTED)
        if call.tool is not None and call.tool._is_replayed:
            self._changes.repeat_before_code(context, call.index)
        else:
            self._changes.repeat(context)
        return await super()._call_tool(handlers, call, context, started)

    async def _hand_off(
        self, handlers: Handlers, key: CallKey, call: Call, context: dict[str, Any], started: Started
    ) -> ToolOutcome:
        """Execute a handoff. It has no side effects, so a replay executes it too, but repeats what a middleware wrote then."""
        if key in self._facts.finished:
            outcome = await handlers.call_tool(call, copy_containers(context), started)
            self._changes.repeat(context, key[1:])
            return outcome
        outcome = await handlers.call_tool(call, context, started)
        self._outcomes[key[1:]] = self._changed(context, call)
        return outcome

    def _recorded(self, key: CallKey, call: Call, context: dict[str, Any], fields: Mapping[str, Any]) -> ToolOutcome:
        self._changes.repeat(context, key[1:])
        outcome: Mapping[str, Any] = fields.get("_outcome", {})
        if call.parent is not None and key in self._facts.started:  # the code gets refusals as errors
            call.start()
        if call.parent is None:
            self._changes.note_result(outcome.get("context", {}))
        call.note_unknown_inside(unknown_inside(outcome))
        name = outcome.get("agent")
        agent = None if name is None else self._agents.get(name, "the record has a handoff to the agent")
        return recorded_outcome(fields, outcome, agent)

    def _without_outcome(self, call: Call, text: str) -> ToolOutcome:
        outcome = self._outcomes[_place(call)] = {"unknown": text == OUTCOME_UNKNOWN}
        return recorded_outcome({"content": text, "error": text}, outcome, None)

    # --- calls inside code ---

    def _check_inside(self, key: CallKey, call: Call) -> None:
        """Note a call inside code. Raises CallLost if the record has another call at this place of the code."""
        if call.parent is None:
            return
        self._inside[key[1:]] = call
        name, arguments = self._facts.made.get(key, (call.name, None))
        if name != call.name or arguments not in (None, call_arguments(call.message)):
            raise CallLost(OTHER_CALLS)

    def _checked(self, call: Call, outcome: ToolOutcome) -> ToolOutcome:
        """Return the outcome; an unknown one for code that has not made all calls of its record."""
        if call.tool is None or not call.tool._is_replayed or outcome.still_running:
            return outcome
        inner_calls = {key[1:] for key in self._facts.made if key[:2] == (self._turn, call.index)}
        if inner_calls <= self._seen:
            return outcome
        return ToolOutcome(OTHER_CALLS, error=CallLost(OTHER_CALLS), still_running=True)

    def _without_end_of_code(self, key: CallKey, call: Call, context: dict[str, Any]) -> ToolOutcome:
        """Return the outcome of code that will not continue. The effects of its calls stay."""
        self._changes.repeat(context)
        for _, outcome in self._facts.inside(key):
            context.update(outcome.get("context", {}))
        lost = self._facts.unknown_inside(key)
        calls = [(f"{call.id}.{each.inside}", *self._facts.made[each]) for each in lost]
        call.note_unknown_inside([UnknownCall(id_, name, made or "", call.agent.name) for id_, name, made in calls])
        return self._without_outcome(call, OUTCOME_UNKNOWN)

    # --- the record of a call ---

    def _record_start(self, call: Call) -> None:
        self._announced.add(_place(call))
        self._note(_as_progress(call, announcement(call)))

    def _record_outcome(self, call: Call, outcome: ToolOutcome, context: dict[str, Any]) -> ToolOutcome:
        outcome = self._checked(call, outcome)
        call.finish(outcome)  # first: the response has the outcome even if the recording fails
        self._outcomes[_place(call)] = outcome_fields(call, outcome, self._changed(context, call))
        if outcome.result is not None and call.parent is None:  # the changes of calls inside code belong to the code
            self._changes.note_result(outcome.result.context_variables)
        if outcome.agent is not None:
            try:
                self._agents.check(outcome.agent, f"{call.name} handed off to the agent")
            except ConfigurationError:
                self._note(
                    _as_progress(call, finished_event(call, outcome))
                )  # the run fails, but the call has finished
                raise
        return outcome

    def _record_exit(self, call: Call, context: dict[str, Any], error: BaseException) -> None:
        """Record the end of a call that raised an exception. Without this record, a later attempt does not know the outcome."""
        with suppress(AswarmError):  # the exception of the call is more important than an exception here
            if call.outcome is not None:  # the function has finished, and then `tool_error` raised the exception
                self._outcomes[_place(call)] = outcome_fields(call, call.outcome, self._changed(context, call))
                self._note(_as_progress(call, finished_event(call, call.outcome)))
            elif isinstance(error, Hold):
                self._outcomes[_place(call)] = waiting_fields(call, self._changed(context, call))
            elif call.is_announced and not call.has_started:
                self.add(self._maker.withdrawn_call(call))

    def _changed(self, context: Mapping[str, Any], call: Call | None = None) -> dict[str, Any]:
        """Return the fields for the changes of the context variables; empty if only a reader could have made them.

        `call`: the call that has ended; None for a completion, around which a middleware may have changed nested values.
        """
        is_reader = call is not None and not (call.tool is not None and call.tool.effects.writes_context)
        return {} if is_reader and not self._has_middleware else self._changes.changed(context)

    # --- events ---

    def delivery(self, deliver: EventDelivery) -> EventDelivery:
        """Return a delivery that records tool events when they are emitted."""

        async def recording(work: Callable[[Emit], Awaitable[None]], emit: Emit) -> None:
            def emit_recorded(event: LoopEvent) -> None:
                if not (isinstance(event, CompletionDelta) or (self._announced and self._is_recorded_start(event))):
                    self._note(event)
                emit(event)

            await work(emit_recorded)

        return lambda work: deliver(partial(recording, work))

    def _is_recorded_start(self, event: LoopEvent) -> bool:
        """Return whether this event announces a call whose start is already recorded."""
        start = event.value if isinstance(event, ToolProgress) else event
        if not isinstance(start, ToolCallStarted):
            return False
        place = (event.index, start.index) if isinstance(event, ToolProgress) else (start.index, None)
        is_recorded = place in self._announced
        self._announced.discard(place)
        return is_recorded

    def record(self, event: LoopEvent) -> None:
        """Record an event of the loop; `delivery` records tool events. Store `RunFinished` in `finished`."""
        if isinstance(event, RunFinished):
            self.finished = event
        elif isinstance(event, CompletionDelta):
            for piece in typed_events(event.delta) if self._deltas else ():
                self._note(piece)
        elif not isinstance(event, _OF_TOOLS):
            self._note(event)

    def _note(self, event: Event) -> None:
        if isinstance(event, TurnStarted):
            self._shown_turn = event.turn
        private: Mapping[str, Any] | None = None  # fields that only a replay reads
        if isinstance(event, CompletionFinished):
            private = {"_request": self._request}
            if changed := self._changed(self.state.context):
                private["_outcome"] = changed
        elif isinstance(event, ToolCallFinished):
            private = {"_outcome": self._outcomes.get((event.index, None), {})}
        elif isinstance(event, CallWaiting):
            holds = (call.hold for call in self.state.turn.calls if call.index == event.index)
            data = next((hold.data for hold in holds if hold), None)
            private = {"_data": jsonable(data)} if is_run_inside(data) else {}
            private |= _outcome(self._outcomes.get((event.index, None), {}))
        elif isinstance(event, ToolProgress) and self._is_of_code(event):
            private = self._private_of_inside(event)
        for entry in self._maker.event(event, self.state, private):
            self.add(entry)

    def _is_of_code(self, event: ToolProgress) -> bool:
        """Return whether this event records a call inside code, or the start of the code."""
        is_start = is_object(event.value) and event.value.get("type") == CODE_STARTED
        if not (is_start or isinstance(event.value, ToolCallStarted | ToolCallFinished | CallWaiting)):
            return False
        calls = (call for call in self.state.turn.calls if call.index == event.index)
        return any(call.tool is not None and call.tool._is_replayed for call in calls)

    def _private_of_inside(self, event: ToolProgress) -> dict[str, Any]:
        private: dict[str, Any] = {INSIDE: True}
        if is_object(event.value):
            return private
        place = event.index, event.value.index
        self._seen.add(place)
        if (call := self._inside.get(place)) is not None:
            private["_made"] = call_arguments(call.message)
            if isinstance(event.value, CallWaiting) and (hold := call.hold) is not None:
                private["_kind"] = "approval" if isinstance(hold, NeedsApproval) else "question"
                private |= {"_data": jsonable(hold.data)} if is_run_inside(hold.data) else {}
                private |= _outcome(self._outcomes.get(place, {}))
        if isinstance(event.value, ToolCallFinished):
            private["_outcome"] = self._outcomes.get(place, {})
        return private

    def _add_new(self, entry: Entry) -> None:
        if not self._facts.has(self._shown_turn, entry):
            self._sink.add(entry)


def _outcome(changed: Mapping[str, Any]) -> dict[str, Any]:
    return {"_outcome": changed} if changed else {}


def _as_progress(call: Call, event: ToolCallStarted | ToolCallFinished) -> Event:
    """Return the event of a call; for a call inside code, as progress of the outer call."""
    outer = call.parent
    return event if outer is None else ToolProgress(outer.index, outer.id, outer.name, event)


def _place(call: Call) -> CallPlace:
    return (call.index, None) if call.parent is None else (call.parent.index, call.index)


_OF_TOOLS = (ToolCallStarted, ToolProgress, ToolCallFinished, CallWaiting)
