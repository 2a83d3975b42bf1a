"""`cancel()` of a run that is about to wait for an approval: once it has returned, nobody can answer the run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import anyio
import pytest

from aswarm import Agent, AswarmError, AsyncSwarm
from aswarm.durable import DurableRuns
from aswarm.runs import AnswersRefused, Run
from aswarm.testing import Request, ScriptedModel, call
from tests.support.conversations.stores import emptied_database
from tests.support.durable.durables import Shop, durable

pytestmark = [pytest.mark.slow, pytest.mark.asyncio, pytest.mark.processes]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """A database without runs; None for a file of its own."""
    return None if request.param == "sqlite" else emptied_database(request.getfixturevalue("postgres"))


@pytest.mark.parametrize("tries", [30, pytest.param(120, marks=pytest.mark.heavy)])
async def test_a_run_that_is_cancelled_while_it_starts_to_wait_is_over(
    tmp_path: Path, url: str | None, tries: int
) -> None:
    """Over the whole window, from another process and from the own one: the approval is refused, and the call never runs."""
    shop = Shop()

    def script(request: Request) -> object:
        return call("pay", amount=1) if request.messages[-1]["role"] == "user" else "Done."

    with anyio.fail_after(240):
        async with (
            durable(tmp_path, script, shop, url=url) as runs,
            durable(tmp_path, script, shop, url=url, concurrency=0) as client,
        ):
            takes = await seconds_to_wait(runs)
            answered = [
                number
                for number in range(tries)
                if await is_answered_after_cancel(runs, (runs, client)[number % 2], takes * number / tries * 1.3)
            ]
            await asyncio.sleep(0.5)
    assert (answered, shop.keys.get("pay", [])) == ([], [])


async def test_a_queued_answer_that_a_client_without_the_agent_cancels_approves_nothing_later(tmp_path: Path) -> None:
    """Its run ends without a response. The call that it was about to approve is closed with it."""
    shop, version = Shop(), {"version": "1", "store": f"sqlite:///{tmp_path / 'runs.sqlite'}"}
    model = ScriptedModel([call("pay", call_id="1", amount=1)])
    swarm = AsyncSwarm(model.client())
    async with DurableRuns(swarm, agents=shop.agents(), **version) as runs:
        first = await runs.start("Boss", "Pay!")
        assert (await first.result()).stop == "waiting"
    async with DurableRuns(swarm, agents=shop.agents(), concurrency=0, **version) as runs:
        answer = await (await runs.find_run(first.id)).answer({"1": True})
    async with DurableRuns(swarm, agents=[Agent(name="Client")], **version)._as_client() as client:
        assert (await (await client.find_run(answer.id)).cancel()).reason == "cancelled"
    async with DurableRuns(swarm, agents=shop.agents(), concurrency=0, **version) as runs:
        with pytest.raises(AnswersRefused, match="does not wait for an answer"):
            await (await runs.find_run(answer.id)).answer({"1": True})


async def seconds_to_wait(runs: DurableRuns) -> float:
    """Return how long a run takes from its start until it waits: the longest of a few."""
    found = []
    for _ in range(5):
        started = time.perf_counter()
        await (await runs.start("Boss", "Pay!")).wait()
        found.append(time.perf_counter() - started)
    return max(found)


async def is_answered_after_cancel(runs: DurableRuns, canceller: DurableRuns, seconds: float) -> bool:
    """Cancel a run so many seconds after its start, and return whether an approval is taken after that."""
    run = await runs.start("Boss", "Pay!")
    await asyncio.sleep(seconds)
    await (await canceller.get_run(run.id)).cancel()
    try:
        await (await approve(canceller, run)).wait()
    except AswarmError:
        return False
    return True


async def approve(runs: DurableRuns, run: Run) -> Run:
    """Approve all open calls of the run, or the call that it may have been about to make."""
    response = await run.result()
    return await run.answer({each.id: True for each in response.open_calls} or {"call_1": True})
