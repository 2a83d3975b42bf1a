"""The process is killed while a tool runs.

Follows https://docs.dbos.dev/integrations/openai-agents: DBOS recovers the run in the next process. The session alone
(https://openai.github.io/openai-agents-python/sessions/) keeps the first call, and loses that the second was started.
"""

from __future__ import annotations

from typing import Any

from common import agent
from dbos import DBOS, SetWorkflowID
from dbos_openai_agents import DBOSRunner
from durable import launch, once, repeatable
from stage import GO_ON, book_train, look_up, main

DESK = agent(repeatable(look_up), once(book_train))


@DBOS.workflow()
async def turn(history: list[Any], text: str) -> list[Any]:
    """Answer the user. Returns the history."""
    result = await DBOSRunner.run(DESK, [*history, {"role": "user", "content": text}])
    return result.to_input_list()


async def start() -> None:
    """Run until the kill."""
    launch()
    with SetWorkflowID("first"):
        await turn([], "Look up order 7, and book the train.")


async def go_on() -> None:
    """Wait until DBOS has recovered the first turn in another process, and continue the conversation."""
    launch()
    first = await DBOS.retrieve_workflow_async("first")
    await turn(await first.get_result(), GO_ON)
    DBOS.destroy()


if __name__ == "__main__":
    main(start, go_on)
