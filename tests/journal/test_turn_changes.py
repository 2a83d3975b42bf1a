"""Calls that run together change the same context variables, and a rerun makes their changes again."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from concurrent_calls import Plan, check, plans
from hypothesis import example, given

from aswarm._journal.agent_lookup import AgentLookup
from aswarm._journal.entry import JournalEntry
from aswarm._journal.middleware import journal_middleware
from aswarm._journal.record import ItemRecord
from aswarm._journal.sqlite import Step
from aswarm.middleware import Handlers


class Steps(list[Step]):
    """In place of the writer."""

    def put(self, step: Step, *, write_now: bool = True) -> None:
        self.append(step)

    async def commit(self, step: Step) -> None:
        await anyio.lowlevel.checkpoint()
        self.append(step)


@given(plan=plans())
@example(plan=Plan([1, 0], frozenset()))
@pytest.mark.asyncio
async def test_changes_are_made_again_in_the_order_of_the_ends(plan: Plan) -> None:
    """Nothing that a call has written is lost, whichever call ended first, and calls without a record run after the others."""
    writer: Any = Steps()

    def journaled(handlers: Handlers) -> Handlers:
        steps = ItemRecord(each for each in writer if not (each.kind == "outcome" and each.position in plan.lost))
        return journal_middleware(JournalEntry("a", 1, steps, AgentLookup(handlers.run.agent), {}, writer))(handlers)

    await check(plan, journaled, journaled)
