"""The connection to the model breaks inside the arguments of a call.

Follows https://ai.pydantic.dev/agent/#recovering-a-failed-runs-messages: `capture_run_messages`.
"""

from __future__ import annotations

import openai
from common import CHAT, agent
from pydantic_ai import capture_run_messages
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.messages import ModelMessagesTypeAdapter, repair_messages
from stage import FOLDER, GO_ON, book_hotel, main

DESK = agent(book_hotel)
CHAT_FILE = FOLDER / "messages.json"


async def stream() -> None:
    """Read the events until the stream breaks."""
    with capture_run_messages() as messages:
        try:
            async with DESK.run_stream_events("Book the hotel.", conversation_id=CHAT) as events:
                async for _ in events:
                    pass
        except (AgentRunError, openai.OpenAIError) as error:
            print(f"{type(error).__name__}: {error}")
    CHAT_FILE.write_bytes(ModelMessagesTypeAdapter.dump_json(messages))


async def go_on() -> None:
    """Continue the conversation in another process."""
    messages = repair_messages(ModelMessagesTypeAdapter.validate_json(CHAT_FILE.read_bytes()))
    await DESK.run(GO_ON, message_history=messages, conversation_id=CHAT)


if __name__ == "__main__":
    main(stream, go_on)
