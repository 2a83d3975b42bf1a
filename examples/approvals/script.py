"""The scripted model of the cashier: it calls the function for the customer's request, and reports the result."""

from __future__ import annotations

import re

from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call


def script() -> ScriptedModel:
    """Return the model."""
    return ScriptedModel(_answer)


def _answer(request: Request) -> ScriptedAnswer:
    last = request.messages[-1]
    if last["role"] == "tool":
        return ScriptedAnswer(_report(last["content"]))
    order, *amount = (int(number) for number in re.findall(r"\d+", last["content"]))
    if "new lamp" in last["content"]:
        return ScriptedAnswer(calls=[call("replace_lamp", call_id=f"replace_{order}", order=order)])
    return ScriptedAnswer(calls=[call("refund", call_id=f"refund_{order}", order=order, amount=amount[0])])


def _report(result: str) -> str:
    done = re.search(r"(\d+ euros for order \d+ are on their way|A \w+ lamp is sent for order \d+)", result)
    return f"{done[0]}." if done else "I am sorry, we cannot do that: it cost 90 euros."
