"""Two calls wait, and the second is approved first.

Follows https://ai.pydantic.dev/deferred-tools/: "the caller gathers approvals/results and then starts a new agent run". A run with
one of two decisions fails with a `UserError`.
"""

from __future__ import annotations

from common import agent, answer, go_on_with, pause, paused
from pydantic import TypeAdapter
from pydantic_ai import DeferredToolResults, Tool
from stage import FOLDER, main, refund

DESK = agent(Tool(refund, requires_approval=True))
DECISIONS = FOLDER / "decisions.json"
RESULTS = TypeAdapter(DeferredToolResults)


async def ask() -> None:
    """Run until both calls wait."""
    await pause(DESK, "Refund the orders 7 and 8.")


async def decide(call_id: str) -> None:
    """Save an approval, and run if it is the last."""
    requests = paused().deferred_tool_requests
    assert requests
    results = RESULTS.validate_json(DECISIONS.read_bytes()) if DECISIONS.exists() else DeferredToolResults()
    results.update(requests.build_results(approvals={call_id: True}))
    DECISIONS.write_bytes(RESULTS.dump_json(results))
    if not requests.remaining(results):
        await answer(DESK, results)


async def approve_second() -> None:
    """Approve the second call."""
    await decide("call_second")


async def approve_first() -> None:
    """Approve the first call."""
    await decide("call_refund")


async def go_on() -> None:
    """Continue the conversation."""
    await go_on_with(DESK)


if __name__ == "__main__":
    main(ask, approve_second, approve_first, go_on)
