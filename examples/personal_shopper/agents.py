"""The personal shopper: triage, sales and refunds over the shop's database.

Two values come from the program, through the context variables, and never from the model:

- `user_id`: the customer who is logged in. A customer can trick a model into any number, so the model never gets this number.
- `connect`: a function that returns a context manager with a connection for this thread. The same functions run with `Swarm`
  (`run.py`) and with `AsyncSwarm` (`run_async.py`); only `connect` differs.

If the shop refuses, this is a normal result, which the model passes on. The model would also get the text of an exception. But an
exception means a fault of the program, and is logged with its traceback.
"""

from __future__ import annotations

from typing import Any, Literal

import database

from aswarm import Agent
from aswarm.agents import create_triage_agent

Context = dict[str, Any]


def list_purchases(context_variables: Context) -> list[dict[str, Any]]:
    """List the purchases of the customer. Amounts are in euro cents; refunded is 1 if the money was given back."""
    with context_variables["connect"]() as connection:
        return database.purchases(connection, context_variables["user_id"])


def refund_purchase(purchase_id: int, context_variables: Context) -> str:
    """Give the customer the money of one purchase back."""
    try:
        with context_variables["connect"]() as connection:
            amount = database.refund(connection, context_variables["user_id"], purchase_id)
    except database.RefusedError as reason:
        return f"Not refunded: {reason}."
    return f"Refunded {amount / 100:.2f} EUR for purchase {purchase_id}."


def list_products(context_variables: Context) -> list[dict[str, Any]]:
    """List the products of the shop. Prices are in euro cents."""
    with context_variables["connect"]() as connection:
        return database.products(connection)


def order_product(product_id: int, context_variables: Context) -> str:
    """Order one piece of a product; the customer's balance pays."""
    try:
        with context_variables["connect"]() as connection:
            made = database.order(connection, context_variables["user_id"], product_id)
    except database.RefusedError as reason:
        return f"Not ordered: {reason}."
    return f"Ordered the {made['name']} for {made['amount'] / 100:.2f} EUR, purchase {made['purchase_id']}."


def notify_customer(method: Literal["email", "phone"], text: str, context_variables: Context) -> str:
    """Send the customer a short note, by email or to the phone."""
    try:
        with context_variables["connect"]() as connection:
            address = database.send_note(connection, context_variables["user_id"], method, text)
    except database.RefusedError as reason:
        return f"Not sent: {reason}."
    return f"Sent to {address}."


refunds = Agent(
    name="Refunds Agent",
    instructions="You give customers of a clothes shop their money back. "
    "Look at their purchases first, and refund only a purchase that is listed there and that the customer clearly means; "
    "ask if two could be meant. Tell the amount in euros. "
    "If the customer wants a note about it, ask whether by email or phone. "
    "For anything but refunds, hand back to triage.",
    functions=[list_purchases, refund_purchase, notify_customer],
)
sales = Agent(
    name="Sales Agent",
    instructions="You take orders for a clothes shop. "
    "Look at the products first, and order only what is listed there. Tell the price in euros. "
    "If the customer wants a note about it, ask whether by email or phone. "
    "For anything but orders, hand back to triage.",
    functions=[list_products, order_product, notify_customer],
)
triage = create_triage_agent(
    name="Triage Agent",
    instructions="You receive the customers of a clothes shop. Hand over at once: orders and questions about products "
    "to sales, refunds and returned goods to refunds. If you cannot tell which, ask one short question.",
    agents=[sales, refunds],
    add_backlinks=True,
)
