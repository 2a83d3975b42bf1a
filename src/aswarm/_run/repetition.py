"""Runs that go in circles: calls with the same result again and again, and agents that hand back and forth.

Decides which call adds nothing. Pure, and fed with what has happened; `_run.budget_control` asks.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from aswarm._json import shown
from aswarm._messages import call_arguments

from .plan import ToolCall

_SHOWN = 200
# What tells one call from another: the agent that made it, the name of the function, and its arguments.
_Key = tuple[str, str, str]


class Repetition:
    """Calls that have the same result each time, at most `limit` times before they are refused.

    A call with a result that it did not have the last time is new, and lets all other calls begin again: a function that
    reads the same file before and after each change repeats nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last: dict[_Key, str] = {}
        self._times: dict[_Key, int] = {}
        self._refused: dict[_Key, int] = {}  # in how many turns
        self._refused_now: set[_Key] = set()  # in this turn

    def refusal(self, call: ToolCall) -> str | None:
        """Why the call does not run, for the model; None if it may run."""
        if self._times.get(key := _key_of(call), 0) < self._limit:
            return None
        return f"not run: this call was made {_times(self._limit)} with this result: {shown(self._last[key], _SHOWN)}"

    def add_refused(self, call: ToolCall) -> bool:
        """Count a refused call, once a turn. Returns whether the model has insisted: refused as often as made.

        The model reads a refusal after the turn, so the first turn is no insistence.
        """
        key = _key_of(call)
        if key not in self._refused_now:
            self._refused_now.add(key)
            self._refused[key] = self._refused.get(key, 0) + 1
        return self._refused[key] >= max(2, self._limit)

    def end_turn(self) -> None:
        """The model reads now what was refused."""
        self._refused_now.clear()

    def add(self, call: ToolCall, result: str | list[dict[str, Any]]) -> None:
        """Count a call that has run."""
        key, text = _key_of(call), result if isinstance(result, str) else json.dumps(result, default=str)
        if self._last.get(key) == text:
            self._times[key] = self._times.get(key, 0) + 1
        else:
            self._times, self._refused = {key: 1}, {}
        self._last[key] = text


class HandoffChain:
    """Handoffs with nothing but handoffs between. At most `limit` of them may go back to an agent that was active before."""

    def __init__(self, limit: int, agent: str) -> None:
        self._limit = limit
        self._agents = {agent}
        self._backward = 0
        self._refused = 0

    def refusal(self, target: str) -> str | None:
        """Why the conversation is not handed over to the agent of this name, for the model; None if it is."""
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
        """Count a turn with a refused handoff. Returns whether the model has insisted."""
        self._refused += 1
        return self._refused > 1

    def end(self, agent: str) -> None:
        """Begin again at this agent, because something other than a handoff was done."""
        self._agents, self._backward, self._refused = {agent}, 0, 0


def _key_of(call: ToolCall) -> _Key:
    arguments = call_arguments(call.message)  # those of the model: a middleware may change the others
    with suppress(ValueError, RecursionError):
        arguments = json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    return call.agent.name, call.name, arguments


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
