"""The scripted model of the night desk: the first matching keyword decides."""

from __future__ import annotations

import re

from aswarm.testing import Request, ScriptedCall, ScriptedModel, call

QUEUES = {
    "human": r"lawyer|on hold|school report|safe for food",
    "account": r"account|password|log in",
    "delivery": r"deliver|tracking|courier|parcel|arrived|it leaves|had ordered the|new address|customs",
    "billing": r"charged|invoice|subscription|card|coupon|paid|seed club|send my planter back|warranty",
    "plants": r"basil|leaves|flies|seed|sow|tomato|lettuce|mint|orchid",
}
DANGER = re.compile(r"smoke|shock|leaks|somebody else is logged in|lawyer", re.IGNORECASE)
QUESTION = re.compile(r"\?$")


def script() -> ScriptedModel:
    """Return a model whose answers depend only on the request."""
    return ScriptedModel(_answer)


def _answer(request: Request) -> str | ScriptedCall:
    said = next(str(message["content"]) for message in reversed(request.messages) if message["role"] == "user")
    if request.messages[-1]["role"] == "tool":
        return f"Thank you for writing to us. {request.messages[-1]['content']}"
    queue = next((name for name, words in QUEUES.items() if re.search(words, said, re.IGNORECASE)), "technical")
    urgency = "high" if DANGER.search(said) else "low" if QUESTION.search(said) else "normal"
    return call("route", queue=queue, urgency=urgency, summary=re.split(r"[.!?]", said)[0])
