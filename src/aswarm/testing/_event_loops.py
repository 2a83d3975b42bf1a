"""An event loop and a thread of its own for each case of a check, and nothing on the screen.

So a case that hangs can be given up, and a check can be called inside an event loop. Decides nothing about middleware.
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
    """An event loop of asyncio that reports nothing, and knows which `asyncio.timeout` each task has open."""

    def __init__(self) -> None:
        super().__init__()
        self._timeouts: list[tuple[asyncio.TimerHandle, asyncio.Task[Any] | None]] = []

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As of any event loop."""
        handle = super().call_at(when, callback, *args, context=context)
        if isinstance(getattr(callback, "__self__", None), asyncio.Timeout):
            self._timeouts.append((handle, asyncio.current_task()))
        return handle

    def has_open_timeout(self) -> bool:
        """Whether the current task is inside an `asyncio.timeout`. Leaving one cancels its handle."""
        task = asyncio.current_task()
        return any(owner is task and not handle.cancelled() for handle, owner in self._timeouts)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report nothing: what a broken middleware leaves behind is reported by the check."""


def run_case(case: Callable[[], Awaitable[None]], backend: str, patience: float) -> BaseException | None:
    """Run the case; what it raised, or None. Raises TimeoutError if it has not ended after `patience` seconds."""
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
    """Show none of the warnings, log records and ignored exceptions that broken generators and tasks cause."""
    logger = logging.getLogger("aswarm")
    hook = sys.unraisablehook
    logger.addFilter(_is_of_another_thread)
    sys.unraisablehook = _show_nothing
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
            gc.collect()  # the warnings of what is still open come when it is collected
    finally:
        sys.unraisablehook = hook
        logger.removeFilter(_is_of_another_thread)


def _is_of_another_thread(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD


def _show_nothing(_: object) -> None:
    """Take the place of `sys.unraisablehook`."""
