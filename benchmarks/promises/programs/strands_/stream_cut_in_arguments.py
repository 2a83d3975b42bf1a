"""The connection to the model breaks inside the arguments of a call.

Follows https://strandsagents.com/docs/user-guide/concepts/agents/session-management/.
"""

from __future__ import annotations

import httpx
from common import agent
from stage import GO_ON, book_hotel, main


async def stream() -> None:
    """Read the events until the stream breaks."""
    try:
        async for _ in agent(book_hotel).stream_async("Book the hotel."):
            pass
    except httpx.HTTPError as error:
        print(f"{type(error).__name__}: {error}")


async def go_on() -> None:
    """Continue the conversation in another process."""
    await agent(book_hotel).invoke_async(GO_ON)


if __name__ == "__main__":
    main(stream, go_on)
