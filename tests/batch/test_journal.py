"""A batch with a journal: a rerun skips, resumes or refuses items."""

from __future__ import annotations

import functools
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, RateLimits, RunError
from aswarm.batch import BatchResult, Completed, Item
from aswarm.types import UnknownCall
from tests.support.batch.batches import AGENT, Counted, Echo, answer, call, idle, outcomes_of, text_of
from tests.support.record.journaled import fail_from
from tests.support.runtime.virtual_time import in_virtual_time


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


async def test_a_rerun_returns_finished_items_and_runs_the_others(journal: Path) -> None:
    """A rerun returns the recorded outcomes of finished items, and runs the other items."""
    items = [(f"item {number}", str(number)) for number in range(12)]
    async with Echo().swarm().batch(AGENT, items, journal=journal, concurrency=3, ordered=True) as outcomes:
        first = [await anext(outcomes) for _ in range(4)]
    again = Echo()
    second = await outcomes_of(again, items, journal=journal, ordered=True)
    assert [text_of(outcome) for outcome in second] == [text for _, text in items]
    assert second[:4] == [replaced(outcome, second[outcome.index]) for outcome in first]
    assert [outcome.attempts for outcome in second[:4]] == [0] * 4
    assert not set(again.begun) & {"0", "1", "2", "3"}


def replaced(outcome: BatchResult, other: BatchResult) -> BatchResult:
    """Return the outcome in the form of a rerun."""
    assert outcome.response is not None
    return Completed(
        outcome.id, outcome.index, outcome.response, None, other.duration, 0, outcome.usage, outcome.metadata
    )


async def test_an_outcome_has_the_unknown_calls_of_its_item(journal: Path) -> None:
    """A failed item, its continuation and its outcome from the journal have the unknown calls. A rerun runs a failed item again."""

    async def pay() -> str:
        raise KeyboardInterrupt

    agent = Agent(name="Payer", functions=[pay])

    async def fail(text: str) -> Any:
        return answer("", [call("pay")]) if text == "x" else await idle_and_fail()

    async def idle_and_fail() -> None:
        raise CompletionError("no", status_code=400)

    with pytest.raises(KeyboardInterrupt):
        await outcomes_of(Echo(fail), ["x"], agent, journal=journal)
    expected = [UnknownCall("c1", "pay", "{}", "Payer")]
    [failed] = await outcomes_of(Echo(fail), ["x"], agent, journal=journal)
    assert (failed.response, failed.unknown_calls) == (None, expected)
    for attempts in (1, 0):
        [outcome] = await outcomes_of(Echo(), ["x"], agent, journal=journal)
        assert (outcome.attempts, outcome.unknown_calls) == (attempts, expected)
    [other] = await outcomes_of(Echo(), [7], agent)
    assert other.unknown_calls == []


OTHERS = [
    ({"agent": Agent(name="Other")}, "its agent is 'Echo', and in this batch 'Other'"),
    ({"model_override": "other"}, "its model is 'gpt-6-luna', and in this batch 'other'"),
    (
        {"agent": AGENT.model_copy(update={"instructions": "Hi"})},
        "its instructions are 'Say .*', and in this batch 'Hi'",
    ),
    ({"agent": AGENT.model_copy(update={"functions": [AGENT]})}, "its functions are '', and .* 'transfer_to_echo'"),
]


@pytest.mark.parametrize(("others", "text"), OTHERS)
async def test_the_journal_of_another_batch_is_refused(journal: Path, others: dict[str, Any], text: str) -> None:
    """The journal of another batch is an error before an item is read."""
    await outcomes_of(Echo(), ["x"], journal=journal)
    items = Counted()
    with pytest.raises(ConfigurationError, match=text):
        await outcomes_of(Echo(), items, journal=journal, **others)
    assert items.pulled == 0


@pytest.mark.parametrize("variables", [{"user": "alice"}, {"user": "bob"}])
async def test_an_item_is_known_by_its_own_context_variables(journal: Path, variables: dict[str, Any]) -> None:
    """An item of a rerun has the same own context variables; the variables of the batch may differ."""
    items = [Item("x", id="a", context_variables={"user": "alice"})]
    await outcomes_of(Echo(), items, journal=journal, context_variables={"now": 1})
    again = [Item("x", id="a", context_variables=variables)]
    [outcome] = await outcomes_of(Echo(), again, journal=journal, context_variables={"now": 2})
    if variables == {"user": "alice"}:
        assert outcome.response is not None
        assert outcome.response.context_variables == {"now": 2, "user": "alice"}
    else:
        assert isinstance(outcome.error, ConfigurationError)


async def read(batch: Any, taken: list[BatchResult]) -> None:
    async with batch as outcomes:
        async for outcome in outcomes:
            taken.append(outcome)  # noqa: PERF401 - outcomes before an exception count


async def fail(journal: Path, kind: str, agent: Agent = AGENT) -> None:
    """Make a journal whose disk is full at the first entry of this type."""
    await outcomes_of(Echo(), [], agent, journal=journal)
    fail_from(journal, kind)


async def test_a_journal_that_cannot_be_written_ends_the_batch(journal: Path) -> None:
    """Started items fail, no further item starts, and then the error of the journal is raised."""
    await fail(journal, "CompletionFinished")
    items = Counted()
    taken: list[BatchResult] = []
    with pytest.raises(RunError, match="cannot be written: disk full"):
        await read(Echo().swarm().batch(AGENT, items, journal=journal, concurrency=4), taken)
    assert len(taken) == items.pulled < 20
    assert all(outcome.error is not None for outcome in taken)


@pytest.mark.parametrize("kind", ["RunFinished", "ToolCallFinished"])
@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_lost_journal_is_an_error_at_the_end_of_the_block(
    journal: Path, caplog: pytest.LogCaptureFixture, kind: str, has_failed: bool
) -> None:
    """The end of the block raises the error of the journal, or logs it if the body has failed."""
    go_on, asked_again = anyio.Event(), anyio.Event()

    async def pay() -> str:
        await go_on.wait()
        return "paid"

    async def gate(text: str) -> Any:
        if text == "paid":  # the outcome of the call was recorded just before
            asked_again.set()
            await anyio.sleep_forever()
        return answer("", [call("pay")]) if text == "x" and kind == "ToolCallFinished" else None

    agent = Agent(functions=[pay])
    await fail(journal, kind, agent)

    async def leave() -> None:
        async with Echo(gate).swarm().batch(agent, ["x", "y"], journal=journal) as outcomes:
            await anext(outcomes)
            if kind == "ToolCallFinished":
                go_on.set()
                with anyio.move_on_after(5):  # on a busy machine, the record fails before the model is asked again
                    await asked_again.wait()
            if has_failed:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) if has_failed else pytest.raises(RunError, match="written: disk full"):
        await leave()
    logged = [record.levelname for record in caplog.records if "disk full" in record.message]
    assert logged == (["WARNING"] if has_failed else [])


async def test_the_journal_is_closed_when_the_block_is_left(journal: Path) -> None:
    """After a cancelled block the journal can be opened again at once."""
    for _ in range(3):
        with anyio.CancelScope() as scope:
            async with Echo(lambda _: anyio.sleep_forever()).swarm().batch(AGENT, ["x", "y"], journal=journal):
                await idle()
                scope.cancel()
                await anyio.sleep_forever()
    assert len(await outcomes_of(Echo(), ["x", "y"], journal=journal)) == 2
    assert [path.name for path in journal.parent.iterdir()] == [journal.name]


async def test_a_batch_whose_journal_was_in_use_may_be_opened_later(journal: Path) -> None:
    """A batch can be opened after the batch that had its journal open."""
    batch = Echo().swarm().batch(AGENT, ["x"], journal=journal)
    async with Echo().swarm().batch(AGENT, ["x"], journal=journal):
        with pytest.raises(ConfigurationError, match="in use"):
            await batch.__aenter__()
    async with batch as outcomes:
        assert [text_of(outcome) async for outcome in outcomes] == ["x"]


@pytest.mark.parametrize(
    ("requests", "limits", "is_waiting"),
    [
        ("recent", RateLimits(requests_per_minute=460), True),
        ("recent", RateLimits(tokens_per_minute=460 * 15), True),
        ("old", RateLimits(requests_per_minute=460), False),
        ("of this process", RateLimits(requests_per_minute=460), False),
    ],
)
def test_requests_of_the_last_minute_of_a_journal_count(
    journal: Path, requests: str, limits: RateLimits, is_waiting: bool
) -> None:
    """A rerun counts the requests of another process in the last minute, and no other requests of the journal."""
    items = [(str(number), str(number)) for number in range(450)]
    earlier = AsyncSwarm(Echo(), rate_limits=limits)

    async def rerun() -> None:
        started = trio.current_time()
        swarm = earlier if requests == "of this process" else AsyncSwarm(Echo(), rate_limits=limits)
        async with swarm.batch(AGENT, [*items, *map(str, range(20))], journal=journal) as outcomes:
            assert all([outcome.error is None async for outcome in outcomes])
        assert (trio.current_time() - started > 5) is is_waiting

    anyio.run(functools.partial(outcomes_of, Echo(), items, journal=journal, concurrency=50))
    with closing(sqlite3.connect(journal)) as connection, connection:
        long_ago = """REPLACE(CAST(data AS TEXT), '"at":', '"at":-')"""
        connection.execute(f"UPDATE aswarm_entry SET data = CAST({long_ago} AS BLOB) WHERE ?", [requests == "old"])
    in_virtual_time(rerun)()
