"""The process is killed after an approved action, before its result is stored.

Follows https://docs.temporal.io/develop/python/integrations/strands-agents ("Add human approval gates"): a worker in the next process
continues the workflow. With a session alone, the stored session still says that the call waits: if the person approves again, the
order is refunded twice, and if not, the model reads that it was denied.
"""

from __future__ import annotations

from durable import Conversation, become_the_server, conversation, until
from stage import GO_ON, main


async def serve() -> None:
    """Serve the workflows. The processes below work."""
    become_the_server()


async def ask() -> None:
    """Run until the call waits."""
    async with conversation() as talk:
        await talk.signal(Conversation.say, "Refund order 7.")
        await until("waits", talk)


async def approve() -> None:
    """Approve the call. The process is killed when the money has moved."""
    async with conversation() as talk:
        await talk.signal(Conversation.decide, "y")
        await until("answered", talk)


async def recover() -> None:
    """Work in another process, until the workflow has continued."""
    async with conversation() as talk:
        await until("answered", talk)


async def go_on() -> None:
    """Continue the conversation."""
    async with conversation() as talk:
        await talk.signal(Conversation.say, GO_ON)
        await until("answered", talk)


if __name__ == "__main__":
    main(serve, ask, approve, recover, go_on)
