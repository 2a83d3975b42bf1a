"""A run that another process continues: repeated and recorded calls, and the entries for readers."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from aswarm import Agent, RunError, tool
from aswarm.runs import Run, fold
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.durable.durables import Shop, die, durable, interrupted, written

pytestmark = pytest.mark.asyncio
UNKNOWN = "cancelled; its outcome is unknown"


@pytest.mark.heavy
async def test_recorded_calls_do_not_run_again(tmp_path: Path, shop: Shop) -> None:
    """Completions and calls come from the record; the context has the changes of calls that ran in the other process."""
    await interrupted(tmp_path, [[call("count", number=1), call("count", number=2)], call("slow")], shop)
    shop.go.set()
    async with durable(tmp_path, ["It is done."], shop) as runs:
        response = await (await runs.get_run("r")).result()
        stored = await runs.store.load("-/r")
    answers = [message["content"] for message in response.messages if message["role"] == "tool"]
    assert answers == ["counted 1", "counted 2", UNKNOWN]
    assert shop.keys == {"count": ["r:1:0", "r:1:1"], "slow": ["r:2:0"]}
    assert response.context_variables == {"user": "ann", "counted": [1, 2]}
    assert [each.name for each in response.unknown_calls] == ["slow"]
    assert stored is not None
    assert stored.messages[1:] == response.messages
    check_history(stored.messages)


@pytest.mark.heavy
async def test_a_repeatable_call_runs_again(tmp_path: Path, shop: Shop) -> None:
    """It has the same key, so that the function can recognise the call."""
    await interrupted(tmp_path, [call("look")], shop)
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop) as runs:
        response = await (await runs.get_run("r")).result()
    assert [message["content"] for message in response.messages][1] == "looked"
    assert shop.keys["look"] == ["r:1:0", "r:1:0"]
    assert response.unknown_calls == []


@pytest.mark.heavy
async def test_concurrent_calls_keep_their_places(tmp_path: Path, shop: Shop) -> None:
    """Calls that run together end in any order; each gets the outcome that it had."""
    ended: list[int] = []

    @tool(concurrent=True)
    async def wait(number: int) -> str:
        """Wait for the later calls."""
        while number and len(ended) < number:
            await anyio.sleep(0)
        ended.insert(0, number) if number == 0 else ended.append(number)
        return f"waited {number}"

    numbers = [3, 1, 0, 2]
    script = [[call("wait", number=number) for number in numbers], call("slow")]
    agents = [Agent(name="Boss", functions=[wait, *shop.agents()[0].functions])]
    await interrupted(tmp_path, script, shop, agents=agents)
    shop.go.set()
    async with durable(tmp_path, ["Done."], shop, agents=agents) as runs:
        response = await (await runs.get_run("r")).result()
    answers = [message["content"] for message in response.messages if message["role"] == "tool"]
    assert answers[:-1] == [f"waited {number}" for number in numbers]
    assert len(ended) == len(numbers)


@pytest.mark.heavy
async def test_a_handoff_is_found_by_its_name(tmp_path: Path, shop: Shop) -> None:
    """The next process continues with the agent that was active."""
    await interrupted(tmp_path, [call("transfer_to_clerk"), call("slow")], shop)
    async with durable(tmp_path, ["Done."], shop) as runs:
        assert (await (await runs.get_run("r")).result()).agent.name == "Clerk"


@pytest.mark.heavy
async def test_readers_continue_where_they_were(tmp_path: Path, shop: Shop) -> None:
    """No entry of the log comes twice; the numbers rise; and the whole log folds to the response of the run."""
    await interrupted(tmp_path, [call("count", number=1), call("slow")], shop)
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        reader = Run(client, (await client.get_run("r")).record)
        before = []
        while (await client.get_run("r")).record.last > (before[-1].seq if before else -1):
            before += await reader.read(before[-1].seq if before else -1)
    async with durable(tmp_path, ["It is done."], shop) as runs:
        run = await runs.get_run("r")
        after = [entry async for entry in run.entries(after=before[-1].seq)]
        response = await run.result()
        whole = [entry async for entry in run.entries()]
    assert [entry.seq for entry in whole] == sorted({entry.seq for entry in whole})
    assert whole == [*before, *after]
    kinds = [entry.type for entry in whole]
    assert kinds.count("TurnStarted") == 3
    assert kinds.count("CompletionFinished") == 3
    assert kinds.count("ToolCallFinished") == 2
    assert fold(whole).response_messages == response.messages
    assert fold(whole[:-1]).context == response.context_variables


@pytest.mark.heavy
async def test_a_completion_that_was_cut_starts_again(tmp_path: Path, shop: Shop) -> None:
    """Its text comes again after a second TurnStarted, so that no reader sees it twice."""

    def stop(request: Any) -> ScriptedAnswer:
        return ScriptedAnswer("One two three four.", pause=0.02)

    async with durable(tmp_path, ScriptedModel(stop, cut=4), shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")
        async for entry in run.entries():
            if entry.type == "TextDelta":
                break
        await written(runs)
        die(runs)
    async with durable(tmp_path, ["One two three four."], shop) as runs:
        response = await (await runs.get_run("r")).result()
        whole = [entry async for entry in (await runs.get_run("r")).entries()]
    assert response.text == "One two three four."
    assert [entry.type for entry in whole].count("TurnStarted") == 2
    assert fold(whole).response_messages == response.messages


async def test_changed_instructions_are_an_error(tmp_path: Path, shop: Shop) -> None:
    """A request that differs from the recorded one ends the run, and the text names the part."""
    await interrupted(tmp_path, [call("count", number=1), call("slow")], shop)
    agents = [Agent(name="Boss", instructions="New!", functions=shop.agents()[0].functions)]
    async with durable(tmp_path, ["Done."], shop, agents=agents) as runs:
        with pytest.raises(RunError, match=r"differs from the recorded request in its instructions.*version '1'"):
            await (await runs.get_run("r")).result()


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
    """The run fails, and its conversation has the call that was made: the model must not make it again."""
    await interrupted(tmp_path, [call("count", number=1), call("look")], shop)
    changed = shop.agents()[0]
    changed.instructions = "Other ones."
    async with durable(tmp_path, [], shop, agents=changed) as runs:
        with pytest.raises(RunError, match="cannot be continued"):
            await (await runs.get_run("r")).result()
        stored = await runs.store.load("-/r")
    assert stored is not None
    assert [message["content"] for message in stored.messages if message["role"] == "tool"][:1] == ["counted 1"]


@pytest.mark.heavy
async def test_a_run_that_kills_its_process_is_given_up(
    tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """After so many deaths it has failed with this reason."""
    await interrupted(tmp_path, [call("look")], shop, max_deaths=2)
    shop.began = anyio.Event()
    async with durable(tmp_path, [], shop, max_deaths=2) as runs:
        await shop.began.wait()
        die(runs)
    with caplog.at_level(logging.ERROR, "aswarm"):
        async with durable(tmp_path, [], shop, max_deaths=2) as runs:
            with pytest.raises(RunError, match="2 processes died while they executed this run"):
                await (await runs.get_run("r")).result()
            assert (await runs.find_run("r")).record.status == "failed"
    assert "the run r failed" in caplog.text
