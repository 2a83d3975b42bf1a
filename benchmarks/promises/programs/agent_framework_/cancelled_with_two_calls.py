"""The user stops an answer while one call has finished and one runs.

Follows https://learn.microsoft.com/en-us/agent-framework/agents/middleware/termination (`context.result` and `MiddlewareTermination`) and
https://github.com/microsoft/agent-framework/blob/main/python/samples/02-agents/chat_client/require_per_service_call_history_persistence.py
("the synthesized tool result is still written to local history"). No page describes a stop button: the middleware that cancels the call,
and its text, are work of the program. If the program cancels the task of the run, the finished result is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agent_framework import FunctionInvocationContext, FunctionMiddleware, MiddlewareTermination
from common import agent, run
from stage import GO_ON, book_hotel, book_train, main, seen


class Stop(FunctionMiddleware):
    """The stop button: cancels the calls that run."""

    def __init__(self) -> None:
        self.pressed = asyncio.Event()

    async def process(self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Run a call until it ends or the user stops it."""
        call = asyncio.ensure_future(call_next())
        pressing = asyncio.create_task(self.pressed.wait())
        await asyncio.wait({call, pressing}, return_when=asyncio.FIRST_COMPLETED)
        pressing.cancel()
        if not call.done():
            call.cancel()
            await asyncio.wait({call})
            context.result = "cancelled; the outcome is unknown"
            raise MiddlewareTermination
        await call


STOP = Stop()
DESK = agent(book_hotel, book_train, middleware=[STOP])


async def cancel() -> None:
    """Start a run, and stop it while the second call runs."""
    task = asyncio.create_task(run(DESK, "Book the hotel and the train."))
    await seen("book_train")
    await asyncio.sleep(0.5)  # the other call has finished
    STOP.pressed.set()
    await task


async def go_on() -> None:
    """Continue the conversation in another process."""
    await run(DESK, GO_ON)


if __name__ == "__main__":
    main(cancel, go_on)
