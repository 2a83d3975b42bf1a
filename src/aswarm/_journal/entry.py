"""`JournalEntry`: what the journal has of one item, and where its next steps are recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aswarm._agent import Response

from .agent_lookup import AgentLookup
from .record import CallKey, ItemRecord, recorded_response, response_data
from .sqlite import Step, StepKind
from .writer import JournalWriter


@dataclass(slots=True)
class JournalEntry:
    """One item in the journal. `number`: its number in the file. `context`: the variables that it begins with."""

    id: str
    number: int
    steps: ItemRecord
    agents: AgentLookup
    context: Mapping[str, Any]
    writer: JournalWriter

    @property
    def response(self) -> Response | None:
        """The `Response` of a finished item, made from its record; None if the item has not finished.

        Its context variables are those that the item begins with, and the recorded changes. If no agent of the recorded
        name can be found, its `agent` has that name, and a run with it raises ConfigurationError.
        """
        if self.steps.finished is None:
            return None
        record = json.loads(self.steps.finished)
        return recorded_response(record, self.agents.find_or_name(record["agent"]), self.context)

    async def finish(self, response: Response) -> None:
        """Record that the item has finished, and wait until that is on disk. Only then may the response be given out.

        Raises ConfigurationError for context variables that cannot be recorded, RunError if the file cannot be written.
        """
        await self.commit("finished", CallKey(0, 0), response_data(response, self.context))

    def record(self, kind: StepKind, key: CallKey, data: str = "") -> None:
        """Record a step without waiting for the file; see `ItemRecord`."""
        step = Step(self.number, kind, *key, data)
        # A completion can wait: the start of a call, or the end of the item, follows it and is written at once.
        self.writer.put(step, write_now=kind != "completion")
        self.steps.add(step)

    async def commit(self, kind: StepKind, key: CallKey, data: str = "") -> None:
        """Record a step, and wait until it and all steps before it are on disk."""
        step = Step(self.number, kind, *key, data)
        self.steps.add(step)
        await self.writer.commit(step)
