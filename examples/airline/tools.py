"""The functions of the agents: read the booking, change it, find baggage, close a case.

Functions that only read get the context variables as a `Mapping`. The other functions return a `Result` with the changes, and
do not change the caller's dict. If a function raises an exception, the model gets its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from aswarm import Result

CANCELLATION_FEE = 3000  # euro cents, as all amounts here
CHANGE_FEE = 2500


@dataclass(frozen=True)
class Flight:
    """A flight that can be booked instead."""

    number: str
    day: date
    departs: str
    fare: int
    seats: int


FLIGHTS = [
    Flight("SK 88", date(2027, 5, 20), "07:15", 23500, 0),
    Flight("SK 90", date(2027, 5, 20), "16:40", 24900, 4),
    Flight("SK 88", date(2027, 5, 22), "07:15", 19900, 11),
]
BAGS = {"SK402117": "Lisbon", "SK402118": None}  # None: checked in, and not found since


def euros(cents: int) -> str:
    """Return an amount for a customer."""
    return f"{cents / 100:.2f} EUR"


# --- cancelling ---


async def cancellation_terms(context_variables: Mapping[str, Any]) -> dict[str, str]:
    """Return the amounts for cancelling the flight of the booking: as a refund and as a voucher."""
    fare = _booked(context_variables)["fare"]
    return {"refund": euros(fare - CANCELLATION_FEE), "voucher": euros(fare)}


async def cancel_flight(context_variables: dict[str, Any], settlement: Literal["refund", "voucher"]) -> Result:
    """Cancel the flight of the booking. Cannot be undone: only after the customer has chosen how to settle it."""
    flight = _booked(context_variables)
    amount = flight["fare"] - (CANCELLATION_FEE if settlement == "refund" else 0)
    when = "within five working days" if settlement == "refund" else "by e-mail within the hour"
    return Result(
        value=f"Flight {flight['number']} is cancelled; {settlement} of {euros(amount)}, {when}.",
        context_variables={"flight": {**flight, "state": "cancelled", "settlement": settlement}},
    )


# --- changing ---


async def change_terms(context_variables: Mapping[str, Any]) -> str:
    """Whether the flight of the booking can be changed, and for which fee."""
    if not _booked(context_variables)["changeable"]:
        return "This fare cannot be changed."
    return f"The fare can be changed for {euros(CHANGE_FEE)} and the difference in price, if the new flight costs more."


async def find_flights(context_variables: Mapping[str, Any], day: date) -> list[dict[str, str]]:
    """Find flights of the same route with a free seat on a day (YYYY-MM-DD), and their additional cost."""
    fare = _booked(context_variables)["fare"]
    return [
        {"number": flight.number, "departs": flight.departs, "costs more": euros(max(0, flight.fare - fare))}
        for flight in FLIGHTS
        if flight.day == day and flight.seats
    ]


async def change_flight(context_variables: dict[str, Any], number: str, day: date) -> Result:
    """Book another flight in place of the current one. Only after the customer has agreed to this flight."""
    booked = _booked(context_variables)
    if not booked["changeable"]:
        raise ValueError("this fare cannot be changed")
    flights = [flight for flight in FLIGHTS if (flight.number, flight.day) == (number, day) and flight.seats]
    if not flights:
        raise ValueError(f"there is no flight {number} with a free seat on {day}")
    charged = CHANGE_FEE + max(0, flights[0].fare - booked["fare"])
    return Result(
        value=f"Booked: {number} on {day} at {flights[0].departs}. Charged: {euros(charged)}.",
        context_variables={"flight": {**booked, "number": number, "date": str(day), "departs": flights[0].departs}},
    )


def _booked(context_variables: Mapping[str, Any]) -> dict[str, Any]:
    flight: dict[str, Any] = context_variables["flight"]
    if flight["state"] != "booked":
        raise ValueError(f"the flight {flight['number']} is {flight['state']}")
    return flight


# --- baggage ---


async def search_baggage(tag: str) -> str:
    """Where the bag with this tag (SK and six digits) was seen last."""
    if tag not in BAGS:
        raise ValueError(f"no bag has the tag {tag}")
    return f"found in {BAGS[tag]}" if BAGS[tag] else "not found"


async def deliver_baggage(context_variables: dict[str, Any], tag: str, address: str) -> Result:
    """Have a bag that was found brought to an address."""
    if not BAGS.get(tag):
        raise ValueError(f"the bag {tag} has not been found")
    baggage = {**context_variables.get("baggage", {}), tag: f"on its way to {address}"}
    return Result(value="It arrives tomorrow between 9 and 12.", context_variables={"baggage": baggage})


async def open_claim(context_variables: dict[str, Any], tag: str) -> Result:
    """Open a claim for a bag that was not found."""
    claim = f"claim {tag[2:]}-1"
    baggage = {**context_variables.get("baggage", {}), tag: claim}
    return Result(value=f"Opened {claim}.", context_variables={"baggage": baggage})


# --- ending a case ---


async def escalate_to_human(reason: str) -> Result:
    """Pass the case on to a colleague, a person, with the reason in a sentence."""
    return Result(
        value="A colleague takes over within ten minutes.", context_variables={"case": f"escalated: {reason}"}
    )


async def case_resolved() -> Result:
    """Close the case: the customer needs nothing more."""
    return Result(value="The case is closed.", context_variables={"case": "resolved"})
