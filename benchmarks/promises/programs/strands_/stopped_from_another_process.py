"""The service executes the run, another process stops it.

Follows https://strandsagents.com/docs/user-guide/sdk/multi-agent/agent-to-agent/: `tasks/cancel` of the protocol cancels the agent.
"""

from __future__ import annotations

import service
from a2a.types import TaskIdParams
from common import agent
from stage import GO_ON, book_train, look_up, main, seen


async def serve() -> None:
    """Serve."""
    await service.serve(lambda context: agent(look_up, book_train, session_id=context))


async def start() -> None:
    """Start a task, and leave while its tool runs."""
    async with service.browser() as client:
        async for task, _ in client.send_message(service.says("Look up order 7, and book the train.")):
            service.remember(task)
            break
    await seen("book_train")


async def stop() -> None:
    """Stop the task from this process."""
    async with service.browser() as client:
        task = await client.cancel_task(TaskIdParams(id=service.remembered()["id"]))
        print(task.status.state)


async def go_on() -> None:
    """Continue the conversation."""
    async with service.browser() as client:
        async for _ in client.send_message(service.says(GO_ON)):
            pass


if __name__ == "__main__":
    main(serve, start, stop, go_on)
