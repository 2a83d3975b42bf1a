"""The scripted model: the answers of SmolLM2 in this demo, for machines that cannot install the model.

Only the model is replaced; the client, the wire format, the run, the agents and the shop are real.
"""

from __future__ import annotations

import re

from aswarm.testing import Request, ScriptedCall, ScriptedModel, call


def scripted_model() -> ScriptedModel:
    """Return a model that hands off, makes the refund from the customer's sentence, and reports the refund."""
    return ScriptedModel([call("transfer_to_refunds"), _fill_in_refund, _answer], cut=6)


def _fill_in_refund(request: Request) -> ScriptedCall:
    sentence = next(message["content"] for message in request.messages if message["role"] == "user")
    [order] = re.findall(r"\d+", sentence)
    return call("process_refund", order_id=int(order), reason="broken")


def _answer(request: Request) -> str:
    return f"It is done. {request.messages[-1]['content']}"
