"""The process is killed while a tool runs.

Follows https://learn.microsoft.com/en-us/agent-framework/agents/conversations/storage: the history is stored after each call of the
model. The result of the call that has none is work of the program (see `closed`). Without this, the next request is invalid; if the
history is stored after the run, the first message is lost.
"""

from __future__ import annotations

from common import agent, closed, run
from stage import GO_ON, book_train, look_up, main

DESK = agent(look_up, book_train, each_call=True)


async def start() -> None:
    """Run until the kill."""
    await run(DESK, "Look up order 7, and book the train.")


async def go_on() -> None:
    """Continue the conversation in another process."""
    await run(DESK, *await closed(), GO_ON)


if __name__ == "__main__":
    main(start, go_on)
