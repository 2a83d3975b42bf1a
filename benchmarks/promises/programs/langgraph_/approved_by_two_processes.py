"""Two processes get the same approval, and a third gets it later.

Follows https://docs.langchain.com/langsmith/double-texting (`multitask_strategy="reject"`): the page says that the open-source
framework has no such strategy. There, with the checkpoints of `common.py` in SQLite, two processes refunded the order twice.
The server is the one for development, `langgraph dev`.
"""

from __future__ import annotations

import json

import httpx
import service
from common import agent, said
from stage import FOLDER, GO_ON, both_ready, main, refund, refused

DESK = agent(refund, approve="refund")
ASKED = FOLDER / "asked.json"


async def serve() -> None:
    """Serve."""
    await service.serve(__file__)


async def ask() -> None:
    """Run until the call waits."""
    client = service.browser()
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread, "desk", input=said("Refund order 7."))
    (waiting,) = (await client.threads.get_state(thread))["interrupts"]
    ASKED.write_text(json.dumps([thread, waiting["id"]]))


async def approve() -> None:
    """Approve the call at the same time as the other process."""
    await both_ready()
    await approve_again()


async def approve_again() -> None:
    """Approve the call after both."""
    thread, waiting = json.loads(ASKED.read_text())
    command = {"resume": {waiting: {"type": "approve"}}}
    try:
        await service.browser().runs.wait(thread, "desk", command=command, multitask_strategy="reject")
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.CONFLICT:
            raise
        refused(error.response.text)


async def go_on() -> None:
    """Continue the conversation."""
    thread, _ = json.loads(ASKED.read_text())
    await service.browser().runs.wait(thread, "desk", input=said(GO_ON))


if __name__ == "__main__":
    main(serve, ask, approve, approve_again, go_on)
