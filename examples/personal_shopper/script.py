"""The scripted model. It has a list of steps for each message of a customer.

Only the model is replaced. The client, the wire format, the run, the agents, the database and its money are real.
"""

from __future__ import annotations

from conversation import ADA, BO, CONVERSATIONS, TWICE

from aswarm.testing import Request, ScriptedModel, Step, call

SOCKS, AGAIN, HAT = CONVERSATIONS[ADA]
[SENT_BACK] = CONVERSATIONS[BO]


def script() -> ScriptedModel:
    """Return a model for the messages of `conversation.py`, in any order and in several conversations at once."""
    return ScriptedModel(_next_step, cut=8)


def _next_step(request: Request) -> Step:
    line = max(index for index, message in enumerate(request.messages) if message["role"] == "user")
    answered = sum(message["role"] == "assistant" for message in request.messages[line:])
    told = str(request.messages[-1]["content"])
    steps: list[Step] = _steps(told).get(
        request.messages[line]["content"], ["I am a script; I know only the lines of run.py."]
    )
    return steps[answered]


def _steps(told: str) -> dict[str, list[Step]]:
    """Return the steps for each message of the customer. `told`: the last message, usually the result of a function."""
    return {
        SOCKS: [
            call("transfer_to_refunds_agent"),
            call("list_purchases"),
            call("refund_purchase", purchase_id=1),
            f"I am sorry that they do not fit. {told}",
        ],
        AGAIN: [
            call("refund_purchase", purchase_id=1),
            "No need: the socks are already refunded, and a purchase is refunded once.",
        ],
        HAT: [
            call("transfer_to_triage_agent"),
            call("transfer_to_sales_agent"),
            call("list_products"),
            call("order_product", product_id=7),
            call("notify_customer", method="email", text=told),
            "The straw hat is ordered for 19.99 EUR, and the confirmation is in your mail.",
        ],
        SENT_BACK: [
            call("transfer_to_refunds_agent"),
            call("list_purchases"),
            call("refund_purchase", purchase_id=3),
            f"Not yet, but now it is. {told}",
        ],
        TWICE: [call("refund_purchase", purchase_id=2), told],
    }
