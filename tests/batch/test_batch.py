"""A batch: its items, its outcomes and their order, and mistakes of the caller."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.batch import BatchResult, Item
from tests.support.batch.batches import AGENT, Echo, idle, outcomes_of, text_of


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# --- items and outcomes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "outcome_id"),
    [
        ("hello", "0"),
        (user("hello"), "0"),
        (tuple(user("hello")), "0"),
        (("a", "hello"), "a"),
        ((7, user("hello")), "7"),
        (Item("hello"), "0"),
        (Item("hello", id="b"), "b"),
        (Item(user("hello"), id=3), "3"),
    ],
)
async def test_a_conversation_may_be_given_in_several_ways(given: Any, outcome_id: str) -> None:
    """An item is a text, messages, a pair of id and messages, or an Item; the default id is the index."""
    [outcome] = await outcomes_of(Echo(), [given])
    assert (outcome.id, outcome.index, text_of(outcome)) == (outcome_id, 0, "hello")


async def test_an_outcome_describes_the_run() -> None:
    """An outcome has the response, its usage, one attempt, the seconds, and the metadata of the item."""
    metadata = object()
    [outcome] = await outcomes_of(Echo(), [Item("hello", metadata=metadata)])
    assert outcome.response is not None
    assert outcome.usage == outcome.response.usage
    assert outcome.usage.total_tokens == 15
    assert (outcome.attempts, outcome.error) == (1, None)
    assert outcome.metadata is metadata
    assert 0 <= outcome.duration < 60


@pytest.mark.parametrize(
    ("of_batch", "of_item", "seen"),
    [
        (None, None, {}),
        ({"a": 1}, None, {"a": 1}),
        (None, {"a": 2}, {"a": 2}),
        ({"a": 1, "b": 1}, {"a": 2}, {"a": 2, "b": 1}),
    ],
)
async def test_context_variables_of_an_item_override_the_variables_of_the_batch(
    of_batch: Any, of_item: Any, seen: Any
) -> None:
    """The context variables of an item and of the batch are merged key by key."""
    [outcome] = await outcomes_of(Echo(), [Item("x", context_variables=of_item)], context_variables=of_batch)
    assert outcome.response is not None
    assert outcome.response.context_variables == seen


async def test_model_and_turns_hold_for_every_run() -> None:
    """`model_override` and `max_turns` go to every run."""
    source = Echo()
    [outcome] = await outcomes_of(source, ["x"], model_override="small")
    assert source.requests[0].body["model"] == "small"
    [outcome] = await outcomes_of(Echo(), ["x"], max_turns=0)
    assert outcome.response is not None
    assert outcome.response.stop == "max_turns"


@pytest.mark.parametrize(
    "bad",
    [
        42,
        None,
        {"role": "user", "content": "x"},
        [1],
        Item(b"x"),
        Item("x", agent="y"),
        Item("x", context_variables=42),
    ],
)  # type: ignore[arg-type]
async def test_bad_input_is_the_error_of_that_item(bad: Any) -> None:
    """An item of a wrong type fails without a run, and the other items are answered."""
    outcomes = await outcomes_of(Echo(), ["a", bad, "c"], ordered=True, context_variables={"a": 1})
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    outcome = outcomes[1]
    assert isinstance(outcome.error, ConfigurationError)
    assert (outcome.id, outcome.index, outcome.attempts, outcome.response) == ("1", 1, 0, None)
    assert outcome.usage.requests == 0


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ordered", "order"), [(False, [1, 2, 0]), (True, [0, 1, 2])])
async def test_outcomes_come_as_they_finish_or_in_input_order(ordered: bool, order: list[int]) -> None:
    """Outcomes come as they finish, and with `ordered=True` in the order of the items."""
    turns = [anyio.Event() for _ in range(3)]

    async def gate(text: str) -> None:
        await turns[int(text)].wait()

    taken: list[int] = []
    async with Echo(gate).swarm().batch(AGENT, map(str, range(3)), ordered=ordered, concurrency=3) as outcomes:
        for turn in (1, 2, 0):
            turns[turn].set()
            await idle()
        taken += [outcome.index async for outcome in outcomes]
    assert taken == order


async def test_several_tasks_may_read_one_batch() -> None:
    """Each outcome goes to one of several readers, and the iteration ends in all of them."""
    taken: list[list[int]] = [[], [], []]

    async def read(outcomes: AsyncIterator[BatchResult], mine: list[int]) -> None:
        async for outcome in outcomes:
            mine.append(outcome.index)
            await anyio.lowlevel.checkpoint()

    async with (
        Echo(lambda _: anyio.lowlevel.checkpoint()).swarm().batch(AGENT, map(str, range(40))) as outcomes,
        anyio.create_task_group() as readers,
    ):
        for mine in taken:
            readers.start_soon(read, outcomes, mine)
    assert sorted(chain.from_iterable(taken)) == list(range(40))


# --- on_error ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
async def test_stop_starts_no_item_after_the_first_error(ordered: bool) -> None:
    """Running items finish after the first error, and the iteration ends without an exception."""
    failed = anyio.Event()

    async def gate(text: str) -> None:
        if text == "1":
            failed.set()
            raise ValueError(text)
        if text in "02":
            await failed.wait()
            await idle()

    source = Echo(gate)
    outcomes = await outcomes_of(source, map(str, range(100)), concurrency=3, on_error="stop", ordered=ordered)
    assert sorted(outcome.index for outcome in outcomes) == [0, 1, 2]
    assert [outcome.index for outcome in outcomes if outcome.error is not None] == [1]


async def test_stop_does_not_wait_for_items_that_do_not_come() -> None:
    """With on_error="stop" an iterator that waits for ever is closed."""
    left: list[str] = []

    async def items() -> AsyncIterator[str]:
        yield "bad"
        try:
            await anyio.sleep_forever()
        finally:
            left.append("items")

    async def gate(text: str) -> None:
        raise ValueError(text)

    outcomes = await outcomes_of(Echo(gate), items(), on_error="stop")
    assert len(outcomes) == 1
    assert left == ["items"]


# --- the caller's mistakes --------------------------------------------------------------------------------------------


def lone(**options: Any) -> None:
    AsyncSwarm(client=Echo()).batch(**{"agent": AGENT, "items": [], **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 2.5}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": "many"}, "concurrency"),
        ({"attempts": 0}, "attempts"),
        ({"on_error": "raise"}, "on_error"),
        ({"max_turns": -1}, "max_turns"),
        ({"agent": "Echo"}, "agent"),
        ({"agent": Agent(functions=[42])}, "42"),
        ({"context_variables": [1]}, "context_variables"),
        ({"items": "hello"}, "not str"),
        ({"items": b"hello"}, "not bytes"),
        ({"items": 7}, "not int"),
        ({"items": {"a": "x"}}, "items()"),
        ({"agents": Agent()}, "agents must be a list of Agents, not Agent"),
        ({"agents": 7}, "agents must be a list of Agents, not int"),
        ({"agents": ["Echo"]}, "one item is str"),
        ({"agents": [Agent(name="A"), Agent(name="A")]}, "agents has two agents named 'A'"),
    ],
)
async def test_wrong_arguments_are_an_error_before_any_request(options: Any, text: str) -> None:
    """The call itself raises the ConfigurationError of a wrong argument."""
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        lone(**options)


async def test_a_batch_is_used_inside_its_block() -> None:
    """A batch is opened once, and gives outcomes only inside its block."""
    batch = Echo().swarm().batch(AGENT, ["x"])
    with pytest.raises(RuntimeError, match="async with"):
        await anext(batch)
    async with batch:
        pass
    with pytest.raises(StopAsyncIteration):
        await anext(batch)
    with pytest.raises(RuntimeError, match="once"):
        await batch.__aenter__()


async def test_a_client_that_cannot_be_made_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the client is raised before an item is read."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    items = iter(["x"])
    with pytest.raises(Exception, match="api_key"):
        async with AsyncSwarm().batch(AGENT, items):
            pass
    assert next(items) == "x"
