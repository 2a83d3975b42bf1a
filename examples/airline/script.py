"""The scripted model of the airline: it follows keywords, and the results of the functions.

The functions in a request show which agent is active. Like a real model, the script makes mistakes, and the evals show them.
Some words mislead it ("my flight yesterday"). If a customer is unclear, it guesses in one of three attempts.
"""

from __future__ import annotations

import json
import re
from itertools import count

from aswarm.testing import Request, ScriptedCall, ScriptedModel, call

Step = str | ScriptedCall
BAGGAGE = r"\b(bag|baggage|suitcase|luggage)\b"
CANCEL = r"\b(cancel|not fly)\b"
CHANGE = r"\b(change|earlier|later|move|another day)\b"


def script() -> ScriptedModel:
    """Return a model whose answers depend only on the request, except for its guesses."""
    return ScriptedModel(Airline().answer, cut=8)


class Airline:
    """The model. It counts its guesses."""

    def __init__(self) -> None:
        self._doubts = count(1)

    def answer(self, request: Request) -> Step:
        """Answer as the agent that has the functions of the request."""
        said, told = _last_message(request), _last_result(request)
        if "transfer_to_lost_baggage" in request.tool_names:
            return _triage(said)
        if "transfer_to_flight_cancel" in request.tool_names:
            return self._modification(said)
        return _ending(said, told) or _following_a_policy(request, said, told)

    def _modification(self, said: str) -> Step:
        if re.search(CANCEL, said):
            return call("transfer_to_flight_cancel")
        if re.search(CHANGE, said):
            return call("transfer_to_flight_change")
        if next(self._doubts) % 3 == 0:
            return call("transfer_to_flight_cancel")
        return "Would you like to cancel it, or to fly at another time?"


def _last_message(request: Request) -> str:
    """Return the last message of the customer."""
    return next(str(message["content"]) for message in reversed(request.messages) if message["role"] == "user")


def _last_result(request: Request) -> str | None:
    """Return the last result of a function. Return None directly after a customer's message or a handoff."""
    last = request.messages[-1]
    is_news = last["role"] == "tool" and not last["content"].startswith('{"assistant"')
    return str(last["content"]) if is_news else None


def _triage(said: str) -> Step:
    if re.search(BAGGAGE, said):
        return call("transfer_to_lost_baggage")
    if re.search(rf"{CANCEL}|{CHANGE}|\bflight\b", said):
        return call("transfer_to_flight_modification")
    return "Is it about a flight that you have booked, or about your baggage?"


def _ending(said: str, told: str | None) -> Step | None:
    if told is None and said.lower().startswith("no"):
        return call("case_resolved")
    return "Thank you for flying with Skylark Air. Goodbye!" if told == "The case is closed." else None


def _following_a_policy(request: Request, said: str, told: str | None) -> Step:
    if "search_baggage" in request.tool_names:
        return _baggage(request, said, told)
    if re.search(BAGGAGE, said):
        return call("transfer_to_triage")
    if "cancel_flight" in request.tool_names:
        return _cancel(said, told)
    return _change(request, said) if told is None else _after_change(request, told)


def _cancel(said: str, told: str | None) -> Step:
    if told and "cancelled" in told:
        return f"{told} Is there anything else?"
    if told:
        terms = json.loads(told)
        return f"You can have a refund of {terms['refund']} or a voucher of {terms['voucher']}. Which do you prefer?"
    if choice := re.search(r"refund|voucher", said):
        return call("cancel_flight", settlement=choice[0])
    return call("cancellation_terms")


def _change(request: Request, said: str) -> Step:
    if _day(request) is None:
        return "To which day?"
    if said.lower().startswith("yes"):
        return call("change_flight", number=_offered(request)["number"], day=_day(request))
    return call("change_terms")


def _after_change(request: Request, told: str) -> Step:
    if told.startswith("The fare can be changed"):
        return call("find_flights", day=_day(request))
    if told.startswith("Booked"):
        return f"{told} Is there anything else?"
    if told == "[]":
        return "There is no free seat on that day. Would another day do?"
    flight = _offered(request)
    cost = f"{flight['costs more']} more, and the fee of 25.00 EUR"
    return f"{flight['number']} leaves at {flight['departs']}; it costs {cost}. Shall I book it?"


def _day(request: Request) -> str | None:
    """Return the last day in the customer's messages."""
    return next(iter(re.findall(r"\d{4}-\d\d-\d\d", " ".join(_customer_texts(request)))[-1:]), None)


def _customer_texts(request: Request) -> list[str]:
    return [str(message["content"]) for message in request.messages if message["role"] == "user"]


def _offered(request: Request) -> dict[str, str]:
    """Return the first flight that the last search found."""
    results = (str(message["content"]) for message in reversed(request.messages) if message["role"] == "tool")
    flights: list[dict[str, str]] = json.loads(next(text for text in results if text.startswith("[{")))
    return flights[0]


def _baggage(request: Request, said: str, told: str | None) -> Step:
    tags = re.findall(r"SK\d{6}", " ".join(_customer_texts(request)))
    address = re.search(r"'address': '(.+?)'", request.messages[0]["content"])
    if not tags:
        return "I am sorry to hear that. What is the number of your baggage tag? It is SK and six digits."
    if told is None:
        if said.lower().startswith("yes") and address and not re.search(BAGGAGE, said):
            return call("deliver_baggage", tag=tags[-1], address=address[1])
        return call("search_baggage", tag=tags[-1])
    if told == "not found":
        return call("open_claim", tag=tags[-1])
    if told.startswith("found in"):
        where = f"I am sorry for the trouble. It was {told}. Shall we bring it to"
        return f"{where} {address[1] if address else 'you'}?"
    return f"{told} Is there anything else?"
