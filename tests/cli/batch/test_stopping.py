"""How a batch is stopped: SIGTERM in this process, and work that is finished first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aswarm.cli.commands.batch import stopping
from aswarm.cli.commands.batch.stopping import finish
from tests.support.runtime.virtual_time import virtual_backend


def test_sigterm() -> None:
    """Running work is cancelled and awaited; then Terminated is raised, which is a kind of Ctrl-C."""
    done: list[str] = []

    async def main() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    with pytest.raises(stopping.Terminated):
        stopping.run(main())
    assert done == ["cleaned up"]
    assert issubclass(stopping.Terminated, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_without_signal_handlers() -> None:
    """Outside the main thread, as on Windows, the work runs without a handler for SIGTERM."""
    done: list[str] = []

    async def main() -> None:
        done.append("done")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(stopping.run, main()).result()
    assert done == ["done"]


async def cancelled(work: Coroutine[Any, Any, None]) -> None:
    """Start to finish it, and cancel the task that waits for it."""
    waiting = asyncio.ensure_future(finish(work, 5))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", [virtual_backend("asyncio")], ids=["asyncio"])
async def test_work_is_finished(anyio_backend: object) -> None:
    """A cancelled caller waits for the work for a while, raises its own cancellation, and ignores the work's error."""
    done: list[str] = []

    async def work(seconds: float, error: Exception | None = None) -> None:
        await asyncio.sleep(seconds)
        done.append("done")
        if error is not None:
            raise error

    await cancelled(work(1))
    await cancelled(work(1, ValueError()))
    await cancelled(work(3600))
    assert done == ["done", "done"]
