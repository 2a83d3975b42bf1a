"""The connection to the model breaks inside the arguments of a call.

Follows https://ai.pydantic.dev/agent/#streaming-all-events, with `StepPersistence` of the harness.
"""

from __future__ import annotations

import openai
from common import CHAT, agent, go_on_with
from pydantic_ai.exceptions import AgentRunError
from stage import book_hotel, main

DESK = agent(book_hotel)


async def stream() -> None:
    """Read the events until the stream breaks."""
    try:
        async with DESK.run_stream_events("Book the hotel.", conversation_id=CHAT) as events:
            async for _ in events:
                pass
    except (AgentRunError, openai.OpenAIError) as error:
        print(f"{type(error).__name__}: {error}")


async def go_on() -> None:
    """Continue the conversation in another process."""
    await go_on_with(DESK)


if __name__ == "__main__":
    main(stream, go_on)
