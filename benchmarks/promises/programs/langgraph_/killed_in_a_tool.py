"""The process is killed while a tool runs.

Follows https://docs.langchain.com/oss/python/langgraph/checkpointers (`durability="sync"`) and
https://docs.langchain.com/oss/python/langgraph/errors/INVALID_CHAT_HISTORY: the program adds a `ToolMessage` for the open call. Its
text is the program's. https://docs.langchain.com/oss/python/langgraph/durable-execution resumes with `None`, which would book the train
again.
"""

from __future__ import annotations

from common import go_on_with, say, stored
from stage import book_train, look_up, main


async def start() -> None:
    """Run until the kill."""
    async with stored(look_up, book_train) as desk:
        await say(desk, "Look up order 7, and book the train.")


async def go_on() -> None:
    """Continue the conversation in another process."""
    async with stored(look_up, book_train) as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(start, go_on)
