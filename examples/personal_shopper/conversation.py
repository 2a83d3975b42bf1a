"""The messages of the customers in the runs without `--chat`, and functions that print messages and the database."""

from __future__ import annotations

import sqlite3
from typing import Any

import database

ADA, BO = 1, 2
CONVERSATIONS = {
    ADA: [
        "The wool socks are too small. I want my money back.",
        "Could you refund them again, to be sure?",
        "Fine. I will take the straw hat instead, and please confirm it by email.",
    ],
    BO: ["I sent the straw hat back. Has it been refunded?"],
}
TWICE = "Please refund the walking shoes, purchase 2."


def show(messages: list[dict[str, Any]]) -> None:
    """Print messages: texts, calls and results."""
    for message in messages:
        if message["role"] == "user":
            print(f"Customer: {message['content']}")
        elif message["role"] == "tool":
            print(f"    -> {message['content']}")
        elif message["content"]:
            print(f"{message['sender']}: {message['content']}")
        for made in message.get("tool_calls") or ():
            print(f"    {message['sender']} calls {made['function']['name']} {made['function']['arguments']}")


def show_books(connection: sqlite3.Connection) -> None:
    """Print the database: balances, purchases, and notes to customers."""
    print("\nThe books:")
    for user_id in CONVERSATIONS:
        customer = database.user(connection, user_id)
        print(f"  {customer['name']}: {customer['balance'] / 100:.2f} EUR")
        for row in database.purchases(connection, user_id):
            refunded = ", refunded" if row["refunded"] else ""
            print(f"    purchase {row['purchase_id']}: {row['name']}, {row['amount'] / 100:.2f} EUR{refunded}")
    for note in database.notes(connection):
        print(f"  sent to {note['address']}: {note['text']}")
