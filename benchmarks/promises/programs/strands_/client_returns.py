"""The client disconnects in the middle of the text, and returns.

Follows https://strandsagents.com/docs/user-guide/sdk/multi-agent/agent-to-agent/: the task goes on, and `tasks/get` of the protocol has its
text so far. The program reads the task until it is complete.
"""

from __future__ import annotations

import asyncio

import service
from a2a.types import TaskArtifactUpdateEvent, TaskQueryParams, TaskState
from common import agent
from stage import look_up, main, read, read_whole


async def serve() -> None:
    """Serve."""
    await service.serve(lambda context: agent(look_up, session_id=context))


async def leave() -> None:
    """Start a task, read three pieces of the text, and disconnect."""
    pieces = 0
    async with service.browser() as client:
        async for task, update in client.send_message(service.says("Where is order 7?")):
            if isinstance(update, TaskArtifactUpdateEvent):
                read(update.artifact.parts[0].root.text)
                pieces += 1
            if pieces == 3:
                service.remember(task)
                return


async def come_back() -> None:
    """Read the whole text of the task."""
    query = TaskQueryParams(id=service.remembered()["id"])
    async with service.browser() as client:
        while (task := await client.get_task(query)).status.state == TaskState.working:
            await asyncio.sleep(0.1)
        read_whole("".join(part.root.text for artifact in task.artifacts for part in artifact.parts))


if __name__ == "__main__":
    main(serve, leave, come_back)
