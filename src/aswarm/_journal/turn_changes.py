"""What the calls of one turn change in the context variables: what a record has of it, and how a replay makes it again.

Calls that run together share the context. So a record has what has changed since the record before it, and a replay makes the
changes in the order in which they were recorded, whichever call comes first then.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from aswarm._context import copy_containers
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._tools.tool import writes_context

from .record import apply_changes, outcome_data


class TurnChanges:
    """The changes of one turn. `recorded`: the records of its calls by position, in the order in which they were made."""

    def __init__(self, recorded: Iterable[tuple[int, Mapping[str, Any]]] = ()) -> None:
        self._recorded = list(recorded)
        self._place = {position: at for at, (position, _) in enumerate(self._recorded)}
        self._made = 0  # how many of them the context has
        self._writers = 0
        self._before: dict[str, Any] = {}  # the context when the last record was made

    def repeat(self, context: dict[str, Any], position: int | None = None) -> None:
        """Make the recorded changes, up to those of the call at this position; or all, before a function runs."""
        until = len(self._recorded) if position is None else self._place[position] + 1
        for _, record in self._recorded[self._made : until]:
            apply_changes(record, context)
        self._made = max(self._made, until)

    @contextmanager
    def watching(self, call: ToolCall, context: dict[str, Any]) -> Generator[None]:
        """Watch what a call changes, until its record is made."""
        writes = _may_write(call)
        if writes and not self._writers:
            self._before = copy_containers(context)
        self._writers += writes
        try:
            yield
        finally:
            self._writers -= writes

    def data(self, call: ToolCall, outcome: ToolOutcome, context: dict[str, Any], order: int | None = None) -> str:
        """The record of how a call ended; see `outcome_data`."""
        if not _may_write(call):
            return outcome_data(outcome, None, context, order)
        data = outcome_data(outcome, self._before, context, order)
        if self._writers > 1:
            self._before = copy_containers(context)
        return data


def _may_write(call: ToolCall) -> bool:
    return call.tool is not None and writes_context(call.tool)
