"""Logs the functions that block an event loop for a second.

A thread looks at the stack of the loop ten times in a second, while async functions of the user run. So a call of such a function
costs nothing.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple
from weakref import WeakSet, ref

from . import seams
from .backend import current_loop, scheduler

logger = logging.getLogger("aswarm")

_TEXT = (
    "%s has blocked the event loop for %.1f s (%s): no other run could continue; call slow work with `await "
    "anyio.to_thread.run_sync(...)`, or make a tool a plain function (`def`), which runs in a thread"
)
_NO_RUN = {"run_id": None, "agent": None}  # all records of the logger have these attributes
LIMIT = 1.0  # seconds
_INTERVAL = 0.1
_IDLE = 10  # after this number of looks without a function, the thread ends
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_LOOPS = ("asyncio.base_events", "asyncio.events", "asyncio.runners", "trio._core._run")
# Users cannot change the functions of these packages. A slow function of them is blamed on the function of the user around it.
_LIBRARIES = sys.stdlib_module_names | {
    *(
        "aiohttp",
        "anyio",
        "dbos",
        "httpx",
        "mcp",
        "openai",
        "opentelemetry",
        "pydantic",
        "starlette",
        "trio",
        "uvicorn",
    ),
}

# By process and event loop, because a forked child has no thread of its parent.
_watches: dict[tuple[int, object], _Watch] = {}
_logged: WeakSet[CodeType] = WeakSet()


class Lease:
    """The watched time: until this object is collected, so that the end of a run needs no call."""

    __slots__ = ("__weakref__",)


def watch() -> Lease:
    """Watch the running event loop until the lease is collected."""
    lease, key = Lease(), (os.getpid(), current_loop())
    if (found := _watches.get(key)) is not None:
        found.add(lease)
        if _watches.get(key) is found:  # its thread has not ended in the meantime
            return lease
    _watches[key] = new = _Watch(key)
    new.add(lease)
    with suppress(RuntimeError):  # no more threads: then nothing is logged
        seams.start_thread(new.steps(), "aswarm blocked loops")
    return lease


class _Watch:
    """The thread that watches one event loop. It ends one second after the last function."""

    def __init__(self, key: tuple[int, object]) -> None:
        self._thread_id = threading.get_ident()
        self._schedule = scheduler()
        self._key = key
        self._leases: set[ref[Lease]] = set()
        # The frame of the function that has control. The loop itself clears this list, because a frame keeps local variables
        # alive, and this thread must not be the last to release them.
        self._held: list[FrameType] = []
        self._since = 0.0

    def add(self, lease: Lease) -> None:
        self._leases.add(ref(lease, self._leases.discard))

    def steps(self) -> seams.Steps:
        due, idle = time.monotonic(), 0
        while idle < _IDLE or not self._has_ended():
            idle = 0 if self._leases else idle + 1
            with suppress(RuntimeError):  # the loop is closed
                if self._leases:
                    self._look(due, time.monotonic())
            due = time.monotonic() + _INTERVAL
            yield _INTERVAL

    def _has_ended(self) -> bool:
        _watches.pop(self._key, None)
        return not self._leases or _watches.setdefault(self._key, self) is not self

    def _look(self, due: float, now: float) -> None:
        """Look at the function that has control at the time `now`. `due`: the time when this look should have been.

        A look is late if a function of C keeps the lock of the interpreter. Python passes the lock on before the caller of this
        function continues.
        """
        function = _function_on(sys._current_frames().get(self._thread_id))
        if function is None:
            self._held = []
            return
        if function.frame == self._held:
            function.frame.clear()
        else:  # another function, or the loop has had control in between
            self._schedule(function.frame.clear)
            self._held, self._since = function.frame, due
        if now - self._since >= LIMIT and function.code not in _logged:
            _logged.add(function.code)
            logger.warning(_TEXT, function.name, now - self._since, function.place, extra=_NO_RUN)


class _Function(NamedTuple):
    """A function of the user that has control. `frame`: a list of its frame."""

    frame: list[FrameType]
    code: CodeType
    name: str
    place: str


def _function_on(frame: FrameType | None) -> _Function | None:
    """Return the function that aswarm has called, if the stack has one. `frame`: the top of the stack."""
    outer = inner = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith("aswarm."):
            if outer is not None:
                return _described(outer, inner or outer)
        elif module in _LOOPS:
            return None
        elif module.partition(".")[0] not in _LIBRARIES:
            outer = frame
            if inner is None and frame.f_code.co_flags & _ASYNC:
                inner = frame
        frame = frame.f_back
    return None


def _described(outer: FrameType, inner: FrameType) -> _Function:
    """Describe the outermost function of the user, and the innermost async function, which has called the slow code."""
    name = "" if inner is outer else f" of {inner.f_code.co_qualname}"
    place = f"line {inner.f_lineno}{name} in {Path(inner.f_code.co_filename).name}"
    return _Function([outer], inner.f_code, outer.f_code.co_qualname, place)
