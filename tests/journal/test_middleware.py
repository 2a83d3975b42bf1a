"""The journal is a middleware like any other."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel

from aswarm._journal.agent_lookup import AgentLookup
from aswarm._journal.entry import JournalEntry
from aswarm._journal.middleware import journal_middleware
from aswarm._journal.record import ItemRecord
from aswarm._journal.sqlite import Step
from aswarm._run.handlers import Handlers
from aswarm.testing import check_middleware


class Discard:
    """A writer that writes nothing."""

    def put(self, step: Step, *, write_now: bool = True) -> None: ...

    async def commit(self, step: Step) -> None:
        await anyio.lowlevel.checkpoint()


def test_runs_with_a_journal_can_be_left_at_any_moment() -> None:
    """It keeps the rules for middleware."""
    writer: Any = Discard()

    def journaled(handlers: Handlers) -> Handlers:
        entry = JournalEntry("a", 1, ItemRecord(), AgentLookup(handlers.run.agent), {}, writer)
        return journal_middleware(entry)(handlers)

    check_middleware(journaled)
