"""A run that is stopped while one of its calls waits has one answer for each call, in its log and in its conversation."""

from __future__ import annotations

import pytest

from aswarm import Agent, AsyncSwarm, tool
from aswarm.runs import LocalRuns, NewRun, Run
from aswarm.runs._starting import stop_waiting
from aswarm.testing import ScriptedModel, call, check_history

pytestmark = pytest.mark.anyio


@tool(approve=True)
async def pay() -> str:
    return "paid"


async def look() -> str:
    return "looked"


async def test_a_stopped_run_has_each_answer_once() -> None:
    """Its open call stands before a finished call; the end of the log repeats no answer."""
    model = ScriptedModel([[call("pay", call_id="1"), call("look", call_id="2")]])
    async with LocalRuns(AsyncSwarm(model.client()), agents=Agent(functions=[pay, look])) as runs:
        run = Run(runs, await runs.start(NewRun("ann", "c", messages=[{"role": "user", "content": "Hi"}])))
        assert (await run.result()).response["stop"] == "waiting"
        record = await runs.get(run.id, user="ann")
        await stop_waiting(runs.store.database, record, "cancelled", await runs.recorded(run.id))
        messages = (await run.result()).response["messages"]
        stored = await runs.store.load("ann/c")
    assert stored is not None
    assert [message.get("tool_call_id") for message in messages] == [None, "2", "1"]
    assert [message.get("tool_call_id") for message in stored.messages] == [None, None, "1", "2"]
    for history in (messages, stored.messages):
        check_history(history, ordered=False)
