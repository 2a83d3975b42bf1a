"""Detects a run that goes in circles: calls with the same result, and handoffs back to an earlier agent. No I/O."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from aswarm._values.json import shown
from aswarm._values.messages import call_arguments

from .call import Call

_SHOWN = 200
# The identity of a call: the agent that made it, the name of the function, and its arguments.
_Key = tuple[str, str, str]


class Repetition:
    """Counter of calls with the same arguments and the same result. After `limit` such calls, it refuses the next such call.

    If a call returns another result than before, all counts restart: the run makes progress. For example, a run may read the
    same file again after each change.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last: dict[_Key, str] = {}
        self._times: dict[_Key, int] = {}
        self._refused: dict[_Key, int] = {}  # the number of turns in which a call was refused
        self._refused_now: set[_Key] = set()  # the calls that were refused in this turn

    def refusal(self, call: Call) -> str | None:
        """Return a text for the model if the call is refused, otherwise None."""
        if self._times.get(key := _key_of(call), 0) < self._limit:
            return None
        return f"not run: this call was made {_times(self._limit)} with this result: {shown(self._last[key], _SHOWN)}"

    def add_refused(self, call: Call) -> bool:
        """Count a refused call, once in each turn. Return whether it was refused in `limit` turns, and in at least two.

        The model reads the refusals after the turn. So several refusals in one turn are not yet a retry by the model.
        """
        key = _key_of(call)
        if key not in self._refused_now:
            self._refused_now.add(key)
            self._refused[key] = self._refused.get(key, 0) + 1
        return self._refused[key] >= max(2, self._limit)

    def end_turn(self) -> None:
        """Finish the turn, after which the model reads the refusals."""
        self._refused_now.clear()

    def add(self, call: Call, result: str | list[dict[str, Any]]) -> None:
        """Count a call that has run."""
        key, text = _key_of(call), result if isinstance(result, str) else json.dumps(result, default=str)
        if self._last.get(key) == text:
            self._times[key] = self._times.get(key, 0) + 1
        elif call.tool is not None and call.tool._is_replayed:  # the calls inside show whether the run makes progress
            self._times[key] = 1
        else:
            self._times, self._refused = {key: 1}, {}
        self._last[key] = text


class HandoffChain:
    """Counter of handoffs without another call in between. At most `limit` of them may return to an earlier agent."""

    def __init__(self, limit: int, agent: str) -> None:
        self._limit = limit
        self._agents = {agent}
        self._backward = 0
        self._refused = 0

    def refusal(self, target: str) -> str | None:
        """Return a text for the model if a handoff to the agent of this name is refused, otherwise None."""
        if target not in self._agents or self._backward < self._limit:
            return None
        often = "" if not self._limit else f" {_times(self._limit)}"
        return (
            f"not handed over to {target}: the conversation was handed back{often} with nothing done in between; "
            "answer the user, or call another function"
        )

    def add(self, target: str) -> None:
        """Count a handoff."""
        self._backward += target in self._agents
        self._agents.add(target)

    def add_refused(self) -> bool:
        """Count a turn with a refused handoff. Return whether this is a retry: an earlier turn also had a refused handoff."""
        self._refused += 1
        return self._refused > 1

    def end(self, agent: str) -> None:
        """Restart the count at this agent, after a call that was not a handoff."""
        self._agents, self._backward, self._refused = {agent}, 0, 0


def _key_of(call: Call) -> _Key:
    arguments = call_arguments(call.message)  # as the model sent them: a middleware may change `call.arguments`
    with suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    return call.agent.name, call.name, arguments


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
