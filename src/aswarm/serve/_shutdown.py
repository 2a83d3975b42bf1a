"""The end of the process: `Draining` ends the waits of readers, `on_shutdown_signal` calls the service before the server.

`ShieldedExitStack` closes what runs have opened.

Plain uvicorn waits for all streams before it ends the lifespan. So a service that waits for its lifespan would never begin to
end, and the handler of a signal stands in front of the one that the server has set.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

import anyio

from aswarm._runtime.backend import scheduler

_ENDING = (signal.SIGTERM, signal.SIGINT)


class Draining:
    """Tells readers that the service is about to end."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: set[anyio.CancelScope] = set()

    def set(self) -> None:
        """End the waits of all readers, now and later."""
        self.is_set = True
        for scope in list(self._waiting):
            scope.cancel()

    @contextmanager
    def interrupts(self, after: float = math.inf) -> Generator[None]:
        """A block that ends early when draining begins, or after so many seconds."""
        with anyio.CancelScope(deadline=anyio.current_time() + after) as scope:
            if self.is_set:
                scope.cancel()
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)


class ShieldedExitStack(AsyncExitStack):
    """An exit stack that closes everything, even if its task is cancelled at that."""

    def __init__(self) -> None:
        super().__init__()
        self._scope: anyio.CancelScope | None = None  # a stack is made where no event loop runs, too

    async def __aenter__(self) -> Self:
        self._scope = anyio.CancelScope()
        self.enter_context(self._scope)  # the outermost one: all that is closed is closed in it
        return self

    def pop_all(self) -> Self:
        """As of `AsyncExitStack`."""
        stack = super().pop_all()
        stack._scope, self._scope = self._scope, None  # noqa: SLF001 - of this class
        return stack

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._scope is not None:
            self._scope.shield = True
        return bool(await super().__aexit__(kind, error, traceback))


@contextmanager
def on_shutdown_signal(call: Callable[[], None]) -> Generator[None]:
    """In this block, `call` is called on the event loop when SIGTERM or SIGINT comes, and then what was set before.

    Nothing happens outside of the main thread, and for a signal without a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    schedule = scheduler()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _ENDING}

    def handle(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            schedule(call)
        before[number](number, frame)

    ours = [number for number in _ENDING if callable(before[number])]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is handle:  # else the server has set its own since
                signal.signal(number, before[number])
