"""One snippet: its steps in the sandbox, the order of its calls and of their results, and its end.

The order of its calls depends only on the code and on the results, never on the time that a call takes. So a snippet is replayed by
executing its code again; `InnerCalls` gives it the recorded results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aswarm._values.errors import ToolError
from aswarm.extensions import InnerCalls, ToolCall

from ._sandbox import Broken, MadeCall, Paused, Sandbox, Step
from ._values import result_text

_DELIVERED = "delivered"


def delivered_in(calls: InnerCalls) -> list[list[int]]:
    """Return the positions of the calls whose results the code got, each time together. Raises ValueError for changed data."""
    positions = [[*map(int, group)] for group in calls.notes.get(_DELIVERED, ())]
    calls.notes[_DELIVERED] = positions
    return positions


class Snippet:
    """One snippet with the calls that it makes.

    `delivered`: the list of `delivered_in`, to which the snippet adds each round.
    """

    def __init__(self, calls: InnerCalls, sandbox: Sandbox, delivered: list[list[int]]) -> None:
        self._calls = calls
        self._sandbox = sandbox
        self._delivered = delivered
        self._replayed = [*delivered]
        self._made: list[ToolCall] = []
        self._by_id: dict[int, ToolCall] = {}  # the calls without a delivered result, by their ids in the sandbox

    async def run(self, code: str) -> str:
        """Execute the code to its end, and return its result. Raises ToolError for code that failed."""
        step = await self._sandbox.start(code)
        while isinstance(step, Paused):
            results = await self._next_results(step)
            if self._calls.handed_to is not None:
                break
            step = await self._sandbox.resume(step.state, results)
        return self._end(step)

    # --- rounds ---

    async def _next_results(self, step: Paused) -> dict[int, Any]:
        """Run the calls that the code waits for, and return results by their ids in the sandbox."""
        new = [self._call_of(made) for made in step.made]
        if self._replayed:
            ready: Sequence[ToolCall] = self._recorded(self._replayed.pop(0))
        else:
            # Calls that were left when the code got a denial start only if the code makes no new call.
            pending = [self._by_id[id_] for id_ in step.waits_for if id_ in self._by_id]
            ready = await self._ready(new or sorted(pending, key=lambda call: call.index))
            self._delivered.append([call.index for call in ready])
            if self._calls.handed_to is not None:
                return {}
        ids = {call: id_ for id_, call in self._by_id.items()}
        for call in ready:
            del self._by_id[ids[call]]
        return {ids[call]: self._result_of(call) for call in ready}

    def _call_of(self, made: MadeCall) -> ToolCall:
        call = self._calls.make(self._sandbox.stubs.names[made.name], made.arguments)
        self._made.append(call)
        self._by_id[made.id] = call
        return call

    def _recorded(self, positions: Sequence[int]) -> list[ToolCall]:
        made, waiting = self._made, self._by_id.values()
        if not all(each < len(made) and made[each].outcome and made[each] in waiting for each in positions):
            raise self._calls.lost()
        return [made[each] for each in positions]

    async def _ready(self, batch: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """Return the calls of the batch with a result; runs them, unless some are denied.

        A denial goes to the code at once, alone: it may make the other calls needless.
        """
        ready = [call for call in batch if self._calls.is_denied(call)] or batch
        await self._calls.run(ready)
        return ready

    def _result_of(self, call: ToolCall) -> dict[str, Any]:
        try:
            return {"return_value": self._calls.value_of(call)}
        except ToolError as error:
            kind = "PermissionError" if self._calls.is_denied(call) else "RuntimeError"
            return {"exc_type": kind, "message": str(error)}

    # --- the end ---

    def _end(self, step: Step) -> str:
        ran, note = self._calls_text(), self._close()
        limit = self._sandbox.limits.output_characters
        if (target := self._calls.handed_to) is not None:
            return json.dumps({"assistant": target.name}, ensure_ascii=False) + note
        if isinstance(step, Broken):
            raise ToolError(result_text(self._sandbox.printed, step.text, limit) + ran + note)
        assert not isinstance(step, Paused)  # noqa: S101 - the loop has ended
        return result_text(self._sandbox.printed, step.value, limit) + note

    def _close(self) -> str:
        """Close the calls that the code does not need, and return a note that names them."""
        left = self._calls.close()
        unknown = [call for call in left if call.outcome and call.outcome.unknown]
        return _note(
            "not run, because the code ended without them", [call for call in left if call not in unknown]
        ) + _note(
            "stopped after functions had run inside, because the code ended without them, so their outcome is unknown",
            unknown,
        )

    def _calls_text(self) -> str:
        """Return a note about the calls that ran before the code failed, so that the model does not repeat them."""
        ran = [call.name for call in self._made if self._calls.has_run(call)]
        counts = {name: ran.count(name) for name in ran}
        listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
        return f"\n[calls that ran before: {listed}]" if ran else ""


def _note(text: str, calls: Sequence[ToolCall]) -> str:
    names = ", ".join(f"{call.name} ({call.id})" for call in calls)
    return f"\n[{text}: {names}]" if calls else ""
