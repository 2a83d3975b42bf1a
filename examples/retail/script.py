"""The scripted model: its answers in the order of the conversation in `run.py`.

Only the model is replaced: the functions of the shop decide on returns and recommendations.
"""

from __future__ import annotations

from aswarm.testing import Request, ScriptedModel, call


def script() -> ScriptedModel:
    """Return a model that hands off, writes the arguments, and turns results into sentences."""
    return ScriptedModel(
        [
            call("transfer_to_order_status_agent"),
            [call("order_status", order_id=501), call("order_status", order_id=502)],
            "A Cook's Year was delivered on 3 March. The Patient Gardener is in the van and arrives today.",
            call("transfer_to_assistant"),
            call("transfer_to_returns", order_id=501),
            call("start_return", order_id=501, reason="the customer has it already"),
            _pass_on,
            call("start_return", order_id=430, reason="dull"),
            _pass_on,
            call("transfer_to_assistant"),
            call("transfer_to_recommendation_agent"),
            call("find_books", subject="nature", up_to_euros=25),
            "Mosses of the North, for 24.00 EUR: you will never step over a stone again without looking.",
        ],
        cut=8,
    )


def _pass_on(request: Request) -> str:
    accepted = str(request.messages[-1]["content"]).startswith("Accepted")
    return "The label is in your mail." if accepted else "I am sorry: that one came too long ago to be sent back."
