"""The connection to the model breaks inside the arguments of a call.

Follows https://docs.langchain.com/oss/python/langgraph/streaming with a checkpointer.
"""

from __future__ import annotations

import httpx
import openai
from common import THREAD, go_on_with, said, stored
from stage import book_hotel, main


async def stream() -> None:
    """Read the messages until the stream breaks."""
    async with stored(book_hotel) as desk:
        try:
            async for _ in desk.astream(said("Book the hotel."), THREAD, stream_mode="messages", durability="sync"):
                pass
        except (openai.OpenAIError, httpx.HTTPError) as error:
            print(f"{type(error).__name__}: {error}")


async def go_on() -> None:
    """Continue the conversation in another process."""
    async with stored(book_hotel) as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(stream, go_on)
