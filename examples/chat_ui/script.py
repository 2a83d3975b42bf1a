"""The scripted model of the gardener: it calls the function for the message, and reports the result."""

from __future__ import annotations

import re

from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call

ACTIONS = {"cut": "cut_down", "water": "water", "look": "look_at", "how": "look_at"}


def script() -> ScriptedModel:
    """Return the model."""
    return ScriptedModel(_answer, cut=8)


def _answer(request: Request) -> ScriptedAnswer:
    last = request.messages[-1]
    if last["role"] == "tool":
        return ScriptedAnswer(f"I have this for you: {last['content']}", pause=0.02)
    said = last["content"].lower()
    plant = re.search("basil|fig|rose", said)
    action = next((name for word, name in ACTIONS.items() if word in said), None)
    if plant and action:
        return ScriptedAnswer(calls=[call(action, plant=plant[0])])
    return ScriptedAnswer("I can look at the basil, the fig and the rose, water them, or cut them down.", pause=0.02)
