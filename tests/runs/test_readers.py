"""Readers of a run see the same, byte for byte: while it goes on, and from the log afterwards."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import AsyncSwarm
from aswarm.conversations import MemoryStore
from aswarm.runs import Limits, LocalRuns, NewRun, Run, fold
from aswarm.testing import ScriptedModel
from tests.support.runs.kept_runs import entries_of
from tests.support.runs.run_logs import Scene, agents, scenes

pytestmark = pytest.mark.slow


async def read_twice(scene: Scene, then: str) -> None:
    """Run a scene, and go on with its open calls: "answer", "cancel" or "message". Compare what each reader sees."""
    model = ScriptedModel(list(scene.script), cut=scene.cut)
    async with (
        MemoryStore() as store,
        AsyncSwarm(model.client(max_retries=0), concurrent_tools=scene.concurrent) as swarm,
        LocalRuns(swarm, store=store, agents=agents(), limits=Limits(max_turns=scene.max_turns)) as runs,
    ):
        run, more = await started(runs, "Go", context_variables={"kept": 1}), 3
        while asked := (await compare(run, store)).response.get("waiting"):
            more -= 1
            decisions = {
                each.get("call_id") or each["id"]: decision_on(each, scene) for each in asked if each.get("kind")
            }
            if then == "message":
                run = await started(runs, "Never mind.")
            elif then == "answer" and decisions and more:
                run = await run.answer(decisions)
            else:
                await run.cancel()
                assert not (await compare(run, store, is_closed=True)).response["waiting"]
                return


async def started(runs: LocalRuns, text: str, **more: Any) -> Run:
    return await runs.start(NewRun("ann", "c", [{"role": "user", "content": text}], **more))


def decision_on(asked: Any, scene: Scene) -> Any:
    decided = scene.decided.get(asked["name"], False)
    return decided if asked["kind"] == "approval" else {"answer": "this"}


async def compare(run: Run, store: MemoryStore, *, is_closed: bool = False) -> Any:
    live = await entries_of(run)
    later = await entries_of(run)
    assert [entry.to_json() for entry in later] == [entry.to_json() for entry in live]
    assert not [key for entry in later for key in json.loads(entry.to_json()) if key.startswith("_")]
    whole, last = fold(later), live[-1]
    assert [entry.to_json() for entry in await entries_of(run, last.seq - 1)] == [last.to_json()]
    if last.response:
        assert whole.response_messages == last.response["messages"]
        assert is_closed or fold(later[:-1]).response_messages == last.response["messages"]
    stored = await store.load("ann/c")
    assert stored is not None
    assert stored.messages[later[0].fields["before"] :] == whole.messages
    return last


@given(scenes() | scenes(concurrent=True), st.sampled_from(["answer", "cancel", "message"]))
def test_a_reader_of_the_log_sees_what_a_live_reader_saw(scene: Scene, then: str) -> None:
    """Whatever the run does: the log, the answer and the conversation have the same messages, in the same order."""
    anyio.run(read_twice, scene, then)
