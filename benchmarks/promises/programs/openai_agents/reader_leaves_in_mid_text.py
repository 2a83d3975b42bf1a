"""The reader of a stream leaves in the middle of the text.

Follows https://openai.github.io/openai-agents-python/streaming/ with a session: the reader stops the run with `cancel()`.
"""

from __future__ import annotations

from agents import Runner
from common import agent, session, tool
from openai.types.responses import ResponseTextDeltaEvent
from stage import GO_ON, look_up, main, read

DESK = agent(tool(look_up))


async def leave() -> None:
    """Read three pieces of the text, and cancel the run."""
    pieces = 0
    result = Runner.run_streamed(DESK, "Where is order 7?", session=session())
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            read(event.data.delta)
            pieces += 1
        if pieces == 3:
            result.cancel()


async def go_on() -> None:
    """Continue the conversation in another process."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(leave, go_on)
