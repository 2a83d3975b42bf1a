"""The process is killed after an approved action, before its result is stored.

Follows https://docs.dbos.dev/integrations/openai-agents and https://docs.dbos.dev/ai/hitl: the workflow waits for the decision with
`DBOS.recv`, and DBOS recovers it in the next process. Without DBOS, a program that resumes the saved state refunds twice, and a
program that only continues the session does not tell the model that the call was started.
"""

from __future__ import annotations

from typing import Any

from common import agent
from dbos import DBOS, SetWorkflowID
from dbos_openai_agents import DBOSRunner
from durable import launch, once
from stage import GO_ON, main, refund

DESK = agent(once(refund, needs_approval=True))


@DBOS.workflow()
async def turn(history: list[Any], text: str) -> list[Any]:
    """Answer the user, and wait for decisions. Returns the history."""
    result = await DBOSRunner.run(DESK, [*history, {"role": "user", "content": text}])
    while result.interruptions:
        await DBOS.set_event_async("waits", value=True)
        await DBOS.recv_async("approval", timeout_seconds=86400)
        state = result.to_state()
        for interruption in result.interruptions:
            state.approve(interruption)
        result = await DBOSRunner.run(DESK, state)
    return result.to_input_list()


async def ask() -> None:
    """Run until the call waits."""
    launch()
    with SetWorkflowID("first"):
        await DBOS.start_workflow_async(turn, [], "Refund order 7.")
    assert await DBOS.get_event_async("first", "waits")
    DBOS.destroy()


async def approve() -> None:
    """Approve the call in a process that recovers the workflow. The process is killed when the money has moved."""
    launch()
    await DBOS.send_async("first", "approved", "approval", idempotency_key="call_refund")
    await (await DBOS.retrieve_workflow_async("first")).get_result()


async def recover() -> None:
    """Wait until DBOS has recovered the workflow in another process."""
    launch()
    print(await (await DBOS.retrieve_workflow_async("first")).get_result())
    DBOS.destroy()


async def go_on() -> None:
    """Continue the conversation."""
    launch()
    first = await DBOS.retrieve_workflow_async("first")
    await turn(await first.get_result(), GO_ON)
    DBOS.destroy()


if __name__ == "__main__":
    main(ask, approve, recover, go_on)
