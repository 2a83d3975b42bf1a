"""A run that another process continues: repeated and recorded calls, and the entries for readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, Output, RunError
from aswarm.testing import call
from tests.support.durable.durables import Shop, durable, interrupted
from tests.support.run.typed_scene import Trip

pytestmark = pytest.mark.asyncio


async def test_a_run_survives_a_deploy(tmp_path: Path, shop: Shop) -> None:
    """A process that ends hands its runs back; the next one continues them, and it counts as no death."""
    for _ in range(2):
        async with durable(tmp_path, [call("look")], shop, max_deaths=1) as runs:
            await runs.start("Boss", "Hi!", run_id="r")
            await shop.began.wait()
        shop.began = anyio.Event()
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop, max_deaths=1) as runs:
        assert (await (await runs.get_run("r")).result()).text == "Seen."


async def test_recorded_calls_stay_after_a_change_of_the_code(tmp_path: Path, shop: Shop) -> None:
    """The run fails with the part that differs, and its conversation has the call: the model must not make it again."""
    await interrupted(tmp_path, [call("count", number=1), call("look")], shop)
    changed = shop.agents()[0]
    changed.instructions = "Other ones."
    async with durable(tmp_path, [], shop, agents=changed) as runs:
        with pytest.raises(RunError, match=r"differs from the recorded request in its instructions.*version '1'"):
            await (await runs.get_run("r")).result()
        stored = await runs.store.load("-/r")
    assert stored is not None
    assert [message["content"] for message in stored.messages if message["role"] == "tool"][:1] == ["counted 1"]


@pytest.mark.parametrize("answer", ['{"city": "Rome"}', call("final_answer", city="Rome")], ids=["text", "call"])
async def test_a_check_of_an_answer_runs_again_in_the_next_process(tmp_path: Path, shop: Shop, answer: Any) -> None:
    """The recorded completion is not requested again, and its async check decides in the process that ends the run."""

    async def is_known(trip: Trip) -> None:
        shop.keys.setdefault("check", []).append(trip.city)
        shop.began.set()
        await shop.go.wait()
        if trip.city == "Rome":
            raise ValueError("not Rome")

    agent = Agent(name="Boss", functions=shop.agents()[0].functions, output=Output(Trip, check=is_known))
    async with durable(tmp_path, [answer], shop, agents=[agent]) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        await shop.began.wait()
    shop.go.set()
    async with durable(tmp_path, [call("final_answer", city="Oslo")], shop, agents=[agent]) as runs:
        response = await (await runs.get_run("r")).result()
    assert (response.stop, response.output, shop.keys["check"]) == (
        "answer",
        Trip(city="Oslo"),
        ["Rome", "Rome", "Oslo"],
    )
