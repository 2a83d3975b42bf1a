"""A batch with a journal: what a rerun skips, what it resumes, and what it refuses."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, RateLimits, Result, RunError, UnknownCall
from aswarm._record.journal import Journal
from aswarm._runtime.files import SideLock
from aswarm.batch import Completed, Item, Outcome
from tests.support.batch.batches import AGENT, Counted, Echo, answer, call, idle, outcomes_of, text_of
from tests.support.record.journaled import fail_from

pytestmark = pytest.mark.anyio


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


async def test_a_rerun_returns_finished_items_and_runs_the_others(journal: Path) -> None:
    """Both runs give each item once; nothing that has finished is requested again."""
    items = [(f"item {number}", str(number)) for number in range(12)]
    async with Echo().swarm().batch(AGENT, items, journal=journal, concurrency=3, ordered=True) as outcomes:
        first = [await anext(outcomes) for _ in range(4)]
    again = Echo()
    second = await outcomes_of(again, items, journal=journal, ordered=True)
    assert [text_of(outcome) for outcome in second] == [text for _, text in items]
    assert second[:4] == [replaced(outcome, second[outcome.index]) for outcome in first]
    assert [outcome.attempts for outcome in second[:4]] == [0] * 4
    assert not set(again.begun) & {"0", "1", "2", "3"}


def replaced(outcome: Outcome, other: Outcome) -> Outcome:
    """The same outcome as the journal returns it."""
    assert outcome.response is not None
    return Completed(
        outcome.id, outcome.index, outcome.response, None, other.duration, 0, outcome.usage, outcome.metadata
    )


async def test_an_item_in_the_middle_is_continued(journal: Path) -> None:
    """A tool call that ran does not run again, and its answer is the recorded one."""
    ran: list[str] = []

    async def pay() -> Result:
        ran.append("paid")
        return Result(value=f"receipt {len(ran)}", context_variables={"paid": True})

    agent = Agent(functions=[pay])

    async def first(text: str) -> Any:
        return answer("", [call("pay")]) if text == "x" else await anyio.sleep_forever()

    async with Echo(first).swarm().batch(agent, ["x"], journal=journal):
        await idle()
        while not ran:
            await anyio.sleep(0.001)
        await idle()

    source = Echo()
    [outcome] = await outcomes_of(source, ["x"], agent, journal=journal)
    assert (text_of(outcome), ran, source.begun) == ("receipt 1", ["paid"], ["receipt 1"])
    assert outcome.response is not None
    assert outcome.response.context_variables == {"paid": True}
    assert (outcome.attempts, outcome.usage.requests) == (1, 2)


async def test_agents_that_only_the_list_has(journal: Path) -> None:
    """A function may look its agent up where no graph sees it: `agents=[...]` lets a rerun find it."""
    refunds = Agent(name="Refunds")
    hidden = itertools.repeat(refunds)

    def over() -> Agent:
        return next(hidden)

    async def gate(text: str) -> Any:
        return answer("", [call("over")]) if text == "x" else answer("done")

    triage = Agent(functions=[over])
    [outcome] = await outcomes_of(Echo(gate), ["x"], triage, journal=journal)
    assert isinstance(outcome.error, ConfigurationError)
    assert "agents=[...]" in str(outcome.error)
    for agents in (iter([refunds]), [refunds, refunds]):
        [outcome] = await outcomes_of(Echo(gate), ["x"], triage, journal=journal, agents=agents)
        assert text_of(outcome) == "done"
        assert outcome.response is not None
        assert outcome.response.agent is refunds
    assert outcome.attempts == 0


async def test_a_recorded_response_has_the_id_of_its_run(journal: Path) -> None:
    """The id leads to the log records of the run that made the response."""
    [first] = await outcomes_of(Echo(), ["x"], journal=journal)
    [again] = await outcomes_of(Echo(), ["x"], journal=journal)
    assert first.response is not None and again.response is not None
    assert again.response.run_id == first.response.run_id != ""


async def test_an_outcome_has_the_unknown_calls_of_its_item(journal: Path) -> None:
    """Those of a failed item, of one that continues after it, and of one whose response comes from the journal."""

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


async def test_a_rerun_tries_failed_items_again(journal: Path) -> None:
    """An item with an error has not finished."""

    async def refuse(_: str) -> None:
        raise CompletionError("no", status_code=400)

    [outcome] = await outcomes_of(Echo(refuse), ["x"], journal=journal)
    assert outcome.error is not None
    [outcome] = await outcomes_of(Echo(), ["x"], journal=journal)
    assert (text_of(outcome), outcome.attempts) == ("x", 1)


OTHERS = [
    ({"agent": Agent(name="Other")}, "its agent is 'Echo', and in this batch 'Other'"),
    ({"model_override": "other"}, "its model is 'gpt-6-luna', and in this batch 'other'"),
    (
        {"agent": AGENT.model_copy(update={"instructions": "Hi"})},
        "its instructions are 'Say .*', and in this batch 'Hi'",
    ),
    ({"agent": AGENT.model_copy(update={"functions": [AGENT]})}, "its functions are '', and .* 'transfer_to_echo'"),
]


@pytest.mark.parametrize(("others", "told"), OTHERS)
async def test_the_journal_of_another_batch_is_refused(journal: Path, others: dict[str, Any], told: str) -> None:
    """The error is raised where the block is entered, before an item is read."""
    await outcomes_of(Echo(), ["x"], journal=journal)
    items = Counted()
    with pytest.raises(ConfigurationError, match=told):
        await outcomes_of(Echo(), items, journal=journal, **others)
    assert items.pulled == 0


async def test_each_item_needs_an_id_of_its_own(journal: Path) -> None:
    """Of two items with the same id one is an error; the other runs."""
    outcomes = await outcomes_of(Echo(), [("a", "x"), ("a", "x"), ("b", "x")], journal=journal, concurrency=1)
    assert [type(outcome.error) for outcome in outcomes] == [type(None), ConfigurationError, type(None)]


@pytest.mark.parametrize("bad", [42, Item(b"x"), Item("x", agent="y"), Item("x", context_variables=3)])  # type: ignore[arg-type]
async def test_bad_input_is_the_error_of_that_item(journal: Path, bad: Any) -> None:
    """As without a journal."""
    outcomes = await outcomes_of(Echo(), [bad, "x"], journal=journal, ordered=True)
    assert isinstance(outcomes[0].error, ConfigurationError)
    assert text_of(outcomes[1]) == "x"


@pytest.mark.parametrize("variables", [{"user": "alice"}, {"user": "bob"}])
async def test_an_item_is_known_by_its_own_context_variables(journal: Path, variables: dict[str, Any]) -> None:
    """Those of the batch may differ in a rerun: they may hold the time."""
    items = [Item("x", id="a", context_variables={"user": "alice"})]
    await outcomes_of(Echo(), items, journal=journal, context_variables={"now": 1})
    again = [Item("x", id="a", context_variables=variables)]
    [outcome] = await outcomes_of(Echo(), again, journal=journal, context_variables={"now": 2})
    if variables == {"user": "alice"}:
        assert outcome.response is not None
        assert outcome.response.context_variables == {"now": 2, "user": "alice"}
    else:
        assert isinstance(outcome.error, ConfigurationError)


async def test_a_value_that_cannot_be_recorded_is_an_error_with_the_response(journal: Path) -> None:
    """The error has the partial response and its usage."""

    def instructions(context: dict[str, Any]) -> str:
        return "hi"

    async def change(context_variables: dict[str, Any]) -> str:
        context_variables["lock"] = object()
        return "locked"

    turns: Iterator[Any] = iter([answer("", [call("change")]), None])

    async def gate(_: str) -> Any:
        return next(turns)

    agent = Agent(functions=[change], instructions=instructions)
    [outcome] = await outcomes_of(Echo(gate), ["x"], agent, journal=journal)
    assert isinstance(outcome.error, ConfigurationError)
    assert outcome.error.response is not None
    assert outcome.usage.requests == 1


async def test_an_end_that_cannot_be_recorded_has_the_response_too(journal: Path) -> None:
    """The last record may fail like any other."""
    await fail(journal, "RunFinished")
    taken: list[Outcome] = []
    batch = Echo().swarm().batch(AGENT, ["x"], journal=journal)
    with pytest.raises(RunError, match="cannot be written: disk full"):
        await read(batch, taken)
    [outcome] = taken
    assert isinstance(outcome.error, RunError)
    assert outcome.error.response is not None
    assert outcome.error.response.text == "x"


async def read(batch: Any, taken: list[Outcome]) -> None:
    async with batch as outcomes:
        async for outcome in outcomes:
            taken.append(outcome)  # noqa: PERF401 - what came before an exception counts


async def fail(journal: Path, kind: str, agent: Agent = AGENT) -> None:
    """Make the journal, with a disk that is full once an entry of this type is to be written."""
    await outcomes_of(Echo(), [], agent, journal=journal)
    fail_from(journal, kind)


async def test_a_journal_that_cannot_be_written_ends_the_batch(journal: Path) -> None:
    """Items that have begun come out as errors; no further item begins; then the error is raised."""
    await fail(journal, "CompletionFinished")
    items = Counted()
    taken: list[Outcome] = []
    with pytest.raises(RunError, match="cannot be written: disk full"):
        await read(Echo().swarm().batch(AGENT, items, journal=journal, concurrency=4), taken)
    assert len(taken) == items.pulled < 20
    assert all(outcome.error is not None for outcome in taken)


@pytest.mark.parametrize("kind", ["RunFinished", "ToolCallFinished"])
@pytest.mark.parametrize("has_failed", [False, True])
async def test_a_lost_journal_is_an_error_where_the_block_is_left(
    journal: Path, caplog: pytest.LogCaptureFixture, kind: str, has_failed: bool
) -> None:
    """Also for records that closing writes. A body that has failed raises its own error, and this one is logged."""
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


async def test_a_batch_whose_journal_was_in_use_may_be_opened_later(journal: Path) -> None:
    """A batch that could not be opened has not begun."""
    batch = Echo().swarm().batch(AGENT, ["x"], journal=journal)
    held = SideLock.acquire(str(journal), 0)
    assert held is not None
    with pytest.raises(ConfigurationError, match="in use"):
        async with batch:
            pass
    held.release()
    async with batch as outcomes:
        assert [text_of(outcome) async for outcome in outcomes] == ["x"]


async def test_the_journal_is_closed_when_the_block_is_left(journal: Path) -> None:
    """However the block is left, the file can be opened again at once."""
    for _ in range(3):
        with anyio.CancelScope() as scope:
            async with Echo(lambda _: anyio.sleep_forever()).swarm().batch(AGENT, ["x", "y"], journal=journal):
                await idle()
                scope.cancel()
                await anyio.sleep_forever()
    assert len(await outcomes_of(Echo(), ["x", "y"], journal=journal)) == 2
    assert [path.name for path in journal.parent.iterdir()] == [journal.name]


async def test_a_rerun_counts_the_last_minute_of_the_journal(journal: Path) -> None:
    """Another process sent those requests, but the provider counts them all the same; in one process they count once."""
    first = AsyncSwarm(Echo(), rate_limits=RateLimits(requests_per_minute=1_000_000))
    items = [("a", "1"), ("b", "2")]
    for _ in range(2):
        async with first.batch(AGENT, items, journal=journal) as outcomes:
            assert len([outcome async for outcome in outcomes]) == 2
    assert counted_by(first) == 2
    second = AsyncSwarm(Echo(), rate_limits=RateLimits(requests_per_minute=1_000_000, tokens_per_minute=1_000_000))
    async with second.batch(AGENT, [*items, ("c", "3")], journal=journal) as outcomes:
        assert len([outcome async for outcome in outcomes]) == 3
    assert counted_by(second) == 3
    assert sum(admission.tokens for admission in second._rate_limiter._policy._window._admissions) == 45


def counted_by(swarm: AsyncSwarm) -> int:
    return len(swarm._rate_limiter._policy._window._admissions)


async def test_only_the_last_minute_of_a_journal_counts(journal: Path) -> None:
    """Of a long journal only the end is read; older completions do not count."""
    items = [(str(number), str(number)) for number in range(450)]
    await outcomes_of(Echo(), items, journal=journal, concurrency=50)
    with closing(sqlite3.connect(journal)) as connection, connection:
        earlier = """REPLACE(CAST(data AS TEXT), '"at":', '"at":-')"""
        connection.execute(f"UPDATE aswarm_entry SET data = CAST({earlier} AS BLOB) WHERE CAST(run AS INTEGER) < 440")
    async with Journal(journal, fingerprint_of(journal)) as opened:
        requests = await opened.recent_requests(61.0)
    assert len(requests) == 10
    assert all(0 <= age < 60 and tokens == 15 for age, tokens in requests)


def fingerprint_of(journal: Path) -> dict[str, str]:
    with closing(sqlite3.connect(journal)) as connection:
        return dict(connection.execute("SELECT key, value FROM aswarm_batch"))
