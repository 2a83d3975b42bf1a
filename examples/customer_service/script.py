"""The scripted model. It has a list of steps for each message of the customer.

Only the model is replaced. The client, the wire format, the run, the agents and their functions are real.
"""

from __future__ import annotations

from customer import FUNCTIONS, HANDOFF, SEVERAL_AGENTS

from aswarm.testing import Request, ScriptedModel, Step, call

LEAKS, BOTTOM, DRIPS, ACCEPTED = FUNCTIONS
GARDEN, LEAKS_TOO = HANDOFF
HELLO, BED, TAKEN, MONEY_BACK, PERSON = SEVERAL_AGENTS


def script() -> ScriptedModel:
    """Return a model that knows the messages in `customer.py`."""
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
        LEAKS: ["I am sorry to hear that. Where does the water come out?"],
        BOTTOM: ["Please tighten the screw a quarter turn with a coin, and fill the kettle again."],
        DRIPS: ["Then I can offer you your money back. Would you like that?"],
        ACCEPTED: [
            call("look_up_item", search_query="kettle"),
            call("execute_refund", item_id="kettle-1", reason="leaks at the bottom screw"),
            f"It is done. {told}",
        ],
        GARDEN: [
            call("look_up_item", search_query="lamp"),
            "The storm lamp, at 28.00 EUR, burns in any weather. Would you like it?",
        ],
        LEAKS_TOO: [
            call("transfer_to_repairs"),
            "I am sorry to hear that. As the screw is not the cause, would you like your money back?",
        ],
        HELLO: ["Welcome to Kettle & Lamp. What can I do for you?"],
        BED: [
            call("transfer_to_sales_agent"),
            call("look_up_item", search_query="lamp"),
            "I recommend the reading lamp, at 54.00 EUR. Would you like it?",
        ],
        TAKEN: [
            call("execute_order", item_id="lamp-2"),
            "Thank you, it is on its way." if told.startswith("Ordered") else "As you wish. Nothing is ordered.",
        ],
        MONEY_BACK: [
            call("transfer_to_triage_agent"),
            call("transfer_to_issues_and_repairs_agent"),
            call("look_up_item", search_query="kettle"),
            call("execute_refund", item_id="kettle-1", reason="leaks at the bottom"),
            f"I am sorry that it leaks. {told}",
        ],
        PERSON: [
            call("transfer_to_triage_agent"),
            call("escalate_to_human", summary="The leaking kettle is refunded; now a complaint about the delivery."),
        ],
    }
