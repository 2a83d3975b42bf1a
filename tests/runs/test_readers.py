"""Readers of a run see the same, byte for byte: while it goes on, and from the log afterwards."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given

from aswarm import AsyncSwarm
from aswarm.conversations import MemoryStore
from aswarm.runs import Limits, LocalRuns, NewRun, Run, fold
from aswarm.testing import ScriptedModel
from tests.support.runs.kept_runs import entries_of
from tests.support.runs.run_logs import Scene, agents, scenes

pytestmark = pytest.mark.slow


async def read_twice(scene: Scene) -> None:
    """Run a scene, and again with approvals for its open calls. Compare the live entries with the entries of the log."""
    model = ScriptedModel(list(scene.script), cut=scene.cut)
    async with (
        MemoryStore() as store,
        AsyncSwarm(model.client(max_retries=0), concurrent_tools=scene.concurrent) as swarm,
        LocalRuns(swarm, store=store, agents=agents(), limits=Limits(max_turns=scene.max_turns)) as runs,
    ):
        new = NewRun("ann", "c", [{"role": "user", "content": "Go"}], context_variables={"kept": 1})
        run = Run(runs, await runs.start(new))
        last = await compare(run)
        asked = last.response.get("waiting") or ()
        if asked and all(each.get("kind") == "approval" for each in asked):
            ids = [each.get("call_id") or each["id"] for each in asked]
            await compare(await run.answer(dict.fromkeys(ids, True)))


async def compare(run: Run) -> Any:
    live = await entries_of(run)
    later = await entries_of(run)
    assert [entry.to_json() for entry in later] == [entry.to_json() for entry in live]
    assert not [key for entry in later for key in json.loads(entry.to_json()) if key.startswith("_")]
    whole, last = fold(later), live[-1]
    assert [entry.to_json() for entry in await entries_of(run, last.seq - 1)] == [last.to_json()]
    if last.response:
        assert whole.response_messages == last.response["messages"]
    return last


@given(scenes() | scenes(concurrent=True))
def test_a_reader_of_the_log_sees_what_a_live_reader_saw(scene: Scene) -> None:
    """Whatever the run does; the log has the messages of the last entry once only, in other entries."""
    anyio.run(read_twice, scene)
