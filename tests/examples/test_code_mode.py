"""`examples/code_mode`: its transcript, and the answer that is right."""

from __future__ import annotations

import pytest

from tests.examples.loading import load
from tests.examples.transcripts import Runs, Transcript, check_output, transcripts

agents = load("code_mode", "agents")


@pytest.mark.parametrize("transcript", transcripts("code_mode"), ids=str)
def test_the_readme_shows_what_happens(transcript: Transcript, runs: Runs) -> None:
    """The README's transcript is what its command prints."""
    check_output(transcript, runs[transcript].result())


@pytest.mark.asyncio
async def test_both_agents_find_all_lost_items() -> None:
    """The transcript names exactly the orders with lost items, and what is owed for them."""
    (transcript,) = transcripts("code_mode")
    owed: list[str] = []
    for number in await agents.list_orders():
        order, delivery = await agents.get_order(number), await agents.get_delivery(number)
        if missing := order["items"] - delivery["items"]:
            owed.append(f"{missing * order['price']} for order {number}")
    assert len(owed) == 3
    assert all(transcript.output.count(each) == 2 for each in owed)
