"""Evals of the tea shop: whether the function, the arguments, the state after the run and the style are right.

    python examples/triage_agent/evals.py [--repeats N]

The exit code is 1 if less than 80 % of the attempts pass.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from agents import CONTEXT, refunds_agent, triage_agent

from aswarm import Response
from aswarm.evals import Case, evaluate

THRESHOLD = 0.8


def nothing_is_refunded(response: Response) -> bool:
    """Check that nothing is refunded before the customer agrees."""
    return bool(response.context_variables["refunded"] == [])


def order_4711_is_refunded(response: Response) -> bool:
    """Check that only this order is refunded, and only once."""
    return bool(response.context_variables["refunded"] == [4711])


ASKED = [
    {"role": "user", "content": "I want my money back for order 4711, it is broken."},
    {"role": "assistant", "content": "The teapot was 24.90 EUR. Shall I refund that?"},
]

CASES = [
    # The handoffs of triage. One completion each; nothing is executed.
    Case("I want my money back!", function="transfer_to_refunds"),
    Case("Can you recommend a tea for the evening?", function="transfer_to_sales"),
    Case("I would like to complain about what you sent me.", function="transfer_to_refunds"),
    Case("Hello!", function=None),
    Case("What I bought last week tastes of soap.", function="transfer_to_refunds"),
    # The arguments come from the conversation.
    Case("It is about order 4712.", agent=refunds_agent, function="look_up_order", arguments={"order_id": 4712}),
    # Whole runs, with their effects: a refund only after a yes.
    Case(ASKED[:1], agent=refunds_agent, context_variables=CONTEXT, check=nothing_is_refunded),
    Case(
        [*ASKED, {"role": "user", "content": "Yes."}],
        agent=refunds_agent,
        context_variables=CONTEXT,
        check=order_4711_is_refunded,
    ),
    # A model judges what code cannot check.
    Case(
        ASKED[:1],
        name="says sorry, in a whole run",
        agent=refunds_agent,
        context_variables=CONTEXT,
        judge="Does the assistant say “sorry”, or something like it, to the customer?",
    ),
    Case(ASKED, name="says what it will refund, in a conversation of last week", judge="Is “24.90 EUR” offered?"),
]


def main() -> int:
    """Run all cases and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1, help="how often each case is run")
    parser.add_argument("--results", help="a JSON file that a record of this evaluation is appended to")
    options = parser.parse_args()
    report = asyncio.run(evaluate(triage_agent, CASES, repeats=options.repeats, results=options.results, progress=True))
    print(report)
    return 0 if report.accuracy >= THRESHOLD else 1


if __name__ == "__main__":
    sys.exit(main())
