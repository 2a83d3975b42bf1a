"""The scripted model: it refunds the order of the message."""

from __future__ import annotations

import re

from aswarm.testing import Request, ScriptedModel, Step, call


def script() -> ScriptedModel:
    """Return the model."""
    return ScriptedModel(_answer)


def _answer(request: Request) -> Step:
    last = request.messages[-1]
    if last["role"] == "tool":
        return f"Done: {last['content']}"
    order, amount = map(int, re.findall(r"\d+", last["content"]))
    return call("refund", call_id=f"refund-{order}", order=order, amount=amount)
