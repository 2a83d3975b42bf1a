"""Two processes get the same approval, and a third gets it later.

Follows https://ai.pydantic.dev/deferred-tools/#human-in-the-loop-tool-approval, and the page of `StepPersistence` of the harness
("`run_id` resolution per call"): a second run with the same `run_id` fails. The first page names no lock: without the `run_id`, the
order was refunded three times.
"""

from __future__ import annotations

import sqlite3

from common import agent, approve_calls, go_on_with, pause
from pydantic_ai import Tool, UserError
from stage import both_ready, main, refund, refused

DESK = agent(Tool(refund, requires_approval=True))


async def ask() -> None:
    """Run until the call waits."""
    await pause(DESK, "Refund order 7.")


async def approve() -> None:
    """Approve the call at the same time as the other process."""
    await both_ready()
    await approve_again()


async def approve_again() -> None:
    """Approve the call after both."""
    try:
        await approve_calls(DESK, "call_refund", run_id="answer-call_refund")
    except (UserError, ValueError, sqlite3.IntegrityError) as error:
        refused(error)


async def go_on() -> None:
    """Continue the conversation."""
    await go_on_with(DESK)


if __name__ == "__main__":
    main(ask, approve, approve_again, go_on)
