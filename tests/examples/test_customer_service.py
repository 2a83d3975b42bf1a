"""`examples/customer_service`: nothing is ordered without the yes of the customer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.examples.loading import load
from tests.examples.transcripts import run_offline

agents: Any = load("customer_service", "agents")
shop: Any = load("customer_service", "shop")
terminal: Any = load("customer_service", "terminal")


def test_an_order_is_confirmed_at_the_keyboard() -> None:
    """The typed line answers the question of the shop."""
    done = run_offline("customer_service", text="y\n")
    assert "Order the reading lamp for 54.00 EUR? [y/N] y\n" in done.stdout
    assert "-> Ordered the reading lamp.\n" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("item_id", "confirmed", "told"),
    [
        ("lamp-2", True, "Ordered the reading lamp."),
        ("lamp-2", False, "Not ordered: the customer did not confirm."),
        ("lamp-9", True, "Not ordered: there is no item 'lamp-9'."),
    ],
)
def test_an_order_needs_an_item_and_a_yes(item_id: str, confirmed: bool, told: str) -> None:
    """The question has the price of the catalogue."""
    asked: list[str] = []

    def confirm(question: str) -> bool:
        asked.append(question)
        return confirmed

    assert shop.execute_order(item_id, {"confirm": confirm}) == told
    assert asked == ["Order the reading lamp for 54.00 EUR?"] * (item_id == "lamp-2")
