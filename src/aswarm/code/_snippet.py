"""One snippet: its steps in the sandbox, its calls in the run, and its end.

The order of its calls depends only on the code and on the results, never on the time that a call takes. So a snippet is
replayed by executing its code again: recorded calls get their recorded results, and all others run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aswarm._run.call import OTHER_CALLS, Call, TurnCalls
from aswarm._run.current_call import Running
from aswarm._run.execution import finished_event, run_group
from aswarm._run.plan import plan
from aswarm._run.run_info import OuterRun
from aswarm._run.turn import Turn
from aswarm._tools.tool import Tool
from aswarm._values.agent import Agent, Result
from aswarm._values.content import described
from aswarm._values.errors import CallLost, FailedInside, Hold, ToolError
from aswarm._values.events import LoopEvent, ToolProgress
from aswarm._values.messages import call_arguments

from ._sandbox import Broken, MadeCall, Paused, Sandbox, Step
from ._state import CodeState, has_run, hold_of, inside, is_denied, value_of
from ._values import result_text

NOT_AWAITED = "not run: the code ended without it"


class Snippet:
    """One snippet inside a call of `run_code`.

    `now`: that call, in `run`. `state`: the calls of an earlier run, if the snippet has waited. `tools`: the functions of the code,
    by name.
    """

    def __init__(
        self,
        now: Running,
        run: OuterRun,
        sandbox: Sandbox,
        state: CodeState,
        tools: Mapping[str, Tool[..., Any]],
    ) -> None:
        self._outer = now.call
        self._emit_outside = now.emit
        self._run = run
        self._handler = now.handler
        self._sandbox = sandbox
        self._state = state
        self._tools = tools
        self._made: list[Call] = []  # by the code, in this execution
        self._by_id: dict[int, Call] = {}  # the calls without a delivered result, by their ids in the sandbox
        self._replayed = [*state.delivered]
        self._target: Agent | None = None

    async def run(self, code: str) -> str | Result:
        """Execute the code to its end. Return its result, or the handoff that ended it.

        Raises Hold if a call waits, ToolError for code that failed, and CallLost if the code does not make its recorded calls.
        """
        waits = False
        try:
            step = await self._sandbox.start(code)
            while isinstance(step, Paused):
                delivered = await self._next_results(step)
                if self._target is not None:
                    break
                step = await self._sandbox.resume(step.state, delivered)
            return self._end(step)
        except Hold:
            waits = True
            raise
        finally:
            for call in () if waits else self._state.calls:
                call.close(NOT_AWAITED)
            self._outer.note_unknown_inside(self._state.calls.unknown_calls())

    # --- rounds ---

    async def _next_results(self, step: Paused) -> dict[int, Any]:
        """Run the calls that the code waits for, and return results by their ids in the sandbox."""
        new = [self._call_of(made) for made in step.made]
        pending = [self._by_id[each] for each in step.waits_for if each in self._by_id]
        if self._replayed:
            ready: Sequence[Call] = self._recorded(self._replayed.pop(0))
        else:
            # Calls that were left when the code got a denial start only if the code makes no new call.
            batch = new or sorted(pending, key=lambda call: call.index)
            ready = await self._ready(batch)
            self._state.delivered.append([call.index for call in ready])
            if self._target is not None:
                return {}
        ids = {call: each for each, call in self._by_id.items()}
        for call in ready:
            del self._by_id[ids[call]]
        return {ids[call]: self._result_of(call) for call in ready}

    def _call_of(self, made: MadeCall) -> Call:
        """Return the call that the code has made: a new call, or the call of the earlier run at this place."""
        name = self._sandbox.stubs.names[made.name]
        position, known = len(self._made), self._state.calls
        if position < len(known):
            call = known[position]
            if (call.name, call_arguments(call.message)) != (name, made.arguments):
                raise CallLost(OTHER_CALLS)
        else:
            function = {"name": name, "arguments": made.arguments}
            message = {"id": f"{self._outer.id}.{position}", "type": "function", "function": function}
            call = inside(message, position, self._tools[name], self._outer, self._state.readings)
            known.append(call)
        self._made.append(call)
        self._by_id[made.id] = call
        return call

    def _recorded(self, positions: Sequence[int]) -> list[Call]:
        calls = self._made
        if not all(
            each < len(calls) and calls[each].outcome and calls[each] in self._by_id.values() for each in positions
        ):
            raise CallLost(OTHER_CALLS)
        return [calls[each] for each in positions]

    async def _ready(self, batch: Sequence[Call]) -> Sequence[Call]:
        """Return the calls of the batch with a result; runs them, unless some are denied.

        A denial goes to the code at once, alone: it may make the other calls needless.
        """
        denied = [call for call in batch if is_denied(call, self._state)]
        for call in denied or batch:
            if call.index not in self._state.finished:  # decided in this run
                self._report(call)
        if denied:
            return denied
        await self._run_calls([call for call in batch if call.outcome is None])
        return batch

    async def _run_calls(self, calls: Sequence[Call]) -> None:
        state = self._run.state
        if state.budget is not None:
            state.budget.admit_calls(calls)
            for call in calls:
                self._report(call)
        calls = TurnCalls(call for call in calls if call.outcome is None)
        turn = Turn(calls)  # a round waits, and hands off, like the same calls in one message
        for group in plan(calls, concurrent=state.concurrent_tools, may_hold=state.may_hold):
            try:
                await run_group(group, state.context, self._handler, self._emit, may_hold=state.may_hold)
            except CallLost:
                raise
            except Exception as error:  # of a middleware, a hook or the record: it ends the run, as outside of code
                raise FailedInside(error, has_started=self._has_started) from error
            state.context.update(calls.changes())
            if not turn.finish_group(group):
                self._state.calls[:] = self._state.calls.reopened()
                raise hold_of(self._state, Turn(self._state.calls, self._state.entries))
        if state.budget is not None:
            state.budget.add_results(calls)
        self._target = calls.handed_to()

    @property
    def _has_started(self) -> bool:
        return self._state.had_started or any(call.has_started or call.has_started_inside for call in self._made)

    def _result_of(self, call: Call) -> dict[str, Any]:
        assert call.outcome is not None  # noqa: S101 - only such calls are ready
        content = call.outcome.content
        if (value := value_of(call, self._state)) is not None:
            return {"return_value": value.value}
        kind = "PermissionError" if is_denied(call, self._state) else "RuntimeError"
        return {"exc_type": kind, "message": content if isinstance(content, str) else described(content)}

    # --- events ---

    def _emit(self, event: LoopEvent) -> None:
        outer = self._outer
        self._emit_outside(ToolProgress(outer.index, outer.id, outer.name, event))

    def _report(self, call: Call) -> None:
        if call.outcome is not None:
            self._emit(finished_event(call, call.outcome))

    # --- the end ---

    def _end(self, step: Step) -> str | Result:
        if len(self._made) < len(self._state.calls) and self._target is None:
            raise CallLost(OTHER_CALLS)
        ran, note = self._calls_text(), self._close()
        limit = self._sandbox.limits.output_characters
        if self._target is not None:
            text = json.dumps({"assistant": self._target.name}, ensure_ascii=False)
            return Result(value=text + note, agent=self._target)
        if isinstance(step, Broken):
            raise ToolError(result_text(self._sandbox.printed, step.text, limit) + ran + note)
        assert not isinstance(step, Paused)  # noqa: S101 - the loop has ended
        return result_text(self._sandbox.printed, step.value, limit) + note

    def _close(self) -> str:
        """Close the calls that the code does not need, and return a note that names them."""
        left = [call for call in self._made if call.outcome is None]
        for call in left:
            call.close(NOT_AWAITED)
            self._report(call)
        unknown = [call for call in left if call.outcome and call.outcome.unknown]
        return _note(
            "not run, because the code ended without them", [call for call in left if call not in unknown]
        ) + _note(
            "stopped after functions had run inside, because the code ended without them, so their outcome is unknown",
            unknown,
        )

    def _calls_text(self) -> str:
        """Return a note about the calls that ran before the code failed, so that the model does not repeat them."""
        ran = [call.name for call in self._made if has_run(call, self._state)]
        counts = {name: ran.count(name) for name in ran}
        listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
        return f"\n[calls that ran before: {listed}]" if ran else ""


def _note(text: str, calls: Sequence[Call]) -> str:
    names = ", ".join(f"{call.name} ({call.id})" for call in calls)
    return f"\n[{text}: {names}]" if calls else ""
