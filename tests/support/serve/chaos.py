"""Disturbances of processes and databases besides SIGKILL: suspensions, a full disk, a locked file, load.

Each function lasts for the given time, and restores the state. Functions that change the system are for programs, not for
tests: a full disk is a small separate disk, which needs root on Linux.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BURNERS = 15
_BURN = "import os, time; parent = os.getppid(); ends = time.monotonic() + 600\nwhile os.getppid() == parent and time.monotonic() < ends: sum(range(10**5))"

LINE = 128  # bytes; divides a page


def append(path: Path, line: str) -> None:
    """Append a line, whole or not at all: SIGKILL can cut a write where a page ends, and no line crosses a page."""
    data = f"{line:<{LINE - 1}}\n".encode()
    assert len(data) == LINE, f"too long for a line: {line}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, data)
    os.close(file)


def forked(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Start a process that does the work, and return its id. The work has no threads before, because the process is forked."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        random.seed()
        asyncio.run(work())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def suspend(pids: Sequence[int], seconds: float) -> None:
    """Stop processes with SIGSTOP, and continue them; ignore finished processes."""
    for step, wait in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, step)
        time.sleep(wait)


def lock(path: Path, seconds: float) -> None:
    """Keep the write lock of a SQLite file, as another program may; do nothing if the lock is not free."""
    connection = sqlite3.connect(path, timeout=5, isolation_level=None)
    with suppress(sqlite3.OperationalError):
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        connection.execute("ROLLBACK")
    connection.close()


@contextmanager
def small_disk(folder: Path, megabytes: int = 64) -> Iterator[Path]:
    """Mount a small disk in a new folder for the block. Raises OSError without the permission."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        raise OSError(mounted.stderr.decode())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, seconds: float) -> None:
    """Fill the disk of this folder to its last byte, and free it again."""
    path = folder / "filler"
    ends = time.monotonic() + seconds
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        while time.monotonic() < ends:
            size = 2**20
            while size:
                try:
                    os.write(file, b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
            time.sleep(0.02)  # space that others free is filled again
    finally:
        os.close(file)
        path.unlink()


@contextmanager
def load(burners: int = BURNERS) -> Iterator[None]:
    """Let so many processes compute during the block, ten minutes at most; they end with this process."""
    processes = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(burners)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
