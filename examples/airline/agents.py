"""The airline's five agents: triage, flight modification, and one for each policy.

    triage ──> flight modification ──> cancel, change
      └──────> lost baggage              └── and baggage: back to triage

A policy is a Markdown file, so its authors need not read Python. Customer and flight are in the context variables. The
instructions are made from these variables before each completion, so the instructions are always current.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import (
    cancel_flight,
    cancellation_terms,
    case_resolved,
    change_flight,
    change_terms,
    deliver_baggage,
    escalate_to_human,
    find_flights,
    open_claim,
    search_baggage,
)

from aswarm import Agent

POLICIES = Path(__file__).parent / "policies"

CONTEXT: dict[str, Any] = {
    "customer": {
        "name": "Grace Moreau",
        "number": "C-20714",
        "status": "silver",
        "address": "12 Harbour Street, Ghent",
    },
    "flight": {
        "number": "SK 88",
        "route": "Brussels to Lisbon",
        "date": "2027-05-21",
        "departs": "07:15",
        "fare": 21000,  # euro cents
        "changeable": True,
        "state": "booked",
    },
}


def facts(context_variables: dict[str, Any]) -> str:
    """Return the facts about the customer and the flight, for the instructions."""
    return f"Customer: {context_variables['customer']}\nBooking: {context_variables['flight']}"


def following(policy: str) -> Callable[[dict[str, Any]], str]:
    """Return a function that makes instructions from the policy with this name."""
    every = (POLICIES / "every_policy.md").read_text(encoding="utf-8")
    this = (POLICIES / f"{policy}.md").read_text(encoding="utf-8")
    return lambda context_variables: f"{every}\n{this}\n# What you know\n\n{facts(context_variables)}"


def triage_instructions(context_variables: dict[str, Any]) -> str:
    """Return the instructions of triage."""
    return (
        "You receive the customers of Skylark Air. Find out what they need and hand them over to the agent for it; the "
        "topic is enough, details are asked there. If the topic is not clear, ask one short question. If no agent is "
        f"there for it, say so and hand over to nobody.\n\n{facts(context_variables)}"
    )


# --- handoffs: functions, because they refer to agents that are made below, and because their docstrings help the model ---


async def transfer_to_flight_modification() -> Agent:
    """For customers who want to change or cancel a flight that is to come."""
    return flight_modification


async def transfer_to_flight_cancel() -> Agent:
    """For customers who do not want to fly any more."""
    return flight_cancel


async def transfer_to_flight_change() -> Agent:
    """For customers who want to fly, but on another day or at another time."""
    return flight_change


async def transfer_to_lost_baggage() -> Agent:
    """For customers whose baggage has not arrived."""
    return lost_baggage


async def transfer_to_triage() -> Agent:
    """For every topic that your policy does not cover."""
    return triage


ENDINGS = [escalate_to_human, transfer_to_triage, case_resolved]

triage = Agent(
    name="Triage",
    instructions=triage_instructions,
    functions=[transfer_to_flight_modification, transfer_to_lost_baggage],
)
flight_modification = Agent(
    name="Flight modification",
    instructions=(
        "A customer of Skylark Air wants to cancel or to change a flight. Find out which of the two from what was said, "
        "and hand over. If it could be both, ask. Do nothing else."
    ),
    functions=[transfer_to_flight_cancel, transfer_to_flight_change],
    parallel_tool_calls=False,  # it is either a change or a cancellation
)
flight_cancel = Agent(
    name="Flight cancel",
    instructions=following("flight_cancel"),
    functions=[cancellation_terms, cancel_flight, *ENDINGS],
)
flight_change = Agent(
    name="Flight change",
    instructions=following("flight_change"),
    functions=[change_terms, find_flights, change_flight, *ENDINGS],
)
lost_baggage = Agent(
    name="Lost baggage",
    instructions=following("lost_baggage"),
    functions=[search_baggage, deliver_baggage, open_claim, *ENDINGS],
)
