"""A run that another process continues: what is repeated, what is not, and what readers see."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from aswarm import Agent, RunError, tool
from aswarm._record import log
from aswarm.durable import DurableRun, DurableRuns
from aswarm.middleware import CompletionRequest, Handlers, Started, ToolCall, ToolOutcome
from aswarm.runs import Run, fold
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.durable.durables import Shop, die, durable

pytestmark = pytest.mark.asyncio
UNKNOWN = "cancelled; its outcome is unknown"


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def interrupted(folder: Path, script: Any, shop: Shop, **settings: Any) -> None:
    """A process that dies while the run "r" waits for a function."""
    async with durable(folder, script, shop, **settings) as runs:
        await runs.start("Boss", "Hi!", {"user": "ann"}, run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
            await written(runs)
        die(runs)


async def written(runs: DurableRuns) -> None:
    """Wait until the log has what has happened."""
    while any(live.unwritten() for live in runs._live.values()):
        await anyio.sleep(0.01)


async def finished(run: DurableRun) -> Any:
    """The result, within a minute."""
    with anyio.fail_after(60):
        return await run.result()


@pytest.mark.heavy
async def test_what_is_recorded_does_not_run_again(tmp_path: Path, shop: Shop) -> None:
    """Completions and calls come from the record; the context has the changes of calls that ran in the other process."""
    await interrupted(tmp_path, [[call("count", number=1), call("count", number=2)], call("slow")], shop)
    shop.go.set()
    async with durable(tmp_path, ["It is done."], shop) as runs:
        response = await finished(await runs.get_run("r"))
        stored = await runs.store.load("-/r")
    told = [message["content"] for message in response.messages if message["role"] == "tool"]
    assert told == ["counted 1", "counted 2", UNKNOWN]
    assert shop.keys == {"count": ["r:1:0", "r:1:1"], "slow": ["r:2:0"]}
    assert response.context_variables == {"user": "ann", "counted": [1, 2]}
    assert [each.name for each in response.unknown_calls] == ["slow"]
    assert stored is not None
    assert stored.messages[1:] == response.messages
    check_history(stored.messages)


@pytest.mark.heavy
async def test_a_repeatable_call_runs_again(tmp_path: Path, shop: Shop) -> None:
    """With the same key, so that the function can know it."""
    await interrupted(tmp_path, [call("look")], shop)
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop) as runs:
        response = await finished(await runs.get_run("r"))
    assert [message["content"] for message in response.messages][1] == "looked"
    assert shop.keys["look"] == ["r:1:0", "r:1:0"]
    assert response.unknown_calls == []


@pytest.mark.heavy
async def test_writes_of_a_middleware_are_repeated(tmp_path: Path, shop: Shop) -> None:
    """Around calls and around completions: the instructions read them, so the run could not continue without them."""

    def counting(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            handlers.run.context_variables["counts"]["asked"] += 1
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk

        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            context["counts"]["called"] += 1
            return await handlers.call_tool(call, context, started)

        return replace(handlers, complete=complete, call_tool=call_tool)

    def told(context_variables: dict[str, Any]) -> str:
        return f"Counts: {context_variables['counts']}"

    boss = shop.agents()[0].model_copy(update={"instructions": told})
    settings: dict[str, Any] = {"agents": [boss], "middleware": [counting]}
    async with durable(tmp_path, [call("count", number=1), call("look")], shop, **settings) as runs:
        await runs.start("Boss", "Hi!", {"counts": {"asked": 0, "called": 0}}, run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
            await written(runs)
        die(runs)
    shop.go.set()
    async with durable(tmp_path, ["Done."], shop, **settings) as runs:
        response = await finished(await runs.get_run("r"))
    assert response.messages[-1]["content"] == "Done."
    assert response.context_variables["counts"] == {"asked": 3, "called": 2}


@pytest.mark.heavy
async def test_concurrent_calls_keep_their_places(tmp_path: Path, shop: Shop) -> None:
    """Calls that run together end in any order; each gets the outcome that it had."""
    ended: list[int] = []

    @tool(concurrent=True)
    async def wait(number: int) -> str:
        """Wait for the later ones."""
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
        response = await finished(await runs.get_run("r"))
    told = [message["content"] for message in response.messages if message["role"] == "tool"]
    assert told[:-1] == [f"waited {number}" for number in numbers]
    assert len(ended) == len(numbers)


@pytest.mark.heavy
async def test_a_handoff_is_found_by_its_name(tmp_path: Path, shop: Shop) -> None:
    """The next process continues with the agent that was active."""
    await interrupted(tmp_path, [call("transfer_to_clerk"), call("slow")], shop)
    async with durable(tmp_path, ["Done."], shop) as runs:
        assert (await finished(await runs.get_run("r"))).agent.name == "Clerk"


@pytest.mark.heavy
async def test_readers_continue_where_they_were(tmp_path: Path, shop: Shop) -> None:
    """Nothing that the log has comes twice; the numbers rise; and the whole log folds to what the run has left."""
    await interrupted(tmp_path, [call("count", number=1), call("slow")], shop)
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        reader = Run(client, (await client.get_run("r")).record)
        before = []
        while (await client.get_run("r")).record.last > (before[-1].seq if before else -1):
            before += await reader.read(before[-1].seq if before else -1)
    async with durable(tmp_path, ["It is done."], shop) as runs:
        run = await runs.get_run("r")
        with anyio.fail_after(60):
            after = [entry async for entry in run.entries(after=before[-1].seq)]
        response = await finished(run)
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
async def test_a_completion_that_was_cut_begins_again(tmp_path: Path, shop: Shop) -> None:
    """Its text comes again after the beginning of its turn, so that no reader sees it twice."""
    half = anyio.Event()

    def stop(request: Any) -> ScriptedAnswer:
        return ScriptedAnswer("One two three four.", pause=0.02)

    async with durable(tmp_path, ScriptedModel(stop, cut=4), shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")
        async for entry in run.entries():
            if entry.type == "TextDelta":
                half.set()
                break
        await written(runs)
        die(runs)
    async with durable(tmp_path, ["One two three four."], shop) as runs:
        response = await finished(await runs.get_run("r"))
        whole = [entry async for entry in (await runs.get_run("r")).entries()]
    assert response.text == "One two three four."
    assert [entry.type for entry in whole].count("TurnStarted") == 2
    assert fold(whole).response_messages == response.messages


async def test_changed_instructions_are_an_error_that_says_so(tmp_path: Path, shop: Shop) -> None:
    """A request that differs from the recorded one ends the run, and the text names the part."""
    await interrupted(tmp_path, [call("count", number=1), call("slow")], shop)
    agents = [Agent(name="Boss", instructions="New!", functions=shop.agents()[0].functions)]
    async with durable(tmp_path, ["Done."], shop, agents=agents) as runs:
        with pytest.raises(RunError, match=r"differs from the recorded request in its instructions.*version '1'"):
            await finished(await runs.get_run("r"))


async def test_a_run_survives_a_deploy(tmp_path: Path, shop: Shop) -> None:
    """A process that ends hands its runs back; the next one continues them, and it counts as no death."""
    for _ in range(2):
        async with durable(tmp_path, [call("look")], shop, max_deaths=1) as runs:
            await runs.start("Boss", "Hi!", run_id="r")
            with anyio.fail_after(60):
                await shop.began.wait()
        shop.began = anyio.Event()
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop, max_deaths=1) as runs:
        assert (await finished(await runs.get_run("r"))).text == "Seen."


async def test_what_was_recorded_stays_though_the_code_has_changed(tmp_path: Path, shop: Shop) -> None:
    """The run fails, and its conversation has the call that was made: the model must not make it again."""
    async with durable(tmp_path, [call("count", number=1), call("look")], shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    changed = shop.agents()[0]
    changed.instructions = "Other ones."
    async with durable(tmp_path, [], shop, agents=changed) as runs:
        with pytest.raises(RunError, match="cannot be continued"):
            await finished(await runs.get_run("r"))
        stored = await runs.store.load("-/r")
    assert stored is not None
    assert [message["content"] for message in stored.messages if message["role"] == "tool"][:1] == ["counted 1"]


@pytest.mark.heavy
async def test_a_run_that_kills_its_process_is_given_up(
    tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """After so many deaths it has failed, and the text says why."""
    await interrupted(tmp_path, [call("look")], shop, max_deaths=2)
    shop.began = anyio.Event()
    async with durable(tmp_path, [], shop, max_deaths=2) as runs:
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    with caplog.at_level(logging.ERROR, "aswarm"):
        async with durable(tmp_path, [], shop, max_deaths=2) as runs:
            with pytest.raises(RunError, match="2 processes died while they executed this run"):
                await finished(await runs.get_run("r"))
            assert (await runs.find_run("r")).record.status == "failed"
    assert "the run r failed" in caplog.text


@pytest.mark.heavy
async def test_a_run_that_was_asked_to_stop_does_not_continue(tmp_path: Path, shop: Shop) -> None:
    """A client asks while no process executes the run; the next one stops it before its first step."""
    await interrupted(tmp_path, [call("look")], shop)
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        await client._database.run(log.request_cancel, "r", "enough")
    async with durable(tmp_path, [], shop) as runs:
        response = await finished(await runs.get_run("r"))
        assert (await runs.get_run("r")).record.reason == "enough"
    assert response.stop == "cancelled"
    assert shop.keys["look"] == ["r:1:0"]
