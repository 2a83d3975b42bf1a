"""The reader of a stream leaves in the middle of the text.

Follows https://docs.langchain.com/oss/python/langgraph/streaming with a checkpointer.
"""

from __future__ import annotations

from common import THREAD, go_on_with, said, stored
from stage import look_up, main, read


async def leave() -> None:
    """Read three pieces of the text, and leave the loop."""
    pieces = 0
    async with stored(look_up) as desk:
        question = said("Where is order 7?")
        async for chunk, about in desk.astream(question, THREAD, stream_mode="messages", durability="sync"):
            if chunk.text and about["langgraph_node"] == "model":
                read(chunk.text)
                pieces += 1
            if pieces == 3:
                break


async def go_on() -> None:
    """Continue the conversation in another process."""
    async with stored(look_up) as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(leave, go_on)
