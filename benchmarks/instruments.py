"""The instruments: clocks, resident memory, the server's counts, and the check that the work was done."""

from __future__ import annotations

import ctypes
import gc
import http.client
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scenario import ANSWER, TALLY, TURNS, Session

Result = dict[str, Any]


class Meter:
    """Measures the CPU seconds (of all threads of the process) and the wall seconds since its creation."""

    def __init__(self) -> None:
        gc.collect()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return the CPU seconds and the wall seconds."""
        cpu = time.process_time() - self._cpu
        return cpu, time.perf_counter() - self._wall

    def per(self, count: int) -> Result:
        """Return the microseconds per unit, after `count` units of work."""
        cpu, wall = self.read()
        return {"cpu_us": cpu / count * 1e6, "wall_us": wall / count * 1e6, "count": count}


def resident() -> int:
    """Return the resident memory of this process in bytes. If the system does not report it, return the maximum so far."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def trim() -> None:
    """Free unreachable objects, and the memory that glibc's malloc keeps."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def spread(values: list[float], digits: int = 2) -> str:
    """Return a text with the median, the lowest and the highest value."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def control(url: str, path: str) -> Result:
    """Send a control request to the server, and return its answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.request("GET", path)
    answer: Result = json.loads(connection.getresponse().read())
    connection.close()
    return answer


@contextmanager
def proof(url: str, done: Callable[[], int]) -> Iterator[None]:
    """Check that `done()` conversations took place in the block. Raises RuntimeError for another number."""
    control(url, "/reset")
    before = dict(TALLY.calls)
    yield
    seen, expected = control(url, "/stats"), done()
    if seen["turns"] != [expected] * TURNS:
        raise RuntimeError(f"the server saw {seen}, and not {expected} conversations")
    called = {name: count - before[name] for name, count in TALLY.calls.items()}
    if set(called.values()) != {expected}:
        raise RuntimeError(f"the tools were called {called} times in {expected} conversations")


async def converse(session: Session, past: Any, times: int = 1) -> None:
    """Hold the conversation this number of times, and check each answer."""
    for _ in range(times):
        answer = await session.converse(past)
        if answer != ANSWER:
            raise RuntimeError(f"the answer was {answer!r}")
