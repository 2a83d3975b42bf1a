"""Step 4, several agents: triage, sales, issues and repairs, and a person if no agent can help.

With `--chat` you are the customer (this needs `pip install ".[cli]"`). With `--yes`, orders are confirmed without a question.
"""

from __future__ import annotations

import argparse

from agents import triage
from customer import SEVERAL_AGENTS
from terminal import ask, converse, say_yes


def main() -> None:
    """Send the customer's messages, or read them from the keyboard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chat", action="store_true", help="type what the customer says")
    parser.add_argument("--yes", action="store_true", help="confirm every order")
    options = parser.parse_args()
    context = {"confirm": say_yes if options.yes else ask}
    if options.chat:
        from aswarm.repl import run_demo_loop  # noqa: PLC0415 - needs an extra, which nothing else here does

        run_demo_loop(triage, context, stream=True)
    else:
        converse(triage, SEVERAL_AGENTS, context)


if __name__ == "__main__":
    main()
