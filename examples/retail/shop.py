"""The bookshop: its books, its orders, and a slow carrier. Prices in euro cents.

The rule for returns is in code, because a model cannot count days reliably, and a customer can persuade it to break a rule.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from typing import Literal

DAYS_TO_RETURN = 30
Subject = Literal["cooking", "nature", "travel"]


@dataclass(frozen=True, slots=True)
class Book:
    """A book for sale; `price` in euro cents."""

    title: str
    subject: Subject
    price: int


@dataclass(frozen=True, slots=True)
class Order:
    """An order of one book. `delivered`: the day, or None if it is on the way. `seconds`: how long the carrier takes to answer."""

    title: str
    delivered: date | None
    where: str
    seconds: float


BOOKS = [
    Book("Mosses of the North", "nature", 2400),
    Book("The Patient Gardener", "nature", 1900),
    Book("Birds in Winter", "nature", 3200),
    Book("A Cook's Year", "cooking", 2900),
]
ORDERS = {
    501: Order("A Cook's Year", date(2025, 3, 3), "delivered on 3 March", 0.4),
    502: Order("The Patient Gardener", None, "in the van, arrives today", 0.1),
    430: Order("Bread", date(2025, 1, 10), "delivered on 10 January", 0.1),
}


async def ask_carrier(order_id: int) -> str:
    """Return the place of the parcel. A real shop would ask over the network."""
    order = ORDERS[order_id]
    await asyncio.sleep(order.seconds)
    return order.where


def why_not_returned(order_id: int, today: date) -> str:
    """Return the reason why this order cannot be returned, or an empty text if it can."""
    delivered = ORDERS[order_id].delivered
    if delivered is None:
        return "it has not been delivered yet"
    days = (today - delivered).days
    return f"it was delivered {days} days ago, and {DAYS_TO_RETURN} are allowed" if days > DAYS_TO_RETURN else ""
