"""The process is killed after an approved action, before its result is stored.

Follows https://ai.pydantic.dev/deferred-tools/, and the page of `StepPersistence` of the harness ("Failure recovery"): the program
does not repeat the call, because its ledger says that the call may have run.
"""

from __future__ import annotations

from common import CHAT, STORE, agent, approve_calls, go_on_with, pause
from pydantic_ai import Tool
from stage import main, refund

DESK = agent(Tool(refund, requires_approval=True))


async def ask() -> None:
    """Run until the call waits."""
    await pause(DESK, "Refund order 7.")


async def approve() -> None:
    """Approve the call. The process is killed when the money has moved."""
    await approve_calls(DESK, "call_refund")


async def recover() -> None:
    """Look at the ledger in another process."""
    for run in await STORE.list_runs(conversation_id=CHAT):
        print(await STORE.list_unresolved_tool_effects(run_id=run.run_id))


async def go_on() -> None:
    """Continue the conversation."""
    await go_on_with(DESK)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)
