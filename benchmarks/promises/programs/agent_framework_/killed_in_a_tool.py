"""The process is killed while a tool runs.

Follows https://learn.microsoft.com/en-us/agent-framework/agents/conversations/storage: the history is stored after the run. If it is
stored after each call of the model (`each_call`), the next request is invalid: "A subsequent run cannot proceed without manually
providing the missing FunctionResultContent" (docs/decisions/0022-chat-history-persistence-consistency.md of the project).
"""

from __future__ import annotations

from common import agent, run
from stage import GO_ON, book_train, look_up, main

DESK = agent(look_up, book_train)


async def start() -> None:
    """Run until the kill."""
    await run(DESK, "Look up order 7, and book the train.")


async def go_on() -> None:
    """Continue the conversation in another process."""
    await run(DESK, GO_ON)


if __name__ == "__main__":
    main(start, go_on)
