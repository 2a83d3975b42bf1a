"""The personal shopper with the blocking `Swarm`. With `--chat` you are the customer (this needs `pip install ".[cli]"`).

The whole program has one connection. SQLite requires that the thread that opened it also uses it: `Swarm` runs plain functions in
the caller's thread, which has opened the connection.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

import database
from agents import triage
from conversation import ADA, CONVERSATIONS, show, show_books

from aswarm import Swarm


def main() -> None:
    """Open the shop, serve the customer, show the books."""
    options = _options()
    with database.connect(options.database) as connection:
        database.create(connection)
        context = {"user_id": ADA, "connect": lambda: nullcontext(connection)}
        if options.chat:
            from aswarm.repl import run_demo_loop  # noqa: PLC0415 - needs an extra, which nothing else here does

            run_demo_loop(triage, context, stream=True)
        else:
            converse(context)
        show_books(connection)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chat", action="store_true", help="type what the customer says")
    parser.add_argument("--database", default=":memory:", metavar="FILE", help="keep the shop's data in a file")
    return parser.parse_args()


def converse(context: dict[str, Any]) -> None:
    """Send the customer's messages one after another. Each run continues with the result of the previous run."""
    agent, messages = triage, list[dict[str, Any]]()
    with Swarm() as swarm:
        for line in CONVERSATIONS[ADA]:
            message = {"role": "user", "content": line}
            response = swarm.run(agent, [*messages, message], context)
            show([message, *response.messages])
            messages += [message, *response.messages]
            agent = response.agent


if __name__ == "__main__":
    main()
