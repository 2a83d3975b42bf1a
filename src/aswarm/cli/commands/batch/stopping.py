"""Stops a batch after SIGTERM, which docker, systemd and slurm send, and finishes the work that must not be cut off."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM. It stops a batch as Ctrl-C does, with another exit code."""


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run `asyncio.run`; SIGTERM cancels the work, waits for it, and then raises Terminated.

    On Windows, which has no SIGTERM, and outside the main thread, signals keep their usual effect.
    """
    try:
        asyncio.run(_cancelled_by_sigterm(main))
    except asyncio.CancelledError:
        raise Terminated from None


async def _cancelled_by_sigterm(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(main)
    with suppress(RuntimeError):  # NotImplementedError is one
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


async def finish(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Await the work. If the caller is cancelled, wait for the work at most this many seconds before raising the cancellation."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.add_done_callback(_retrieve)
        await asyncio.wait([task], timeout=seconds)
        raise
    task.result()


def _retrieve(task: asyncio.Future[None]) -> None:
    """Retrieve the exception of the task: asyncio logs every exception that is never retrieved."""
    _ = task.cancelled() or task.exception()
