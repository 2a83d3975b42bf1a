"""The worker processes of the sandbox: one pool for each process, made on first use, and made again after a fork."""

from __future__ import annotations

import atexit
import os
import signal
from contextlib import suppress

import anyio
from pydantic_monty import Monty

from aswarm._runtime.backend import PerLoop, PerProcess

# Seconds that a step waits for a worker, if other event loops use all of them.
_PATIENCE = 60.0
_COUNT = os.cpu_count() or 1


def _make() -> Monty:
    pool = Monty(max_processes=_COUNT, checkout_timeout=_PATIENCE)
    pool.__enter__()
    process = os.getpid()

    def close() -> None:
        if os.getpid() == process:  # a forked child inherits the callback, but not the workers
            pool.__exit__(None, None, None)

    atexit.register(close)
    return pool


workers = PerProcess(_make)
# The threads that drive the workers; a thread would only wait for a worker if there were more.
threads = PerLoop(lambda: anyio.CapacityLimiter(_COUNT))


def kill(pid: int) -> None:
    """Kill a worker that executes a step. The pool replaces it."""
    with suppress(OSError):
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
