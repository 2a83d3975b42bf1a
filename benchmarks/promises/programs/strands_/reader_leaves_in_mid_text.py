"""The reader of a stream leaves in the middle of the text.

Follows https://strandsagents.com/docs/user-guide/sdk/agents/agent-loop/ ("Cancellation") with a session: the reader stops the run
with `cancel()`.
"""

from __future__ import annotations

from common import agent
from stage import GO_ON, look_up, main, read


async def leave() -> None:
    """Read three pieces of the text, and cancel the run."""
    pieces = 0
    desk = agent(look_up)
    async for event in desk.stream_async("Where is order 7?"):
        if "data" in event:
            read(event["data"])
            pieces += 1
        if pieces == 3:
            desk.cancel()


async def go_on() -> None:
    """Continue the conversation in another process."""
    await agent(look_up).invoke_async(GO_ON)


if __name__ == "__main__":
    main(leave, go_on)
