"""The checks of the demo: the protocol, the arguments, the refund. The text is not checked, because the model is small.

Each check is printed. The caller handles failures.
"""

from __future__ import annotations

import json
import re
from typing import Any

from agents import Refund, Shop
from narrator import Narrator

from aswarm import Response
from aswarm.testing import check_history

FUNCTIONS = ["transfer_to_refunds", "process_refund"]


class Checks:
    """Prints the result of each check, and keeps the failed checks."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def check(self, condition: bool, message: str, *, seen: object) -> None:
        """Print the result of a check; if it failed, also the actual value `seen`."""
        if condition:
            print(f"  ok: {message}")
        else:
            print(f"  FAILED: {message}; seen: {seen}")
            self.failures.append(message)


def check_run(sentence: str, order: int, shop: Shop, response: Response, narrator: Narrator) -> list[str]:
    """Return the failed checks as texts; empty if all passed."""
    checks = Checks()
    _check_protocol(checks, sentence, response, narrator)
    _check_refund(checks, sentence, order, shop, response)
    return checks.failures


def _check_protocol(checks: Checks, sentence: str, response: Response, narrator: Narrator) -> None:
    fault = _history_fault([{"role": "user", "content": sentence}, *response.messages])
    names = [call["function"]["name"] for call in _calls(response)]
    arguments = "".join(call["function"]["arguments"] for call in _calls(response))
    texts = "".join(message["content"] or "" for message in response.messages if message["role"] == "assistant")
    usage = response.usage
    checks.check(response.stop == "answer", "the run ended with an answer", seen=response.stop)
    checks.check(not fault, "the history is valid: every call is answered once, in order", seen=fault)
    checks.check(names[:2] == FUNCTIONS, "the functions were called in turn", seen=names)
    handoffs = narrator.handoffs
    checks.check(handoffs == [("Triage", "Refunds")], "Triage handed off to Refunds, once", seen=handoffs)
    checks.check("".join(narrator.texts) == texts, "the streamed text is the recorded text", seen=narrator.texts)
    pieces = narrator.arguments
    checks.check("".join(pieces) == arguments, "the streamed arguments are the recorded ones", seen=pieces)
    counted = usage.requests == narrator.turns and usage.prompt_tokens > 0 and usage.completion_tokens > 0
    checks.check(counted, "the tokens of every turn were counted", seen=usage)


def _check_refund(checks: Checks, sentence: str, order: int, shop: Shop, response: Response) -> None:
    filled = _arguments(response, "process_refund")
    order_id, reason = filled.get("order_id"), str(filled.get("reason"))
    common = set(_words(reason)) & set(_words(sentence))
    checks.check(order_id == order, f"the model filled in the order number of the sentence, {order}", seen=order_id)
    checks.check(bool(common), "the model filled in a reason from the sentence", seen=reason)
    done = shop.refunds == [Refund(order, reason)]
    checks.check(done, f"the shop refunded order {order}, once, and nothing else", seen=shop.refunds)


def _history_fault(messages: list[dict[str, Any]]) -> str:
    try:
        check_history(messages)
    except AssertionError as error:
        return str(error)
    return ""


def _calls(response: Response) -> list[dict[str, Any]]:
    return [call for message in response.messages for call in message.get("tool_calls") or ()]


def _arguments(response: Response, name: str) -> dict[str, Any]:
    """Return the arguments of the first call of this function. Empty if there is no call, or if they are not a JSON object."""
    for call in _calls(response):
        if call["function"]["name"] == name:
            try:
                return dict(json.loads(call["function"]["arguments"]))
            except (ValueError, TypeError):
                break
    return {}


def _words(text: str) -> list[str]:
    """Return the words with at least four letters, because shorter words are in most sentences."""
    return re.findall(r"[a-z]{4,}", text.lower())
