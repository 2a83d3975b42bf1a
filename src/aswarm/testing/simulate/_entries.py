"""`RunEntries`: the entries of a run that was not recorded, for the file of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aswarm._record.entries import Entry
from aswarm._record.entry_maker import EntryMaker
from aswarm._values.agent import Agent, Response
from aswarm._values.events import Event


class RunEntries:
    """Makes the entries of one run from its events. `name`: the id of the run, and of its conversation."""

    def __init__(
        self,
        entries: list[Entry],
        name: str,
        agent: Agent,
        messages: Sequence[Any],
        context_variables: Mapping[str, Any] | None,
    ) -> None:
        self._entries = entries
        self._maker = EntryMaker(error_text=str)
        entries.append(self._maker.started(name, name, agent, messages, context_variables=context_variables))

    def add(self, event: Event, response: Response) -> None:
        """Add the entries of an event. `response`: the response of the run at this moment."""
        self._entries += self._maker.event(event, lambda: response)

    def end(self, response: Response, error: BaseException | None) -> None:
        """Add the last entries, unless the run has finished."""
        if self._entries[-1].is_last:
            return
        if error is not None:
            self._entries += self._maker.failed(error, response)
        else:
            self._entries += self._maker.stopped("no_reader", response)
