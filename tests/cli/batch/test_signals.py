"""SIGTERM in the middle of a command, in this process."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from aswarm.cli.batch import _signals


def test_sigterm() -> None:
    """What runs is cancelled and awaited; then it is raised, as a kind of Ctrl-C."""
    done: list[str] = []

    async def main() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    with pytest.raises(_signals.Terminated):
        _signals.run(main())
    assert done == ["cleaned up"]
    assert issubclass(_signals.Terminated, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_where_nobody_can_listen() -> None:
    """As on Windows: it runs all the same."""
    done: list[str] = []

    async def main() -> None:
        done.append("done")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(_signals.run, main()).result()
    assert done == ["done"]
