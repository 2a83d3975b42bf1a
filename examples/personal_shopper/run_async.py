"""The personal shopper with `AsyncSwarm`: several customers at once, and a connection for each call.

`AsyncSwarm` runs plain functions in worker threads, so that a slow function never blocks the event loop. SQLite rejects a
connection from another thread, so `connect` opens the file for each call. If a refund waits for another transaction, only its
thread waits, and all other conversations continue.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import database
from agents import refunds, triage
from conversation import ADA, BO, CONVERSATIONS, TWICE, show, show_books

from aswarm import AsyncSwarm


async def main(path: str) -> None:
    """Serve two customers at once, then one customer on two devices, then show the books."""
    with database.connect(path) as connection:
        database.create(connection)
        connection.execute("PRAGMA journal_mode = WAL")  # stored in the file: readers do not wait for writers
    connect = partial(database.connect, path)
    async with AsyncSwarm() as swarm:
        customers = ({"user_id": user_id, "connect": connect} for user_id in (ADA, BO))
        for messages in await asyncio.gather(*(converse(swarm, context) for context in customers)):
            show(messages)
            print()
        await ask_twice_at_once(swarm, {"user_id": ADA, "connect": connect})
    with database.connect(path) as connection:
        show_books(connection)


async def converse(swarm: AsyncSwarm, context: dict[str, Any]) -> list[dict[str, Any]]:
    """Send the customer's messages one after another, and return the whole conversation."""
    agent, messages = triage, list[dict[str, Any]]()
    for line in CONVERSATIONS[context["user_id"]]:
        messages.append({"role": "user", "content": line})
        response = await swarm.run(agent, messages, context)
        messages += response.messages
        agent = response.agent
    return messages


async def ask_twice_at_once(swarm: AsyncSwarm, context: dict[str, Any]) -> None:
    """Request one refund from two devices at the same time. The refund is made only once."""
    runs = (swarm.run(refunds, TWICE, context) for _ in ("phone", "laptop"))
    print(f"Customer, on two devices at once: {TWICE}")
    for answer in sorted(response.text for response in await asyncio.gather(*runs)):
        print(f"{refunds.name}: {answer}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(str(Path(folder, "shop.db"))))
