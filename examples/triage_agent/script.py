"""The scripted model of the tea shop. It follows keywords, so it is often right, but some words mislead it.

The functions in a request show which agent is active. Only the model is scripted; everything else is real.
"""

from __future__ import annotations

import json
import re
from typing import Any

from aswarm.testing import Request, ScriptedCall, ScriptedModel, call

# The first match decides.
TOPICS = {
    "transfer_to_sales": r"\b(buy|bought|teas?|recommend|price)\b",
    "transfer_to_refunds": r"\b(refund|money|broken|complain|send back)\b",
}


def script() -> ScriptedModel:
    """Return a model whose answers depend only on the request, so that evals can run concurrently."""
    return ScriptedModel(_answer, cut=7)


def _answer(request: Request) -> str | ScriptedCall:
    if "response_format" in request.body:
        return _verdict(request)
    if "transfer_to_sales" in request.tool_names:
        topic = _topic(_last_message(request))
        return call(topic) if topic else "Is it about buying tea, or about an order that you have?"
    return _sales(request) if "list_teas" in request.tool_names else _refunds(request)


def _last_message(request: Request) -> str:
    """Return the last message of the customer."""
    return next(str(message["content"]) for message in reversed(request.messages) if message["role"] == "user")


def _topic(said: str) -> str | None:
    return next((name for name, words in TOPICS.items() if re.search(words, said.lower())), None)


def _result_of(request: Request, function: str) -> str | None:
    """Return the result of a function after the customer's message, or None."""
    for message in reversed(request.messages):
        if message["role"] == "user":
            return None
        if message["role"] == "tool" and _caller(request, message) == function:
            return str(message["content"])
    return None


def _caller(request: Request, answer: dict[str, Any]) -> str:
    calls = [made for message in request.messages for made in message.get("tool_calls") or ()]
    return next(str(made["function"]["name"]) for made in calls if made["id"] == answer["tool_call_id"])


def _sales(request: Request) -> str | ScriptedCall:
    if _topic(_last_message(request)) == "transfer_to_refunds":
        return call("transfer_back_to_triage")
    prices = _result_of(request, "list_teas")
    if prices is None:
        return call("list_teas")
    return f"Our green tea is sencha, fresh and a little grassy: {json.loads(prices)['sencha']} for 100 g."


def _refunds(request: Request) -> str | ScriptedCall:
    said = _last_message(request)
    if refunded := _result_of(request, "process_refund"):
        return f"Done. {refunded} I am sorry for the trouble."
    if order := _result_of(request, "look_up_order"):
        details = json.loads(order)
        return f"I am sorry. The {details['article']} was {details['price']}. Shall I refund that?"
    numbers = re.findall(r"\d{4}", " ".join(str(message["content"]) for message in request.messages))
    if not numbers:
        return "I am sorry to hear that. What is the number of your order?"
    if said.lower().startswith("yes"):
        return call("process_refund", order_id=int(numbers[-1]), reason="arrived broken")
    return call("look_up_order", order_id=int(numbers[-1]))


def _verdict(request: Request) -> str:
    """Answer as the judge: true if the assistant's text contains the quoted word of the question."""
    conversation, _, question = request.messages[-1]["content"].rpartition("Question:")
    quote = re.search("“(.+?)”", question)
    value = quote is not None and quote[1] in conversation
    return json.dumps({"reason": "It is said." if value else "It is not said.", "value": value})
