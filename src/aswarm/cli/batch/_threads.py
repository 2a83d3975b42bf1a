"""Input and output in threads, so that a slow file, a silent pipe or a reader that pauses never holds the event loop.

The threads are daemons: one that is stuck ends with the process, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import closing, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(items: Generator[T], ahead: int = 64) -> AsyncGenerator[T]:
    """The items, at most `ahead` of them taken before they are asked for. Raises what taking them raises.

    Leaving early never waits: a thread that is stuck in a read ends with the process, and closes `items` where it goes on.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue()
    room, left = threading.Semaphore(ahead), threading.Event()

    def put(what: tuple[T] | BaseException | None) -> None:
        with suppress(RuntimeError):  # the event loop has been closed
            loop.call_soon_threadsafe(arrived.put_nowait, what)

    def take() -> None:
        try:
            with closing(items):
                for item in items:
                    room.acquire()
                    if left.is_set():
                        return
                    put((item,))
            put(None)
        except BaseException as error:  # noqa: BLE001 - raised where it is asked for
            put(error)

    threading.Thread(target=take, name="aswarm input", daemon=True).start()
    try:
        while (what := await arrived.get()) is not None:
            if isinstance(what, BaseException):
                raise what
            room.release()
            yield what[0]
    finally:
        left.set()
        room.release()


class OneByOne:
    """Makes calls in a thread of its own, one after another, in the order in which they are asked for."""

    def __init__(self, name: str) -> None:
        self._asked: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            future, call = asked
            if not future.set_running_or_notify_cancel():
                continue
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised where it is asked for
                future.set_exception(error)
            else:
                future.set_result(None)

    async def call(self, call: Callable[[], None]) -> None:
        """Have it made, and wait for its end. Raises what it raises. Cancelled, it is not made, or not waited for."""
        await asyncio.wrap_future(self._ask(call))

    def _ask(self, call: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self._asked.put((future, call))
        return future

    def close(self, last: Callable[[], None], seconds: float) -> None:
        """Have a last call made, and wait for it, so many seconds at most."""
        self._ask(last)
        self._asked.put(None)
        self._thread.join(seconds)


async def to_its_end(work: Coroutine[Any, Any, None], seconds: float) -> None:
    """Await it. Where this is cancelled, it has so many seconds more to end: what is half done is better done."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.add_done_callback(_seen)
        await asyncio.wait([task], timeout=seconds)
        raise
    task.result()


def _seen(task: asyncio.Future[None]) -> None:
    """Whoever is cancelled raises that, and nothing else; asyncio would complain that nobody has asked."""
    _ = task.cancelled() or task.exception()
