"""The process is killed while a tool runs. Follows the page of `StepPersistence` of the harness ("Failure recovery")."""

from __future__ import annotations

from common import CHAT, agent, go_on_with
from stage import book_train, look_up, main

DESK = agent(look_up, book_train)


async def start() -> None:
    """Run until the kill."""
    await DESK.run("Look up order 7, and book the train.", conversation_id=CHAT)


async def go_on() -> None:
    """Continue the conversation in another process."""
    await go_on_with(DESK)


if __name__ == "__main__":
    main(start, go_on)
