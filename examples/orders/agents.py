"""An agent that refunds orders after an approval, and a payment service that ignores a repeated request."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing

from aswarm import Agent, current_call, tool

PAYMENTS = os.environ.get("PAYMENTS_FILE", "payments.sqlite")
SECONDS = 1.0  # of the payment service


def pay(key: str, order: int, amount: int) -> None:
    """Stand for the payment service: it notes each request, and a payment once for each key."""
    with closing(sqlite3.connect(PAYMENTS)) as file, file:
        file.execute("CREATE TABLE IF NOT EXISTS requests (key)")
        file.execute("CREATE TABLE IF NOT EXISTS payments (key UNIQUE, purpose, amount)")
        file.execute("INSERT INTO requests VALUES (?)", [key])
        file.execute("INSERT OR IGNORE INTO payments VALUES (?, ?, ?)", [key, f"order {order}", amount])


@tool(approve=True, repeatable=True)
async def refund(order: int, amount: int) -> str:
    """Refund an order."""
    await asyncio.to_thread(pay, current_call().key, order, amount)
    await asyncio.sleep(SECONDS)  # a slow answer, during which the process may die
    return f"{amount} euros for order {order} are on their way."


desk = Agent(name="Desk", instructions="Refund orders.", functions=[refund])
