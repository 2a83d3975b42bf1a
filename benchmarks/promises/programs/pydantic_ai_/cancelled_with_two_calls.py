"""The user stops an answer while one call has finished and one runs.

Follows https://ai.pydantic.dev/agent/#cancelling-a-run: `RunCancelled.from_cancellation(...)` has the messages.
"""

from __future__ import annotations

import asyncio

from common import CHAT, agent
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelMessagesTypeAdapter
from stage import FOLDER, GO_ON, book_hotel, book_train, main, seen

DESK = agent(book_hotel, book_train)
CHAT_FILE = FOLDER / "messages.json"


async def cancel() -> None:
    """Start a run, and cancel its task while the second call runs."""
    task = asyncio.create_task(DESK.run("Book the hotel and the train.", conversation_id=CHAT))
    await seen("book_train")
    await asyncio.sleep(0.5)  # the other call has finished
    task.cancel()
    try:
        await task
    except asyncio.CancelledError as error:
        cancelled = RunCancelled.from_cancellation(error)
        assert cancelled
        CHAT_FILE.write_bytes(ModelMessagesTypeAdapter.dump_json(list(cancelled.all_messages())))


async def go_on() -> None:
    """Continue the conversation in another process."""
    messages = ModelMessagesTypeAdapter.validate_json(CHAT_FILE.read_bytes())
    await DESK.run(GO_ON, message_history=messages, conversation_id=CHAT)


if __name__ == "__main__":
    main(cancel, go_on)
