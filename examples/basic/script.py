"""The scripted model of all basic examples: it answers each request as a real model would."""

from __future__ import annotations

import re
from typing import Any

from aswarm.testing import Request, ScriptedCall, ScriptedModel, call

Step = str | ScriptedCall | list[ScriptedCall]

FIRST: dict[str, Step] = {
    "Do you sell bells?": "Yes, in black and in silver.",
    "Do you have black bells?": call("count_stock", article="bell", colour="black"),
    "My brakes squeal.": call("send_to_workshop"),
    "Please put a bell aside for me.": call("reserve", article="bell"),
    "Are you open on Sunday?": call("opening_hours", day="Sunday"),
    "What is shipping to Rome, and to Oslo?": [
        call("shipping_cost", city="Rome"),
        call("shipping_cost", city="Oslo"),
    ],
    "My name is Ada. My brakes squeal.": call("transfer_to_workshop"),
    "The front one.": "Bring it in, Ada; new brake pads take ten minutes.",
    "Where is my order?": call("order_state"),
    "Where is my order 42?": call("transfer_to_orders"),
    "Thank you!": "You are welcome.",
}
AFTER: dict[str, Step] = {
    '{"assistant": "Orders"}': call("look_up_order", order_id=42),
    "Order 42 was delivered yesterday.": "It was delivered yesterday.",
    "closed": "No, we are closed on Sunday.",
}


def script() -> ScriptedModel:
    """Return a model whose answers depend only on the request, so that many conversations can run at once."""
    return ScriptedModel(_answer, cut=6)


def _answer(request: Request) -> Step:
    last = request.messages[-1]
    if last["role"] == "tool":
        return _after_a_tool(request, last["content"])
    if last["content"] == "What was my name?":
        return f"Your name is {_name_from(request.messages)}."
    return FIRST.get(last["content"], "I am a script, and know only the questions of the README.")


def _after_a_tool(request: Request, told: str) -> Step:
    match request.messages[0]["content"]:
        case system if "repair bicycles" in system:
            return "Is it the front brake or the rear one?"
        case system if "talking to" in system:
            return f"Done, {_name_from(request.messages)}: {told}."
    if told.isdigit():
        return f"Yes, we have {told}."
    if "EUR" in told:
        costs = [message["content"] for message in request.messages if message["role"] == "tool"]
        return f"Shipping costs, for {' and for '.join(costs)}."
    return AFTER.get(told, told)


def _name_from(messages: list[dict[str, Any]]) -> str:
    texts = " ".join(message["content"] or "" for message in messages)
    match = re.search(r"(?:My name is|talking to) (\w+)", texts)
    return match[1] if match else "unknown"
