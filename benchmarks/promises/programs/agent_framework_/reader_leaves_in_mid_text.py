"""The reader of a stream leaves in the middle of the text.

Follows https://learn.microsoft.com/en-us/agent-framework/agents/conversations/storage: the history is stored after each call of the
model, because this run does not end.
"""

from __future__ import annotations

from common import agent, run, session_of
from stage import GO_ON, look_up, main, read

DESK = agent(look_up, each_call=True)


async def leave() -> None:
    """Read three pieces of the text, and leave."""
    pieces = 0
    async with session_of(DESK) as session:
        async for update in DESK.run("Where is order 7?", stream=True, session=session):
            if update.text:
                read(update.text)
                pieces += 1
            if pieces == 3:
                break


async def go_on() -> None:
    """Continue the conversation in another process."""
    await run(DESK, GO_ON)


if __name__ == "__main__":
    main(leave, go_on)
