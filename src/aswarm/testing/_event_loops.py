"""Runs each case of a check in its own event loop and thread, without output on the screen.

So a case that hangs can be abandoned, and a check can be called inside of an event loop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

import anyio

Ts = TypeVarTuple("Ts")

_THREAD = "aswarm check_middleware"


class EventLoop(asyncio.SelectorEventLoop):
    """An event loop of asyncio that reports nothing. It records each open `asyncio.timeout` with its task."""

    def __init__(self) -> None:
        super().__init__()
        self._timeouts: list[tuple[asyncio.TimerHandle, asyncio.Task[Any] | None]] = []

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback. If it is a timeout of the current task, record it."""
        handle = super().call_at(when, callback, *args, context=context)
        if isinstance(getattr(callback, "__self__", None), asyncio.Timeout):
            self._timeouts.append((handle, asyncio.current_task()))
        return handle

    def has_open_timeout(self) -> bool:
        """Return whether the current task is inside an `asyncio.timeout`. The end of a timeout cancels its handle."""
        task = asyncio.current_task()
        return any(owner is task and not handle.cancelled() for handle, owner in self._timeouts)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report nothing, because the check itself reports the remaining tasks of a broken middleware."""


def run_case(case: Callable[[], Awaitable[None]], backend: str, patience: float) -> BaseException | None:
    """Run the case, and return its exception or None. Raises TimeoutError if it takes longer than `patience` seconds."""
    options = {"loop_factory": EventLoop} if backend == "asyncio" else {}
    raised: list[BaseException] = []

    def work() -> None:
        try:
            anyio.run(case, backend=backend, backend_options=options)
        except BaseException as error:  # noqa: BLE001 - returned to the caller
            raised.append(error)

    thread = threading.Thread(target=work, name=_THREAD, daemon=True)
    thread.start()
    thread.join(patience)
    if thread.is_alive():
        raise TimeoutError
    return raised[0] if raised else None


@contextmanager
def quiet() -> Generator[None, None, None]:
    """Hide the warnings, log records and ignored exceptions of broken generators and tasks."""
    logger = logging.getLogger("aswarm")
    hook = sys.unraisablehook
    logger.addFilter(_is_of_another_thread)
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
            gc.collect()  # collect open generators and tasks now, because Python warns when it collects them
    finally:
        sys.unraisablehook = hook
        logger.removeFilter(_is_of_another_thread)


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD
