"""SIGTERM, which docker, systemd and slurm send, as a Ctrl-C with another exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def run(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run`, which SIGTERM ends as Ctrl-C does: what runs is cancelled and awaited, then Terminated is raised.

    On Windows, where nobody can send it, and in a thread, it does what it always does.
    """
    try:
        asyncio.run(_listening(main))
    except asyncio.CancelledError:
        raise Terminated from None


async def _listening(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(main)
    with suppress(RuntimeError):  # NotImplementedError is one
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task
