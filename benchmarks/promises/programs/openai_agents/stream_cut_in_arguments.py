"""The connection to the model breaks inside the arguments of a call.

Follows https://openai.github.io/openai-agents-python/streaming/ with a session.
"""

from __future__ import annotations

import openai
from agents import AgentsException, Runner
from common import agent, session, tool
from stage import GO_ON, book_hotel, main

DESK = agent(tool(book_hotel))


async def stream() -> None:
    """Read the events until the stream breaks."""
    try:
        async for _ in Runner.run_streamed(DESK, "Book the hotel.", session=session()).stream_events():
            pass
    except (openai.OpenAIError, AgentsException) as error:
        print(f"{type(error).__name__}: {error}")


async def go_on() -> None:
    """Continue the conversation in another process."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(stream, go_on)
