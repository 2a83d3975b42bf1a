"""The assistant of an online bookshop, and the three agents that it hands off to.

- If a function gets the context variables as a `Mapping`, it only reads them, and its calls run at the same time.
- A `Result` can hand off and also change the context variables: here, the order of the return.
- Instructions are made from the context variables, so each agent has the data of the customer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shop import BOOKS, ORDERS, Subject, ask_carrier, why_not_returned

from aswarm import Agent, Result

# --- recommendation ---


async def find_books(
    subject: Subject, context_variables: Mapping[str, Any], up_to_euros: float | None = None
) -> list[dict[str, str]]:
    """Books about a subject that the customer has not ordered before, with their prices."""
    known = {ORDERS[order_id].title for order_id in context_variables["orders"]}
    return [
        {"title": book.title, "price": f"{book.price / 100:.2f} EUR"}
        for book in BOOKS
        if book.subject == subject
        and book.title not in known
        and (up_to_euros is None or book.price <= up_to_euros * 100)
    ]


# --- order status ---


async def order_status(order_id: int, context_variables: Mapping[str, Any]) -> str:
    """Where an order is. For several orders, call it once for each, in one go."""
    if order_id not in context_variables["orders"]:
        return f"The customer has no order {order_id}."
    return f"{ORDERS[order_id].title}: {await ask_carrier(order_id)}."


# --- returns ---


async def start_return(order_id: int, reason: str, context_variables: dict[str, Any]) -> Result:
    """Accept that an order is sent back, and send the customer the label for the parcel."""
    done: list[int] = context_variables["returns"]
    if order_id not in context_variables["orders"]:
        return Result(value=f"Not accepted: the customer has no order {order_id}.")
    if order_id in done:
        return Result(value=f"Order {order_id} was accepted before; the label is in the customer's mail.")
    if reason_against := why_not_returned(order_id, context_variables["today"]):
        return Result(value=f"Not accepted: {reason_against}.")
    return Result(
        value=f"Accepted: {ORDERS[order_id].title}, {reason}. The label is in the customer's mail.",
        context_variables={"returns": [*done, order_id]},
    )


async def transfer_to_returns(order_id: int) -> Result:
    """For customers who want to send an order back; `order_id` says which one."""
    return Result(agent=returns_agent, value="Returns takes over.", context_variables={"about": order_id})


# --- the agents ---


def instructions(task: str) -> Callable[[dict[str, Any]], str]:
    """Return instructions: the task, and the facts about the customer."""

    def text(context_variables: dict[str, Any]) -> str:
        orders = ", ".join(f"{order_id} ({ORDERS[order_id].title})" for order_id in context_variables["orders"])
        about = context_variables["about"]
        return (
            f"You work for an online bookshop. {task} Answer in one or two sentences. "
            f"The customer is {context_variables['name']}, with the orders {orders}."
            f"{f' The talk is about order {about}.' if about else ''}"
        )

    return text


HAND_BACK = "For anything else, hand back to the assistant."
assistant = Agent(
    name="Assistant",
    instructions=instructions("Find out what the customer wants, and hand over to the agent for it at once."),
)
recommendation_agent = Agent(
    name="Recommendation Agent",
    instructions=instructions(f"Recommend one book, only of those that find_books gives. {HAND_BACK}"),
    functions=[find_books, assistant],
)
order_status_agent = Agent(
    name="Order Status Agent",
    instructions=instructions(f"Tell customers where their orders are. {HAND_BACK}"),
    functions=[order_status, assistant],
)
returns_agent = Agent(
    name="Returns Agent",
    instructions=instructions(
        "Accept returns. Ask for the reason if there is none. Whether an order may be sent back is decided by "
        f"start_return; tell the customer why not, and do not promise anything. {HAND_BACK}"
    ),
    functions=[start_return, assistant],
)
assistant.functions = [recommendation_agent, order_status_agent, transfer_to_returns]
