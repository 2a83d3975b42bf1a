"""Input and output in threads: a slow file, a silent pipe or a reader that pauses must not block the event loop.

The threads are daemons. So the process does not wait for a thread that is stuck in a system call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

T = TypeVar("T")


async def in_thread(items: Generator[T]) -> AsyncGenerator[T]:
    """Yield the items. A thread reads an item when the caller asks for it. Raises the errors of the thread.

    If the caller stops early, this does not wait for the thread. When the current read returns, the thread closes `items`.
    """
    worker, end = DaemonWorker("aswarm input"), cast("T", object())
    try:
        while (item := await worker.call(partial(next, items, end))) is not end:
            yield item
    finally:
        worker.close(items.close, 0)


class DaemonWorker:
    """A daemon thread that makes calls one after another, in the order in which they were requested."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (requested := self._queue.get()) is not None:
            future, call = requested
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                future.set_exception(error)
            else:
                future.set_result(result)

    async def call(self, call: Callable[[], T]) -> T:
        """Make the call in the thread, and return its result. Raises the errors of the call.

        A cancellation skips a call that has not started. If the call has started, a cancellation only ends the waiting.
        """
        future = Future[T]()
        self._queue.put((future, call))
        return await asyncio.wrap_future(future)

    def close(self, last: Callable[[], None], seconds: float) -> None:
        """Make a last call in the thread. Then wait for the end of the thread, at most this number of seconds."""
        self._queue.put((Future[None](), last))
        self._queue.put(None)
        self._thread.join(seconds)
