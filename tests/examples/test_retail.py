"""`examples/retail`: returns and recommendations."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from aswarm import AsyncSwarm
from aswarm.testing import ScriptedModel, call
from tests.examples.loading import load

agents: Any = load("retail", "agents")
shop: Any = load("retail", "shop")
CONTEXT: dict[str, Any] = {
    "name": "Ines",
    "orders": [501, 502, 430],
    "today": date(2025, 3, 14),
    "about": None,
    "returns": [],
}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("order_id", "answer", "returns"),
    [
        (501, "Accepted: A Cook's Year, dull. The label is in the customer's mail.", [501]),
        (502, "Not accepted: it has not been delivered yet.", []),
        (430, "Not accepted: it was delivered 63 days ago, and 30 are allowed.", []),
        (999, "Not accepted: the customer has no order 999.", []),
    ],
)
async def test_only_an_accepted_return_is_noted(order_id: int, answer: str, returns: list[int]) -> None:
    """The model gets the reason, and the context has only an accepted return."""
    model = ScriptedModel([call("start_return", order_id=order_id, reason="dull"), "Well."])
    response = await AsyncSwarm(client=model.client()).run(agents.returns_agent, "Hi", CONTEXT)
    assert model.requests[-1].messages[-1]["content"] == answer
    assert response.context_variables["returns"] == returns


@pytest.mark.asyncio
@pytest.mark.parametrize(("limit", "titles"), [(25, ["Mosses of the North"]), (None, ["Mosses of the North", "Birds"])])
async def test_books_of_the_customer_are_not_recommended(limit: float | None, titles: list[str]) -> None:
    """Books over the price limit are not recommended either."""
    found = await agents.find_books("nature", CONTEXT, limit)
    assert [book["title"].removesuffix(" in Winter") for book in found] == titles
