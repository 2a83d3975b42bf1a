"""The scripted model: what SmolLM2 says in this demo, said by a script, for machines that cannot install the model.

Only the model is replaced. The client, the wire format, the run, the agents and the shop are those of the real demo.
"""

from __future__ import annotations

import re

from aswarm.testing import Request, ScriptedCall, ScriptedModel, call


def scripted_model() -> ScriptedModel:
    """A model that hands over, fills in the refund from the customer's sentence, and says that it is done."""
    return ScriptedModel([call("transfer_to_refunds"), _fill_in_refund, _answer], cut=6)


def _fill_in_refund(request: Request) -> ScriptedCall:
    sentence = next(message["content"] for message in request.messages if message["role"] == "user")
    [order] = re.findall(r"\d+", sentence)
    return call("process_refund", order_id=int(order), reason="broken")


def _answer(request: Request) -> str:
    return f"It is done. {request.messages[-1]['content']}"
