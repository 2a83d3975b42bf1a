"""Two processes send the same approval to the service, and a third sends it later.

Follows https://strandsagents.com/docs/user-guide/sdk/multi-agent/agent-to-agent/: the server has a lock for each context, and refuses an
approval that no call waits for. Two processes that share a session without the server both run the action: no page names a lock
for a session.
"""

from __future__ import annotations

import service
from a2a.client.errors import A2AClientError
from common import agent
from stage import GO_ON, both_ready, main, refund, refused


async def serve() -> None:
    """Serve."""
    await service.serve(lambda context: agent(refund, session_id=context))


async def ask() -> None:
    """Run until the call waits."""
    async with service.browser() as client:
        async for task, _ in client.send_message(service.says("Refund order 7.")):
            service.remember(task)


async def approve() -> None:
    """Approve the call at the same time as the other process."""
    async with service.browser() as client:
        await both_ready()
        try:
            async for _ in client.send_message(service.approval()):
                pass
        except A2AClientError as error:
            refused(error)


async def approve_again() -> None:
    """Approve the call after both."""
    async with service.browser() as client:
        try:
            async for _ in client.send_message(service.approval()):
                pass
        except A2AClientError as error:
            refused(error)


async def go_on() -> None:
    """Continue the conversation."""
    async with service.browser() as client:
        async for _ in client.send_message(service.says(GO_ON)):
            pass


if __name__ == "__main__":
    main(serve, ask, approve, approve_again, go_on)
