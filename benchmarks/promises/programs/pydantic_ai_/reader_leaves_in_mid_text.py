"""The reader of a stream leaves in the middle of the text.

Follows https://ai.pydantic.dev/output/#cancelling-streams: `cancel()`, and then the messages of the result.
"""

from __future__ import annotations

from common import CHAT, agent
from pydantic_ai.messages import ModelMessagesTypeAdapter
from stage import FOLDER, GO_ON, look_up, main, read

DESK = agent(look_up)
CHAT_FILE = FOLDER / "messages.json"


async def leave() -> None:
    """Read three pieces of the text, and cancel the stream."""
    pieces = 0
    async with DESK.run_stream("Where is order 7?", conversation_id=CHAT) as result:
        async for piece in result.stream_text(delta=True, debounce_by=None):
            read(piece)
            pieces += 1
            if pieces == 3:
                await result.cancel()
                break
        CHAT_FILE.write_bytes(ModelMessagesTypeAdapter.dump_json(result.all_messages()))


async def go_on() -> None:
    """Continue the conversation in another process."""
    messages = ModelMessagesTypeAdapter.validate_json(CHAT_FILE.read_bytes())
    await DESK.run(GO_ON, message_history=messages, conversation_id=CHAT)


if __name__ == "__main__":
    main(leave, go_on)
