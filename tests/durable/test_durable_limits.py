"""`Limits` of durable runs: one limit changes no other limit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from aswarm import Agent, AsyncSwarm
from aswarm.durable import DurableRuns
from aswarm.runs import Limits, NewRun, Run
from aswarm.testing import ScriptedModel, call
from tests.support.sampling import listed

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    "name",
    listed(
        [field.name for field in dataclasses.fields(Limits)], ["max_turns", "runs_per_user", "kept_runs", "kept_bytes"]
    ),
)
async def test_each_limit_is_set_alone(name: str, tmp_path: Path) -> None:
    """The other limits are None."""
    alone: dict[str, Any] = {name: 7}
    swarm, url = AsyncSwarm(ScriptedModel([]).client()), f"sqlite:///{tmp_path}/runs"
    runs = DurableRuns(swarm, agents=Agent(), store=url, version="1", limits=Limits(**alone))
    assert {key: value for key, value in dataclasses.asdict(runs.limits).items() if value is not None} == alone


async def test_durable_runs_with_one_limit_have_no_other_limit(tmp_path: Path) -> None:
    """Many runs of one user at once, with many completions each. Their logs stay."""

    async def look(number: int) -> str:
        return "found"

    def script(request: Any) -> Any:
        results = sum(message["role"] == "tool" for message in request.messages)
        return call("look", number=results) if results < 51 else "Done."

    swarm = AsyncSwarm(ScriptedModel(script).client())
    agents, url = Agent(functions=[look]), f"sqlite:///{tmp_path}/runs"
    async with DurableRuns(swarm, agents=agents, store=url, version="1", limits=Limits(run_seconds=600)) as runs:
        started = [await runs.start(NewRun("ann", f"c{number}", "Hi")) for number in range(6)]
        for record in started:
            assert (await Run(runs, record).result()).stop == "answer"
        await runs._forget_old()
        assert len(await runs.list(user="ann")) == 6
