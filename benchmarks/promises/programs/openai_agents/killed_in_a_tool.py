"""The process is killed while a tool runs. Follows https://openai.github.io/openai-agents-python/sessions/."""

from __future__ import annotations

from agents import Runner
from common import agent, session, tool
from stage import GO_ON, book_train, look_up, main

DESK = agent(tool(look_up), tool(book_train))


async def start() -> None:
    """Run until the kill."""
    await Runner.run(DESK, "Look up order 7, and book the train.", session=session())


async def go_on() -> None:
    """Continue the conversation in another process."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(start, go_on)
