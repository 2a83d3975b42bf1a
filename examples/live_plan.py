"""The plan of `live.py`: the examples, the functions that the model has to call, and the expected effects."""

from __future__ import annotations

from dataclasses import dataclass

# The functions to call, one after the other, for each message of the user. None for any other text.
PLAN = {
    "Do you have black bells?": ["count_stock"],
    "My brakes squeal.": ["send_to_workshop"],
    "Please put a bell aside for me.": ["reserve"],
    "Are you open on Sunday?": ["opening_hours"],
    "Where is my order?": ["order_state"],
    "My name is Ada. My brakes squeal.": ["transfer_to_workshop"],
    "What is the weather in Oslo and in Lima?": ["get_weather"],
    "Please send that about Oslo to ada@example.com.": ["send_email"],
    "Hello! Which green tea do you have?": ["transfer_to_sales", "list_teas"],
    "Good. And my teapot from order 4711 arrived broken, I want my money back.": [
        "transfer_back_to_triage",
        "transfer_to_refunds",
        "look_up_order",
    ],
    "Yes, please.": ["process_refund"],
    "When is breakfast?": ["opening_hours"],
}


@dataclass(frozen=True, slots=True)
class Expected:
    """What must happen: the number of runs with an answer, the called functions in order, and a pattern in the output."""

    answers: int
    calls: tuple[str, ...] = ()
    prints: str = ""


EXAMPLES = {
    "basic/bare_minimum.py": Expected(1),
    "basic/function_calling.py": Expected(1, ("count_stock",), r"^tool: \d+$"),
    "basic/handoff.py": Expected(1, ("send_to_workshop",), "^now talking to: Workshop$"),
    "basic/context_variables.py": Expected(1, ("reserve",), r"^after: .*'reserved': \['lamp', .+\]"),
    "basic/streaming.py": Expected(2, ("opening_hours",) * 2, r"^opening_hours\(.*\) -> (closed|9:00)"),
    "basic/loop.py": Expected(3, ("transfer_to_workshop",), "^Workshop: "),
    "basic/many_conversations.py": Expected(6, ("order_state",) * 3, "^Alan: "),
    "weather_agent/run.py": Expected(2, ("get_weather", "send_email"), r"^sent: \[\{'to': '.+'\}\]$"),
    "triage_agent/run.py": Expected(
        3,
        (
            "transfer_to_sales",
            "list_teas",
            "transfer_back_to_triage",
            "transfer_to_refunds",
            "look_up_order",
            "process_refund",
        ),
        r"^refunded orders: \[4711\]$",
    ),
    # The guest sends four messages; the answer that the guest leaves continues.
    "web_service/run.py": Expected(4, ("opening_hours",), "the guest closes the page$"),
}
