"""The service is killed and restarted while a call waits.

Follows https://strandsagents.com/docs/user-guide/sdk/multi-agent/agent-to-agent/: the session of the context keeps the call that waits.
"""

from __future__ import annotations

import service
from common import agent
from stage import GO_ON, main, refund


async def serve() -> None:
    """Serve."""
    await service.serve(lambda context: agent(refund, session_id=context))


async def ask() -> None:
    """Run until the call waits."""
    async with service.browser() as client:
        async for task, _ in client.send_message(service.says("Refund order 7.")):
            service.remember(task)


async def approve() -> None:
    """Approve the call at the new process."""
    async with service.browser() as client:
        async for _ in client.send_message(service.approval()):
            pass


async def go_on() -> None:
    """Continue the conversation."""
    async with service.browser() as client:
        async for _ in client.send_message(service.says(GO_ON)):
            pass


if __name__ == "__main__":
    main(serve, ask, approve, go_on)
