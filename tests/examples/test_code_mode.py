"""`examples/code_mode`: the right answer."""

from __future__ import annotations

import pytest

from tests.examples.loading import load
from tests.examples.transcripts import transcripts

agents = load("code_mode", "agents")


@pytest.mark.asyncio
async def test_both_agents_find_all_lost_items() -> None:
    """The transcript names exactly the orders with lost items, with the amounts."""
    (transcript,) = transcripts("code_mode")
    owed: list[str] = []
    for number in await agents.list_orders():
        order, delivery = await agents.get_order(number), await agents.get_delivery(number)
        if missing := order["items"] - delivery["items"]:
            owed.append(f"{missing * order['price']} for order {number}")
    assert len(owed) == 3
    assert all(transcript.output.count(each) == 2 for each in owed)
