"""Stops a batch after SIGTERM, which docker, systemd and slurm send. The stop waits for work that must not be cut off."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM, which stops a batch like Ctrl-C. Only the exit code differs."""


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine with `asyncio.run`. SIGTERM cancels the coroutine; after its end, this function raises Terminated.

    On Windows and outside the main thread, signals keep their usual effect, because asyncio cannot handle them there.
    """
    try:
        asyncio.run(_cancelled_by_sigterm(main))
    except asyncio.CancelledError:
        raise Terminated from None


async def _cancelled_by_sigterm(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(main)
    with suppress(RuntimeError):  # its subclass NotImplementedError is the error of Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


async def finish(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Await the work. If the caller is cancelled, still wait for the work, at most this number of seconds."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.add_done_callback(_retrieve)
        await asyncio.wait([task], timeout=seconds)
        raise
    task.result()


def _retrieve(task: asyncio.Future[None]) -> None:
    """Retrieve the exception of the task. Otherwise asyncio would log it as "never retrieved"."""
    _ = task.cancelled() or task.exception()
