"""Kettle & Lamp, a shop for household goods: its catalogue, and the functions of its agents.

Prices come from the catalogue, and confirmations come from the customer. Neither comes from a model. The program serves one
customer, and keeps the refunds in a set. The example `personal_shopper` has a database.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Item:
    """An article: its id, its name, its price in euro cents."""

    item_id: str
    name: str
    price: int


CATALOGUE = {
    item.item_id: item
    for item in [
        Item("kettle-1", "enamel kettle", 3900),
        Item("lamp-2", "reading lamp", 5400),
        Item("lamp-3", "storm lamp", 2800),
    ]
}
refunded: set[str] = set()


def look_up_item(search_query: str) -> str:
    """Find the id and the price of an item, by a word of its name."""
    words = search_query.lower().split()
    items = [item for item in CATALOGUE.values() if any(word in item.name.split() for word in words)]
    lines = [f"{item.item_id}: {item.name}, {item.price / 100:.2f} EUR" for item in items]
    return "; ".join(lines) or f"Nothing found for {search_query!r}."


def execute_refund(item_id: str, reason: str = "not given") -> str:
    """Give the customer the money for an item back. The id comes from look_up_item."""
    if item_id not in CATALOGUE:
        return f"Not refunded: there is no item {item_id!r}."
    if item_id in refunded:
        return f"Not refunded: {item_id} is refunded already."
    refunded.add(item_id)
    return f"Refunded {CATALOGUE[item_id].price / 100:.2f} EUR, reason: {reason}."


def execute_order(item_id: str, context_variables: dict[str, Any]) -> str:
    """Order one item; the shop itself asks the customer to confirm. The id comes from look_up_item."""
    if item_id not in CATALOGUE:
        return f"Not ordered: there is no item {item_id!r}."
    item = CATALOGUE[item_id]
    if not context_variables["confirm"](f"Order the {item.name} for {item.price / 100:.2f} EUR?"):
        return "Not ordered: the customer did not confirm."
    return f"Ordered the {item.name}."


def escalate_to_human(summary: str) -> None:
    """Put the customer through to a person: only where the customer asks for one, or nothing else helps."""
    print(f"    A person takes over and reads: {summary}")
    sys.exit()  # the person continues
