"""The threads and the clock of this process, so that a simulation can replace them.

Callers use the attributes of this module at each call (`seams.run_sync(...)`). So a program without a simulation has no
additional stack frame.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import anyio.to_thread

run_sync = anyio.to_thread.run_sync
monotonic = time.monotonic


@contextmanager
def replaced(threads: Any, clock: Any) -> Generator[None]:
    """Replace the threads and the clock during the block, for all event loops of this process."""
    global run_sync, monotonic
    before = run_sync, monotonic
    run_sync, monotonic = threads, clock
    try:
        yield
    finally:
        run_sync, monotonic = before
