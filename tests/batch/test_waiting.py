"""A batch whose items wait for a decision, and items with decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, ConfigurationError, tool
from aswarm.batch import Completed, Item
from tests.support.batch.batches import Echo, answer, call, outcomes_of, text_of

pytestmark = pytest.mark.anyio
USER = {"role": "user", "content": "x"}


class Shop:
    """An agent whose payment needs an approval, and a model that calls it. `paid`: the number of payments."""

    def __init__(self) -> None:
        self.paid = 0

        @tool(approve=True)
        async def pay() -> str:
            self.paid += 1
            return "paid"

        self.agent = Agent(functions=[pay])
        self.source = Echo(self.gate)

    async def gate(self, text: str) -> Any:
        return answer("", [call("pay")]) if text == "x" else None


def stored(outcome: Any) -> list[Any]:
    """Return the history after a round trip through JSON."""
    history: list[Any] = json.loads(json.dumps([USER, *outcome.response.messages]))
    return history


@pytest.mark.parametrize("has_journal", [False, True], ids=["without a journal", "with a journal"])
async def test_an_item_waits_and_another_one_continues_it(has_journal: bool, tmp_path: Path) -> None:
    """The outcome of a waiting item is Completed, and a new item with its history and a decision is answered."""
    shop = Shop()
    journal = tmp_path / "run.sqlite" if has_journal else None
    [outcome] = await outcomes_of(shop.source, [Item("x", id="a")], shop.agent, journal=journal)
    assert isinstance(outcome, Completed)
    assert (outcome.response.stop, [each.name for each in outcome.response.waiting]) == ("waiting", ["pay"])
    if has_journal:
        [again] = await outcomes_of(Echo(), [Item("x", id="a")], shop.agent, journal=journal)
        assert again.response == outcome.response
    items = [Item(stored(outcome), id="a2", resume={"c1": True}), Item(stored(outcome), id="a3", resume={"c1": False})]
    texts = [text_of(each) for each in await outcomes_of(shop.source, items, shop.agent, journal=journal, ordered=True)]
    assert texts == ["paid", "not run: denied by the user"]
    if has_journal:
        assert texts == [
            text_of(each) for each in await outcomes_of(Echo(), items, shop.agent, journal=journal, ordered=True)
        ]
    assert shop.paid == 1


@pytest.mark.parametrize(
    ("resume", "words"), [({"c2": True}, "no open call"), (3, "resume must be"), (False, "no answer")], ids=str
)
async def test_decisions_that_do_not_fit_fail_their_item_alone(resume: Any, words: str) -> None:
    """An item whose decisions do not fit fails without running a call, and the other items run."""
    shop = Shop()
    [outcome] = await outcomes_of(shop.source, ["x"], shop.agent)
    first, second = await outcomes_of(
        shop.source, [Item(stored(outcome), resume=resume), "y"], shop.agent, ordered=True
    )
    assert isinstance(first.error, ConfigurationError)
    assert words in str(first.error)
    assert (text_of(second), shop.paid) == ("y", 0)
