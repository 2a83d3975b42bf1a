"""The user stops an answer while one call has finished and one runs.

Follows https://openai.github.io/openai-agents-python/streaming/ ("Cancel streaming after the current turn") with a session. The mode
"after_turn" saves the turn, and waits for its calls, so the program cancels the running call itself; the SDK turns a cancelled call
into a result (https://openai.github.io/openai-agents-python/tools/, `failure_error_function`). With `cancel()` alone, the finished
result is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any

from agents import Runner, function_tool
from common import agent, session
from stage import GO_ON, book_hotel, book_train, main, seen

RUNNING: set[asyncio.Task[str]] = set()


def stoppable(function: Callable[..., Any]) -> Any:
    """Return a function as a tool that the program can cancel."""

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> str:
        task = asyncio.ensure_future(function(*args, **kwargs))
        RUNNING.add(task)
        task.add_done_callback(RUNNING.discard)
        return await task

    return function_tool(call, failure_error_function=_failed)


def _failed(_context: Any, error: Exception) -> str:
    return f"The call was started, and its outcome is unknown: {error}"


DESK = agent(stoppable(book_hotel), stoppable(book_train))


async def cancel() -> None:
    """Start a run, and stop it while the second call runs."""
    result = Runner.run_streamed(DESK, "Book the hotel and the train.", session=session())

    async def read() -> None:
        async for _ in result.stream_events():
            pass

    reading = asyncio.create_task(read())
    await seen("book_train")
    await asyncio.sleep(0.5)  # the other call has finished
    result.cancel(mode="after_turn")
    for task in list(RUNNING):
        task.cancel()
    await reading


async def go_on() -> None:
    """Continue the conversation in another process."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(cancel, go_on)
