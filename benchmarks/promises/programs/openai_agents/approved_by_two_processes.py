"""Two processes get the same approval, and a third gets it later.

Follows https://openai.github.io/openai-agents-python/human_in_the_loop/ with a session, and, because that page names no lock,
https://docs.dbos.dev/python/tutorials/workflow-tutorial#workflow-ids-and-idempotency: the decision about a call is a workflow with an
id of its own, so it executes only once. Without it, the order is refunded twice.
"""

from __future__ import annotations

import os

from agents import Runner, RunState
from common import STATE, agent, save, session
from dbos import DBOS, SetWorkflowID
from dbos_openai_agents import DBOSRunner
from durable import launch, once
from stage import GO_ON, both_ready, main, refund

DESK = agent(once(refund, needs_approval=True))


@DBOS.workflow()
async def resume(state_of_run: str) -> str:
    """Approve the waiting calls of a saved run, and resume it."""
    state = await RunState.from_string(DESK, state_of_run)
    for interruption in state.get_interruptions():
        state.approve(interruption)
    return str((await DBOSRunner.run(DESK, state, session=session())).final_output)


async def ask() -> None:
    """Run until the call waits, and save the state."""
    save((await Runner.run(DESK, "Refund order 7.", session=session())).to_state())


async def approve() -> None:
    """Approve the call at the same time as the other process."""
    launch(executor=str(os.getpid()))
    await both_ready()
    await _approve()


async def approve_again() -> None:
    """Approve the call after both."""
    launch(executor=str(os.getpid()))
    await _approve()


async def _approve() -> None:
    with SetWorkflowID("decision-call_refund"):
        print(await resume(STATE.read_text()))
    DBOS.destroy()


async def go_on() -> None:
    """Continue the conversation."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(ask, approve, approve_again, go_on)
