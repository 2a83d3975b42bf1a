"""The night desk of Fernsprout, a made-up maker of planters: one agent that reads a ticket and routes it."""

from __future__ import annotations

from typing import Annotated, Literal

from aswarm import Agent, Result

Queue = Literal["billing", "delivery", "technical", "plants", "account", "human"]
Urgency = Literal["low", "normal", "high"]


async def route(
    queue: Queue, urgency: Urgency, summary: Annotated[str, "What the customer wants, in a few words"]
) -> Result:
    """Put the ticket into a queue. Call this exactly once."""
    # A real function would write to the ticket system here. With a journal, a recorded call is not made again, so it
    # would write each ticket once.
    return Result(
        value=f"Ticket is in {queue}.",
        context_variables={"queue": queue, "urgency": urgency, "summary": summary},
    )


router = Agent(
    name="Night Desk",
    instructions="You read support tickets about self-watering planters and route each to a queue.\n"
    "billing: payments, invoices, refunds, subscriptions. delivery: parcels. technical: planter, lamp, pump and app. "
    "plants: what grows, or does not. account: log-in, personal data. human: threats, complaints, anything else.\n"
    "Urgency is high where people, their homes or their accounts are in danger, low for questions that can wait.\n"
    "Route first. Then write the first sentence of the answer to the customer.",
    functions=[route],
)
