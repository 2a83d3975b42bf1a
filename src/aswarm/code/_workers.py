"""The worker processes of the sandbox: one pool for each process, made on first use.

The threads of Monty do not survive a fork, not even in a new pool (tried with 1.4). So a child that was forked from a process with a
pool is refused, because it would hang.
"""

from __future__ import annotations

import atexit
import os
import signal
from contextlib import suppress

import anyio
from pydantic_monty import Monty

from aswarm._runtime.backend import PerLoop, PerProcess
from aswarm._values.errors import ConfigurationError

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


_pools = PerProcess(_make)
_used: list[int] = []  # the process that has made a pool first, and its forked children inherit the list
# The threads that drive the workers; a thread would only wait for a worker if there were more.
threads = PerLoop(lambda: anyio.CapacityLimiter(_COUNT))


def workers() -> Monty:
    """Return the pool of this process. Raises ConfigurationError in a forked child of a process that has a pool."""
    process = os.getpid()
    if not _used:
        _used.append(process)
    if _used[0] != process:
        raise ConfigurationError(
            "this process was forked from a process that had run code already, and the sandbox does not work after a fork; "
            "start such processes with the method 'spawn' or 'forkserver', or run no code before the fork"
        )
    return _pools.get()


def kill(pid: int) -> None:
    """Kill a worker that executes a step. The pool replaces it."""
    with suppress(OSError):
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
