"""The process is killed while a tool runs.

Follows https://strandsagents.com/docs/user-guide/concepts/agents/session-management/.
"""

from __future__ import annotations

from common import agent
from stage import GO_ON, book_train, look_up, main


async def start() -> None:
    """Run until the kill."""
    await agent(look_up, book_train).invoke_async("Look up order 7, and book the train.")


async def go_on() -> None:
    """Continue the conversation in another process."""
    await agent(look_up, book_train).invoke_async(GO_ON)


if __name__ == "__main__":
    main(start, go_on)
