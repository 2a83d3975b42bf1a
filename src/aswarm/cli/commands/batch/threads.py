"""Input and output in threads: a slow file, a silent pipe or a reader that pauses must not block the event loop.

The threads are daemons. So the process does not wait for a thread that is stuck in a system call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from contextlib import closing, suppress
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


async def in_thread(items: Generator[T], ahead: int = 64) -> AsyncGenerator[T]:
    """Yield the items. A thread reads them, at most `ahead` items in advance. Raises the errors of the thread.

    If the caller stops early, this does not wait for the thread. When the current read returns, the thread closes `items`.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue()
    room, is_left = threading.Semaphore(ahead), threading.Event()

    def put(arrival: tuple[T] | BaseException | None) -> None:
        with suppress(RuntimeError):  # the event loop has been closed
            loop.call_soon_threadsafe(arrived.put_nowait, arrival)

    def take() -> None:
        try:
            with closing(items):
                for item in items:
                    room.acquire()
                    if is_left.is_set():
                        return
                    put((item,))
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised in the event loop
            put(error)

    threading.Thread(target=take, name="aswarm input", daemon=True).start()
    try:
        while (arrival := await arrived.get()) is not None:
            if isinstance(arrival, BaseException):
                raise arrival
            room.release()
            yield arrival[0]
    finally:
        is_left.set()
        room.release()


class DaemonWorker:
    """A daemon thread that makes calls one after another, in the order in which they were requested."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (requested := self._queue.get()) is not None:
            future, call = requested
            if not future.set_running_or_notify_cancel():
                continue
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                future.set_exception(error)
            else:
                future.set_result(None)

    async def call(self, call: Callable[[], None]) -> None:
        """Make the call in the thread, and wait for its end. Raises the errors of the call.

        A cancellation skips a call that has not started. If the call has started, a cancellation only ends the waiting.
        """
        await asyncio.wrap_future(self._request(call))

    def _request(self, call: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._queue.put((future, call))
        return future

    def close(self, last: Callable[[], None], seconds: float) -> None:
        """Make a last call in the thread. Then wait for the end of the thread, at most this number of seconds."""
        self._request(last)
        self._queue.put(None)
        self._thread.join(seconds)
